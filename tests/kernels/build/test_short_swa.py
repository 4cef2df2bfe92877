"""The kernels of ShortSWA, compiled for five chips with the configuration that the table picks for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import create_function_from_signature

from t2lib.ops._build import SHARED_LIMIT, faults, specialise
from t2lib.ops._cases_short_swa import HALF, KERNELS, builds, case
from t2lib.ops.short_swa import kernels


@pytest.mark.parametrize("arch", SHARED_LIMIT)
def test_no_spill_within_shared_memory_the_right_instruction(arch: int) -> None:
    for one in builds(arch):
        built = one.build()
        assert not faults(one, built)


@pytest.mark.parametrize(("arch", "instruction"), [(75, "FFMA"), (80, "HMMA"), (90, "HGMMA")])
def test_the_instruction_of_the_chip(arch: int, instruction: str) -> None:
    code = case(kernels.forward, "", arch, HALF, 64).build().code
    assert instruction in code
    assert ("MMA" in code) == (arch >= 80)


def test_an_unrolled_or_too_large_tile_would_be_seen() -> None:
    one = case(kernels.backward_kv, "", 75, HALF, 64)
    too_large = one._replace(arguments=one.arguments | {"ROWS": 32, "COLUMNS": 32}, warps=4)
    assert "bytes spilled" in faults(too_large, too_large.build())[0]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_the_builds_are_those_a_launch_would_make(kernel: Any) -> None:
    for one in (
        case(kernel, "", 80, HALF, 64, options=True),
        case(kernel, "", 80, HALF, 64, few=True, aligned=False),
    ):
        arguments = {name: one.arguments[name] for name in kernel.arg_names}
        bind = create_function_from_signature(
            kernel.signature, kernel.params, CUDABackend(GPUTarget("cuda", 80, 32))
        )
        bound, launched, _ = bind(**arguments, num_warps=one.warps, num_stages=one.stages)
        assert [types for types, _ in launched] == list(
            specialise(kernel, arguments, aligned=True)[0].values()
        )
        assert list(bound) == list(arguments)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_no_length_makes_a_variant(kernel: Any) -> None:
    plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    assert plain == set(kernels.LENGTHS)
    # What is left of the shapes: the sizes of inner axes that cannot be merged, 1 for the outermost.
    for length in (300, 301):
        q = torch.empty(2, length, 4, 64, device="meta")
        call = kernels._prepare({"q": q, "k": q, "v": q, "out": q}, None, None, 1, None, 64, False, 0, 0, 1.0)
        assert call.arguments["sizes"] == (1, 4)
