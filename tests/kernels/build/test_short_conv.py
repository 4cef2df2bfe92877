"""The kernels of short_conv, compiled for five chips with the configuration that the table picks for each."""

from __future__ import annotations

import pytest

from t2lib.ops._build import SHARED_LIMIT, faults
from t2lib.ops._cases_short_conv import builds
from t2lib.ops.short_conv import kernels


@pytest.mark.parametrize("arch", SHARED_LIMIT)
def test_no_spill_and_no_waste_of_loads(arch: int) -> None:
    for case in builds(arch):
        built = case.build()
        assert not faults(case, built)
        if case.aligned:
            # As many numbers at once as a thread holds of a row.
            assert "ld.global.v4.b32" in built.ptx or "ld.global.v2.b32" in built.ptx, case


def test_no_length_makes_a_variant() -> None:
    for kernel in (kernels.forward, kernels.backward):
        assert {one.name for one in kernel.params if one.do_not_specialize} == set(kernels.LENGTHS)
