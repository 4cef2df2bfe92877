"""The kernels of depth_mix, compiled for five chips with the configuration that the table picks for each."""

from __future__ import annotations

import pytest
import torch

from t2lib.ops import _build
from t2lib.ops._build import SHARED_LIMIT, Case
from t2lib.ops._cases_depth_mix import _case, builds
from t2lib.ops.depth_mix import kernels

CASES = [case for arch in SHARED_LIMIT for case in builds(arch)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_spill_within_shared_memory_and_soon_done(case: Case) -> None:
    assert _build.faults(case, case.build()) == []


def test_more_states_at_once_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "states_at_once", lambda *arguments, **keywords: 24)
    case = _case(100, "channel and token", 1, torch.float16, True, True)
    assert case.build().spilled > 0


def test_no_length_makes_a_variant() -> None:
    for kernel in (kernels.forward, kernels.backward):
        plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
        assert {"tokens", "first"} <= plain
    calls = []
    for length in (300, 301):
        states = [torch.empty(2, length, 64, device="meta")] * 3
        weights, own = torch.empty(1, 3, 1, device="meta"), torch.empty(2, length, 1, 3, device="meta")
        call = kernels._prepare(states, weights, own, None, 1, False, (9, 0))
        calls.append({key: x for key, x in call.arguments.items() if not torch.is_tensor(x)})
        assert calls[-1].pop("tokens") == 2 * length
    assert calls[0] == calls[1]
