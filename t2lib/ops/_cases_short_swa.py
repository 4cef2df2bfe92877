"""What is checked of the kernels of short_swa; see `_kernel_cases`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops._build import Case
from t2lib.ops._kernel_cases import Example, normal
from t2lib.ops._triton import most_registers
from t2lib.ops.short_swa import cost, kernels, short_swa

__all__ = ["builds", "case", "example", "examples"]

KERNELS = (kernels.forward, kernels.backward_q, kernels.backward_kv)
HALF, SINGLE, BRAIN = torch.float16, torch.float32, torch.bfloat16


def example(
    what: str, shape: tuple[int, ...], *, axis: int, window: int, value_width: int | None = None,
    share: int = 1, head_axis: int | None = None, n_q: int | None = None, labels: int = 0, **call: Any,
) -> Example:  # fmt: skip
    """A call on keys of this shape, with `share` query heads a key head and the last n_q queries.

    `labels` are the bytes of `documents` and `valid`.
    """
    query, value = [*shape], [*shape[:-1], value_width or shape[-1]]
    if head_axis is not None:
        query[head_axis] *= share
    length = shape[axis]
    if n_q is not None:
        query[axis] = n_q
        call["query_start"] = length - n_q
    shapes = {"q": query, "k": shape, "v": value}
    inputs = {name: normal(*of, seed=seed) for seed, (name, of) in enumerate(shapes.items())}

    def run(rung: str, given: dict[str, Tensor]) -> Any:
        options: dict[str, Any] = {"window": window, "axis": axis, "head_axis": head_axis, **call}
        return short_swa(given["q"], given["k"], given["v"], rung=rung, **options)

    def stated(itemsize: int) -> tuple[int, int]:
        chunk = {key: call[key] for key in ("window_type", "lookback") if key in call}
        return cost.kernel_bytes(
            query[axis], window, shape[-1], itemsize=itemsize, value_width=value[-1],
            sequences=inputs["q"].numel() // (query[axis] * shape[-1]), group=share, labels=labels,
            query_start=length - query[axis], **chunk,
        )  # fmt: skip

    return Example(what, inputs, run, stated)


def examples() -> list[Example]:
    """A window on the tokens, grouped heads over packed documents, chunks, a depth read, one step."""
    documents = (torch.arange(50) // 20).view(1, 50, 1)
    valid = (torch.arange(50) > 2).view(1, 50, 1)
    return [
        example("window on the tokens", (1, 140, 2, 16), axis=1, window=20, value_width=24),
        example("grouped heads, documents, padding", (1, 50, 2, 16), axis=1, window=9, head_axis=2, share=2,
                documents=documents, valid=valid, labels=50 * 9),
        example("chunks", (1, 150, 16), axis=1, window=16, window_type="chunk", lookback=1),
        example("depth read of one layer", (12, 3, 2, 16), axis=0, window=4, n_q=1),
    ]  # fmt: skip


def builds(arch: int) -> list[Case]:
    """The three kernels on every chip, aligned, and unaligned with every option; other cases on one or two.

    Each form with each dtype on two chips or more; among the widths those that once did not fit.
    """
    hard: dict[str, Any] = {"aligned": False, "options": True}
    cases = [
        *_each("tile, width 64", arch, HALF, 64),
        *_each("tile, width 64, every option", arch, HALF, 64, **hard),
    ]
    if arch == 75:
        cases += _each("few queries, width 64, every option", arch, HALF, 64, few=True, **hard)
        cases += _each("few queries, width 256, every option", arch, SINGLE, 256, few=True, options=True)
        cases += _each("tile, width 64", arch, SINGLE, 64, aligned=False)
        cases += _each("tile, width 16, of v alone", arch, HALF, 16, options=True, gradients="v")
    if arch == 80:
        cases += _each("tile, width 64", arch, BRAIN, 64)
        cases += _each("few queries, width 128, every option", arch, BRAIN, 128, few=True, **hard)
        cases += _each("width 128, every option", arch, HALF, 128, **hard)
    if arch == 89:
        cases += _each("few queries, width 256, every option", arch, SINGLE, 256, few=True, **hard)
        cases += _each("tile, width 48", arch, BRAIN, 48)
        cases += _each("tile, width 128", arch, HALF, 128)
    if arch == 90:
        cases += _each("few queries, width 64", arch, HALF, 64, few=True)
        cases += _each("few queries, width 16, every option", arch, HALF, 16, few=True, **hard)
        cases += _each("tile, width 64, every option", arch, SINGLE, 64, options=True)
        cases += _each("tile, width 256, every option", arch, HALF, 256, options=True)
        cases += _each("tile, width 64, of q alone", arch, HALF, 64, gradients="q")
    if arch == 100:
        cases += _each("few queries, width 64", arch, BRAIN, 64, few=True)
        cases += _each("tile, width 80, of v alone", arch, BRAIN, 80, aligned=False, gradients="v")
        cases += _each("tile, width 64, of k alone", arch, HALF, 64, gradients="k")
    return cases


def _each(
    what: str, arch: int, dtype: torch.dtype, width: int,
    *, few: bool = False, aligned: bool = True, options: bool = False, gradients: str = "qkv",
) -> list[Case]:  # fmt: skip
    """The launches of one call; with some of the gradients, of its backward pass alone."""
    idle = {"qkv": (), "v": KERNELS[:2], "q": KERNELS[::2], "k": KERNELS[:1]}[gradients]
    return [
        case(kernel, what, arch, dtype, width, few=few, aligned=aligned, options=options, gradients=gradients)
        for kernel in KERNELS
        if kernel not in idle
    ]


def case(
    kernel: Any, what: str, arch: int, dtype: torch.dtype, width: int,
    *, few: bool = False, aligned: bool = True, options: bool = False, gradients: str = "qkv",
) -> Case:  # fmt: skip
    """A launch on that chip: B = 2, T = 300, H = 4, window 64."""
    # Three columns more than the width: then no row starts where a vector could be loaded.
    extra = 0 if aligned else 3
    n_q = 1 if few else 300
    shapes = [(2, n_q, 4), (2, 300, 2 if options else 4), (2, 300, 2 if options else 4)]
    q, k, v = (
        torch.empty(*shape, width + extra, dtype=dtype, device="meta")[..., :width] for shape in shapes
    )
    out, lse = kernels._empty_results(q, v)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    if kernel is not kernels.forward:
        tensors |= {"grad": out, **{f"d{name}": torch.empty_like(tensors[name]) for name in gradients}}
    documents = torch.empty(2, 300, 1, dtype=torch.int64, device="meta") if options else None
    valid = None if documents is None else documents.bool()
    call = kernels._prepare(
        tensors, documents, valid, 1, 2 if options else None, 64, options, 1, 300 - n_q, width**-0.5
    )
    config = kernels.pick_config(
        divmod(arch, 10), dtype, call.arguments["PADDED"],
        few=few, aligned=aligned, backward=kernel is not kernels.forward,
    )  # fmt: skip
    form = {"TILE": config.tile, "ROWS": config.rows, "COLUMNS": config.columns}
    absent = dict.fromkeys(("dq", "dk", "dv"))
    sums = {"lse": lse, "deltas": lse if "k" in gradients else None}
    arguments = call.arguments | absent | tensors | sums | form
    nothing_seen = kernel is kernels.backward_q and "q" not in gradients
    matrix = config.tile and arch >= 80 and dtype != torch.float32 and not nothing_seen
    name = f"{what}, {str(dtype).removeprefix('torch.')}"
    return Case(
        kernel, name, arch, arguments, aligned, config.warps, config.stages, matrix,
        registers=most_registers(config.warps),
    )  # fmt: skip
