"""The dtype follows the card, and describing a machine needs no torch."""

from __future__ import annotations

import sys

import pytest

from t2lib import environment


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        (None, "float32"),
        ((7, 5), "float16"),
        ((8, 0), "bfloat16"),
        ((9, 0), "bfloat16"),
        ((12, 0), "bfloat16"),
    ],
)
def test_dtype_follows_the_compute_capability(capability, dtype):
    assert environment.dtype_for(capability) == dtype


def test_a_machine_without_torch_is_described_too(monkeypatch, capsys):
    monkeypatch.setattr(environment, "installed", lambda name: "absent" if name == "torch" else "1.0")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert environment.describe_machine() == ("cpu", "float32")
    assert "torch absent" in capsys.readouterr().out


def test_a_package_that_is_not_there_is_absent():
    assert environment.installed("no-such-package-anywhere") == "absent"
