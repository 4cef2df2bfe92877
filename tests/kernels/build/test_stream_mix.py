"""The kernels of stream_mix and of Sinkhorn, compiled for five chips as the table configures them."""

from __future__ import annotations

import pytest

from t2lib.ops import _cases_stream_mix
from t2lib.ops._build import SHARED_LIMIT, Case, faults
from t2lib.ops.stream_mix import kernels


@pytest.mark.parametrize(
    "case", [case for arch in SHARED_LIMIT for case in _cases_stream_mix.builds(arch)], ids=str
)
def test_no_spill_within_shared_memory_in_seconds(case: Case) -> None:
    assert not faults(case, case.build())


def test_too_many_sums_a_lane_would_be_seen() -> None:
    case = next(case for case in _cases_stream_mix.builds(75) if case.kernel is kernels.backward)
    assert case._replace(arguments=case.arguments | {"COLUMNS": 512}).build().spilled > 0


def test_no_length_makes_a_variant() -> None:
    assert not any(parameter.do_not_specialize for parameter in kernels.forward.params)
    assert "tokens" not in kernels.forward.arg_names + kernels.backward.arg_names
    for kernel in (kernels.project, kernels.project_backward):
        plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
        assert plain == set(kernels.LENGTHS)
