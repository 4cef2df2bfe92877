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


def test_too_many_sums_a_lane_would_be_seen() -> None:
    # Eight sums of 32 numbers each, in the 255 registers of a thread.
    case = _case(100, "channel", 1, torch.float16, True, 2048, backward=True)
    assert case._replace(arguments=case.arguments | {"COLUMNS": 1024}, warps=1).build().spilled > 0


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
