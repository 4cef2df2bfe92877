"""The kernels of delta_rewrite, compiled for five chips as the table configures them."""

from __future__ import annotations

import pytest

from t2lib.ops import _cases_delta_rewrite
from t2lib.ops._build import SHARED_LIMIT, Case, faults
from t2lib.ops.delta_rewrite import kernels


@pytest.mark.parametrize(
    "case", [case for arch in SHARED_LIMIT for case in _cases_delta_rewrite.builds(arch)], ids=str
)
def test_no_spill_within_shared_memory_in_seconds(case: Case) -> None:
    assert not faults(case, case.build())


def test_no_length_makes_a_variant() -> None:
    for kernel in (kernels.forward, kernels.backward):
        assert "tokens" not in kernel.arg_names
    plain = {p.name for p in kernels.backward_compress.params if p.do_not_specialize}
    assert plain == set(kernels.LENGTHS)
