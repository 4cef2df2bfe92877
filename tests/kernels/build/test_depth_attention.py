"""The kernels of depth_attention, compiled for five chips with the configuration the table picks for each."""

from __future__ import annotations

import pytest
import torch

from t2lib.ops import _build
from t2lib.ops._build import SHARED_LIMIT, Case
from t2lib.ops._cases_depth_attention import _cases, builds
from t2lib.ops.depth_attention import kernels

CASES = [case for arch in SHARED_LIMIT for case in builds(arch)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_spill_within_shared_memory_and_soon_done(case: Case) -> None:
    assert _build.faults(case, case.build()) == []


def test_longer_groups_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "group", lambda *arguments, **keywords: 16)
    _, backward = _cases("", 80, torch.bfloat16, 7168, aligned=False)
    assert backward.build().spilled > 0


def test_as_many_states_as_a_launch_takes_fit_its_arguments_and_registers() -> None:
    for case in _cases("", 90, torch.bfloat16, 7168, states=kernels.MOST_STATES, aligned=False):
        assert _build.faults(case, case.build()) == []


def test_no_length_makes_a_variant() -> None:
    for kernel in (kernels.forward, kernels.backward, kernels.backward_states, kernels.backward_asks):
        plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
        assert "tokens" in plain
    calls = []
    for length in (300, 301):
        states = [torch.empty(2, length, 64, device="meta")] * 3
        call = kernels._prepare({"states": states}, 1, (9, 0))
        calls.append(dict(call.arguments))
        assert calls[-1].pop("tokens") == 2 * length
    assert calls[0] == calls[1]
