"""python -m t2lib.verify: green here, red for a rung that is wrong, honest about what it leaves out."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from t2lib import verify
from t2lib.ops import RungUnavailable, _registry
from t2lib.ops.short_swa import arrays, eager


@pytest.fixture(autouse=True)
def _without_compiling(monkeypatch):
    """The compiled rung has tests of its own; here it is one of the rungs that cannot run."""
    monkeypatch.setitem(_registry._CHECKS, "compiled", lambda: (False, "no compiler today"))


def test_green_with_reasons_for_what_is_skipped(capsys):
    assert verify.main(["short_swa"]) == 0
    table = capsys.readouterr().out
    assert "golden: dual_depth_read_K5" in table
    assert "law: depth is tokens with the axes swapped" in table
    assert "no compiler today" in table
    assert "NumPy has no gradients" in table
    assert " 0 red," in table


def test_a_wrong_rung_is_red(monkeypatch, capsys):
    right = arrays.short_swa

    def off_by_one(*qkv, mask, **others):
        return right(*qkv, mask=replace(mask, window=mask.window + 1), **others)

    monkeypatch.setattr(arrays, "short_swa", off_by_one)
    assert verify.main(["short_swa"]) == 1
    table = capsys.readouterr().out
    assert "RED law: definition on arrays" in table
    assert "RED golden: shortswa_strict_h1_w3 on arrays" in table
    assert "on loops" not in table


def test_a_wrong_gradient_is_red(monkeypatch, capsys):
    right = eager.short_swa
    monkeypatch.setattr(eager, "short_swa", lambda q, k, v, **others: right(q, k.detach(), v, **others))
    assert verify.main(["short_swa"]) == 1
    table = capsys.readouterr().out
    assert "RED gradients: finite differences on eager" in table
    assert "RED golden: shortswa_strict_h2_w3 on eager" in table


def test_a_rung_that_raises_is_red_and_one_that_is_unavailable_is_skipped():
    def raises():
        raise IndexError("out of bounds")

    def unavailable():
        raise RungUnavailable("not on this chip")

    assert verify.cell("op", "check", "rung", 0.1, raises).red
    assert verify.cell("op", "check", "rung", 0.1, lambda: np.nan).red
    skipped = verify.cell("op", "check", "rung", 0.1, unavailable)
    assert not skipped.red
    assert skipped.reason == "not on this chip"


def test_another_section_can_be_registered(monkeypatch, capsys):
    monkeypatch.setattr(verify, "SECTIONS", dict(verify.SECTIONS))

    @verify.section("weights")
    def _weights():
        yield verify.Cell("decoder", "hash of the weights", "cpu", 1.0, 0.5)

    assert verify.main(["weights"]) == 1
    assert "RED hash of the weights on cpu" in capsys.readouterr().out


def test_an_unknown_section(capsys):
    assert verify.main(["steams"]) == 2
    known = ", ".join(verify.SECTIONS)
    assert known.startswith("short_swa, depth_mix, depth_attention, stream_mix, delta_rewrite, short_conv")
    assert f"sections must be of {known}; got steams." in capsys.readouterr().err


def test_importing_it_loads_no_torch():
    code = "import sys, t2lib.verify; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_its_rungs_are_skipped(monkeypatch, capsys):
    monkeypatch.setattr(_registry, "installed", lambda package: False)
    assert verify.main(["short_swa"]) == 0
    assert "torch is not installed" in capsys.readouterr().out


def test_how_far_it_is_stands_on_standard_error(monkeypatch, capsys):
    monkeypatch.setattr(verify, "SECTIONS", dict(verify.SECTIONS))
    monkeypatch.setattr(verify, "EVERY", 0.0)
    seen = []

    @verify.section("kernels")
    def _kernels():
        for error in (0.0, 1.0):
            yield verify.Cell("kernels", f"error {error}", "float32", error, 0.5)
            seen.append(capsys.readouterr().err)

    assert verify.main(["kernels"]) == 1
    assert seen == [
        "kernels: 1 done, 0 red; error 0.0 on float32\n",
        "kernels: 2 done, 1 red; RED error 1.0 on float32\n",
    ]
