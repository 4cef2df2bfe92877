"""What is checked of the kernels of short_conv; see `_kernel_cases`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops._build import Case
from t2lib.ops._kernel_cases import Example, normal
from t2lib.ops.short_conv import cost, kernels, short_conv

__all__ = ["builds", "example", "examples"]


def example(
    what: str, shape: tuple[int, ...], taps: int, *, axis: int, bias: bool = False, state: bool = False,
    documents: Tensor | None = None, gradients: tuple[str, ...] = ("x", "weight", "bias", "state"),
    **call: Any,
) -> Example:  # fmt: skip
    """A call on an x of this shape; its bytes are stated for the configuration of the interpreter."""
    d, length = shape[-1], shape[axis]
    before = [*shape]
    before[axis] = taps - 1
    inputs = {"x": normal(*shape), "weight": normal(d, taps, seed=1)}
    inputs |= {"bias": normal(d, seed=2)} if bias else {}
    inputs |= {"initial_state": normal(*before, seed=3)} if state else {}

    def run(rung: str, given: dict[str, Any]) -> Any:
        options = {"axis": axis, "rung": rung, "documents": documents, **call}
        return short_conv(**given, **options)

    def stated(itemsize: int) -> tuple[int, int]:
        config = kernels.pick_config((0, 0), torch.float32, d, taps, aligned=True, backward=True)
        sequences = normal(*shape).numel() // (d * length)
        rows = sequences * (length + (taps - 1 if state and "state" in gradients else 0))
        return cost.kernel_bytes(
            d, taps, length, itemsize=itemsize, sequences=sequences, bias=bias, state=state,
            silu=call.get("activation") == "silu", keep=call.get("return_state", False),
            labels=0 if documents is None else documents.numel(), gradients=gradients,
            blocks=-(-rows // (config.rows * max(1, min(config.steps, _tiles(rows, d, config))))),
        )  # fmt: skip

    return Example(what, inputs, run, stated)


def _tiles(rows: int, d: int, config: kernels.Config) -> int:
    return -(-rows // config.rows) * -(-d // config.columns)


def examples() -> list[Example]:
    """Along the tokens with everything there is, over depth, and one step of a stream."""
    documents = torch.arange(2 * 37).view(2, 37) // 10
    return [
        example("tokens, SiLU, bias, state", (2, 37, 80), 4, axis=1, bias=True, state=True,
                activation="silu", return_state=True),
        example("tokens, packed documents", (2, 37, 24), 4, axis=1, bias=True, state=True,
                activation="silu", documents=documents),
        example("depth, K = 8", (9, 2, 5, 16), 8, axis=0),
        example("one step of a stream", (3, 1, 48), 4, axis=1, bias=True, state=True, return_state=True),
    ]  # fmt: skip


def builds(arch: int) -> list[Case]:
    """Both kernels: the plain filter of 4 taps on every chip; other dtypes, taps, options on two or more."""
    half, single, brain = torch.float16, torch.float32, torch.bfloat16
    wanted = [("K = 4, SiLU, float16", half, 4, False, aligned) for aligned in (True, False)]
    if arch == 75:
        wanted.append(("K = 8, every option, float16", half, 8, True, True))
    if arch == 80:
        wanted.append(("K = 4, every option, float32", single, 4, True, False))
        wanted.append(("K = 4, SiLU, bfloat16", brain, 4, False, True))
    if arch == 89:
        wanted.append(("K = 4, every option, bfloat16", brain, 4, True, False))
    if arch == 90:
        wanted.append(("K = 6, SiLU, float32", single, 6, False, False))
        wanted.append(("K = 8, every option, float32", single, 8, True, False))
    if arch == 100:
        wanted.append(("K = 4, SiLU, float32", single, 4, False, True))
    cases = [
        _case(what, arch, dtype, taps, everything, aligned, backward)
        for what, dtype, taps, everything, aligned in wanted
        for backward in (False, True)
    ]
    # Of x alone, and of weight and bias alone.
    if arch in (80, 100):
        for needs in ((True, False), (False, True)):
            names = "x" if needs[0] else "weight and bias"
            cases.append(_case(f"K = 4, of {names}, float32", arch, single, 4, True, True, True, needs))
    return cases


def _case(
    what: str, arch: int, dtype: torch.dtype, taps: int, everything: bool, aligned: bool, backward: bool,
    needs: tuple[bool, bool] = (True, True),
) -> Case:  # fmt: skip
    """A launch on that chip; `needs` are the gradients of x and state, and those of weight and bias."""
    # Three channels more than the width: then no row starts where a vector could be loaded.
    width, extra = (2048, 0) if aligned else (2047, 4)

    def along(length: int) -> Tensor:
        return torch.empty(2, length, 3, width + extra, dtype=dtype, device="meta")[..., :width]

    x, after = along(300), along(taps - 1)
    weight = torch.empty(width, taps, dtype=dtype, device="meta")
    kinship = torch.empty(2, 300, 1, dtype=torch.uint8, device="meta")
    tensors: dict[str, Tensor | None] = {
        "x": x, "weight": weight, "bias": weight[:, 0].contiguous() if everything else None,
        "state": after if everything else None, "kinship": kinship if everything else None,
    }  # fmt: skip
    kept = after if everything else None
    if backward:
        tensors |= {"grad": x, "grad_after": kept}
        tensors |= {"dx": x, "dstate": kept} if needs[0] else {"dx": None, "dstate": None}
    else:
        tensors |= {"y": x, "after": kept}
    sums = (needs[1], needs[1] and everything)
    call = kernels._prepare(tensors, 1, True, divmod(arch, 10), backward=backward, sums=sums)
    partial = torch.empty(call.blocks, taps + 1, width, device="meta") if needs[1] else None
    kernel = kernels.backward if backward else kernels.forward
    return Case(
        kernel, what, arch, call.arguments | tensors | {"partial": partial}, aligned, call.config.warps
    )
