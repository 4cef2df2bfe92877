"""What is checked of the kernels of an operator: examples to interpret, builds for chips that are not here.

Each operator with kernels lists its own in `_cases_<operator>.py`, from where both its tests and
`python -m t2lib.verify kernels` take them:

    def examples() -> list[Example]          # small: a few programs each; run in the interpreter
    def builds(arch: int) -> list[Case]      # every kernel as launched on sm_<arch>; _build.Case
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Root-mean-square errors relative to the result of `eager` in float64.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3}

# Bytes that the launches of a forward and of a backward pass touch, for numbers of so many bytes.
Stated = Callable[[int], tuple[int, int]]


class Example(NamedTuple):
    """A call to be compared with `eager`: the result and the gradient of every input.

    `inputs` are float64 tensors by name; `call(rung, inputs)` returns a tensor or a tuple of tensors, all of
    which are differentiated; other tensors (documents, say) it holds itself. `stated` gives the bytes, if
    they are stated for this call.
    """

    what: str
    inputs: dict[str, Tensor]
    call: Callable[[str, dict[str, Tensor]], Any]
    stated: Stated | None = None


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Passes(NamedTuple):
    """Results and gradients by name, and what ran around each of the two passes."""

    arrays: dict[str, Tensor]
    forward: Any = None
    backward: Any = None


def run(example: Example, rung: str, dtype: torch.dtype, around: Callable[[], Any] | None = None) -> Passes:
    """The results and every gradient on one rung; each pass inside a context `around()`, if given."""
    enter = contextlib.nullcontext if around is None else around
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in example.inputs.items()}
    with enter() as forward:
        results = example.call(rung, leaves)
    results = results if isinstance(results, tuple) else (results,)
    upstream = [normal(*x.shape, seed=90 + place, dtype=x.dtype) for place, x in enumerate(results)]
    with enter() as backward:
        gradients = torch.autograd.grad(results, list(leaves.values()), upstream)
    names = ["result"] if len(results) == 1 else [f"result {place}" for place in range(len(results))]
    arrays = {name: x.detach() for name, x in zip(names, results, strict=True)}
    arrays |= {f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)}
    return Passes(arrays, forward, backward)


def errors(example: Example, dtype: torch.dtype) -> dict[str, float]:
    """Of the kernels in `dtype` against `eager` in float64, same numbers; infinite where NaNs differ."""
    return _compared(example, dtype)[0]


def measure(example: Example, dtype: torch.dtype) -> tuple[dict[str, float], int, int]:
    """The same in the interpreter, with the bytes that the forward and the backward launches touch."""
    from t2lib.ops._touched import touched

    found, passes = _compared(example, dtype, touched)
    return found, passes.forward.distinct, passes.backward.distinct


def _compared(
    example: Example, dtype: torch.dtype, around: Callable[[], Any] | None = None
) -> tuple[dict[str, float], Passes]:
    rounded = example._replace(inputs={name: x.to(dtype).double() for name, x in example.inputs.items()})
    want = run(rounded, "eager", torch.float64).arrays
    passes = run(rounded, "kernels", dtype, around)
    return {name: error(passes.arrays[name], truth) for name, truth in want.items()}, passes


def error(got: Tensor, truth: Tensor) -> float:
    """The root-mean-square error relative to the size of the truth, or to 0.1 if it is smaller."""
    value = got.double()
    if value.shape != truth.shape or not torch.equal(value.isnan(), truth.isnan()):
        return float("inf")
    if truth.numel() == 0:
        return 0.0
    size = truth.nan_to_num().pow(2).mean().sqrt()
    return float((value - truth).nan_to_num().pow(2).mean().sqrt() / size.clamp(min=0.1))
