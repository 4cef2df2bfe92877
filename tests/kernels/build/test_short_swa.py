"""The kernels of ShortSWA, compiled for five chips with the configuration that the table picks for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import create_function_from_signature

from t2lib.ops._build import SHARED_LIMIT, build, specialise
from t2lib.ops.short_swa import kernels
from t2lib.ops.short_swa.kernels import Config

KERNELS = (kernels.forward, kernels.backward_q, kernels.backward_kv)
HALF, SINGLE, BRAIN = torch.float16, torch.float32, torch.bfloat16

# (chip, dtype, width, few queries, aligned, every option at once)
CASES = [
    *[(arch, HALF, 64, 0, aligned, False) for arch in SHARED_LIMIT for aligned in (1, 0)],
    *[(arch, HALF, 64, 1, int(arch == 90), False) for arch in SHARED_LIMIT],
    *[(arch, SINGLE, 64, 0, aligned, False) for arch in (75, 100) for aligned in (1, 0)],
    *[(arch, BRAIN, 64, 0, 1, False) for arch in (80, 100)],
    *[(80, HALF, width, 0, 0, True) for width in (64, 128)],
    *[(75, dtype, 64, 0, 0, True) for dtype in (HALF, SINGLE)],
    (75, HALF, 128, 0, 0, True),
    (89, HALF, 16, 0, 0, False),
    (90, HALF, 256, 0, 1, True),
]


def launch(
    kernel: Any, arch: int, dtype: torch.dtype, width: int, few: bool, aligned: bool, options: bool
) -> tuple[Config, dict[str, Any]]:
    """The configuration and the arguments of a launch on that chip: B = 2, T = 300, H = 4, window 64."""
    # Three columns more than the width: then no row starts where a vector could be loaded.
    extra = 0 if aligned else 3
    n_q = 1 if few else 300
    shapes = [(2, n_q, 4), (2, 300, 2 if options else 4), (2, 300, 2 if options else 4)]
    q, k, v = (
        torch.empty(*shape, width + extra, dtype=dtype, device="meta")[..., :width] for shape in shapes
    )
    out, lse = kernels._empty_results(q, v)
    dq, dk, dv = kernels._empty_gradients(q, k, v)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    if kernel is not kernels.forward:
        tensors |= {"grad": out, "dq": dq, "dk": dk, "dv": dv}
    labels = [
        torch.empty(2, 300, 1, dtype=label, device="meta") if options else None
        for label in (torch.int64, torch.bool)
    ]
    call = kernels._prepare(
        tensors, *labels, 1, 2 if options else None, 64, options, 1, 300 - n_q, width**-0.5
    )
    config = kernels.pick_config(divmod(arch, 10), dtype, width, few=few, aligned=aligned)
    form = {"TILE": config.tile, "ROWS": config.rows, "COLUMNS": config.columns}
    arguments = call.arguments | tensors | {"lse": lse, "deltas": lse} | form
    return config, {name: arguments[name] for name in kernel.arg_names}


def name(case: tuple[Any, ...]) -> str:
    arch, dtype, width, few, aligned, options = case
    parts = [f"sm_{arch}", str(dtype).removeprefix("torch."), f"width {width}"]
    parts += ["few queries"] * few + ["aligned" if aligned else "unaligned"] + ["every option"] * options
    return ", ".join(parts)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_no_spill_within_shared_memory_the_right_instruction(case: tuple[Any, ...]) -> None:
    arch, dtype, aligned = case[0], case[1], bool(case[4])
    for kernel in KERNELS:
        config, arguments = launch(kernel, *case)
        built = build(kernel, arch, arguments, aligned=aligned, warps=config.warps, stages=config.stages)
        what = f"{kernel.__name__} with {config}: {built.registers} registers"
        assert built.spilled == 0, f"{what}, {built.spilled} bytes spilled"
        assert built.shared <= SHARED_LIMIT[arch], f"{what}, {built.shared} bytes of shared memory"
        # HMMA is the matrix instruction of half precision for tiles lower than 64 rows.
        matrix = config.tile and arch >= 80 and dtype != torch.float32
        assert ("HMMA" in built.code) == matrix, what
        assert "FFMA" in built.code, what
        assert built.seconds < 5, f"{what}, {built.seconds:.1f} s to compile"


def test_an_unrolled_or_too_large_tile_would_be_seen() -> None:
    _, arguments = launch(kernels.backward_kv, 75, HALF, 64, False, True, False)
    built = build(
        kernels.backward_kv, 75, arguments | {"ROWS": 32, "COLUMNS": 32}, aligned=True, warps=4, stages=1
    )
    assert built.spilled > 0


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_the_builds_are_those_a_launch_would_make(kernel: Any) -> None:
    for case in ((80, HALF, 64, 0, 1, True), (80, HALF, 64, 1, 0, False)):
        config, arguments = launch(kernel, *case)
        bind = create_function_from_signature(
            kernel.signature, kernel.params, CUDABackend(GPUTarget("cuda", 80, 32))
        )
        bound, launched, _ = bind(**arguments, num_warps=config.warps, num_stages=config.stages)
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
