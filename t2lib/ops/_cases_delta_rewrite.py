"""What is checked of the kernels of delta_rewrite: examples, and builds for other chips."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from t2lib.ops._build import Case
from t2lib.ops._kernel_cases import Example, normal
from t2lib.ops.delta_rewrite import Rule, cost, delta_rewrite, kernels


def _rewritten(rung: str, inputs: dict[str, Tensor], **options: Any) -> Any:
    compress = inputs.get("compress")
    X, k, v, beta = (inputs[name] for name in ("X", "k", "v", "beta"))
    return delta_rewrite(X, k, v, beta, compress=compress, rung=rung, **options)


def rewritten(
    d: int, d_v: int, leading: tuple[int, ...], *, compress: bool = False, seed: int = 0, **options: Any
) -> Example:
    """A call of delta_rewrite."""
    shapes = {"X": (*leading, d, d_v), "k": (*leading, d), "v": (*leading, d_v), "beta": leading}
    if compress:
        shapes["compress"] = (d, d_v)
    inputs = {name: normal(*shape, seed=seed + place) for place, (name, shape) in enumerate(shapes.items())}
    facts: dict[str, Any] = {
        "tokens": torch.Size(leading).numel(), "erase": options.get("erase", True),
        "parts": options.get("return_parts", False), "compress": compress, "chunk": kernels.CHUNK,
    }  # fmt: skip
    said = [f"{name}={value!r}" for name, value in options.items()] + ["compress"] * compress
    return Example(
        ", ".join([f"d={d}", f"d_v={d_v}", *said]),
        inputs,
        partial(_rewritten, **options),
        lambda itemsize: cost.kernel_bytes(d, d_v, itemsize=itemsize, **facts),
    )


def examples() -> list[Example]:
    """Both guards and none, with and without erase and parts, a compressor, several widths and channels."""
    return [
        rewritten(20, 4, (2, 2)),
        rewritten(600, 4, (2,), guard="kernel", eps=0.1),
        rewritten(20, 3, (3,), guard="none"),
        rewritten(20, 4, (3,), erase=False),
        rewritten(20, 4, (3,), return_parts=True),
        rewritten(20, 2, (3,), return_parts=True, erase=False),
        rewritten(33, 1, (3,)),
        rewritten(16, 8, (2,)),
        rewritten(20, 4, (2, 2), compress=True),
        rewritten(20, 4, (3,), compress=True, erase=False, return_parts=True),
    ]


def arguments(
    kernel: Any, d: int, d_v: int, dtype: torch.dtype, *, aligned: bool, turned: bool, compress: bool
) -> dict[str, Any]:
    """The arguments of a launch of 600 tokens with every gradient but those of the parts."""

    def meta(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(2, 300, *shape, dtype=dtype, device="meta")

    # Three columns more than the width: then no row starts where a vector could be loaded.
    extra = 0 if aligned else 3
    X = meta(d_v, d + extra)[..., :d].mT if turned else meta(d, d_v + extra)[..., :d_v]
    k, small = meta(d + extra)[..., :d], meta(d_v, dtype=torch.float32)
    tensors: dict[str, Tensor | None] = {"X": X, "k": k, "v": meta(d_v), "beta": meta()}
    if kernel is not kernels.forward:
        tensors |= {"d_after": X, "d_read": k if compress else None}
    weights = torch.empty(d, d_v, dtype=dtype, device="meta") if compress else None
    found, _ = kernels._arguments(tensors, weights, Rule(1e-10, True, False), d_v)
    found |= {"after": X, "dX": X, "RESULT_DENSE": 2 if turned else 1}
    found |= {"reading": small, "correction": small, "read": k if compress else None, "dk": k}
    return found | {"dv": small, "dbeta": small, "lengths": small if compress else None, "parts": small}


def builds(arch: int) -> list[Case]:
    """Held and not, both layouts, aligned and unaligned, with and without a compressor."""
    half, single = torch.float16, torch.float32
    forms = [(2048, 4, half, True, False, False), (1024, 8, single, False, False, False)]
    if arch in (75, 90):
        forms += [
            (4096, 4, half, True, True, True),
            (4096, 8, half, True, False, False),
            (768, 1, single, True, False, False),
            (7168, 3, single, False, True, True),
        ]
    # A compressor beside a state that is not dense, most registers of all.
    forms += [(2730, 6, half, False, False, True)] if arch == 75 else []
    forms += [(2048, 4, torch.bfloat16, True, False, False)] if arch == 90 else []
    found = []
    for d, d_v, dtype, aligned, turned, compress in forms:
        what = f"({d}, {d_v}), {str(dtype).removeprefix('torch.')}{', turned' * turned}"
        what += ", compress" * compress
        config = kernels.pick_config(divmod(arch, 10), d, d_v, dense=aligned)
        names = [kernels.forward, kernels.backward, *[kernels.backward_compress] * compress]
        for kernel in names:
            given = arguments(
                kernel, d, d_v, dtype, aligned=aligned, turned=turned, compress=compress
            ) | {"ROWS": config.rows, "HELD": config.held}  # fmt: skip
            found.append(Case(kernel, what, arch, given, aligned, config.warps))
    if arch == 90:
        # For the gradients of targets and gates alone, there is no second pass.
        alone = next(case for case in found if case.kernel is kernels.backward)
        given = alone.arguments | dict.fromkeys(("X", "reading", "correction", "dX", "dk"))
        found.append(alone._replace(what=f"{alone.what}, v and beta alone", arguments=given))
    return found
