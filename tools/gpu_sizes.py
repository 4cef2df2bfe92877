"""The kernels of every operator at the sizes of the bench and in its dtype, against `eager` in float32.

The other checks are of many forms and small; what is only wrong far out in memory or in one of thousands of
programs shows here. Numbers are drawn on the device. A size that its memory has no room for is halved along
the tokens until it has.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from t2lib.bench._case import normal_on
from t2lib.environment import dtype_for
from t2lib.ops import _kernel_cases, _registry, short_swa

# Sizes that the interpreter is done with in seconds, for each bench that knows them.
SMALL = {"tokens": 40, "width": 32, "heads": 2, "window": 6, "states": 5}
# Levels of a decoder of 24 blocks, in sublayers.
DEPTH = {"cuda": (49, 2048, 32, 64, 8), "cpu": (7, 20, 2, 16, 3)}
# Numbers that lie side by side and are looked at together, and tokens below which nothing is halved.
RUN, FEWEST = 1024, 512


class Sized(NamedTuple):
    """A call at a size: `example(tokens)` makes it with so many tokens."""

    what: str
    tokens: int
    example: Callable[[int], _kernel_cases.Example]


def dtype_of_the_bench(device: str) -> torch.dtype:
    """The default of the bench on a GPU; the half precision of the interpreter here."""
    name = dtype_for(torch.cuda.get_device_capability()) if device == "cuda" else "float16"
    return getattr(torch, name)  # type: ignore[no-any-return]


def all_sized(device: str, dtype: torch.dtype) -> Iterator[Sized]:
    """Every operator as its bench calls it, and short_swa along depth: all levels, and the last one alone."""
    draw = normal_on(device, str(dtype).removeprefix("torch."))
    for operator in _registry.OPERATORS:
        bench = importlib.import_module(f"t2lib.bench.{operator}")
        small = {name: size for name, size in SMALL.items() if hasattr(bench.ON_CUDA, name)}
        shape = bench.ON_CUDA if device == "cuda" else replace(bench.ON_CUDA, **small)
        yield Sized(f"{operator}, {shape}", shape.tokens, partial(_of_bench, bench, shape, draw))
    levels, tokens, heads, width, window = DEPTH[device]
    for first in (0, levels - 1):
        what = f"short_swa along depth, {levels} levels from {first}, {tokens} x {heads} x {width}"
        read = partial(_along_depth, levels, first, heads, width, window, draw)
        yield Sized(f"{what}, window {window}", tokens, read)


def _of_bench(bench: Any, shape: Any, draw: Any, tokens: int) -> _kernel_cases.Example:
    at = replace(shape, tokens=tokens)
    given = {f"input {place}": x for place, x in enumerate(bench.inputs(at, draw))}
    return _kernel_cases.Example(bench.NAME, given, lambda rung, x: bench.call(at, rung)(*x.values()))


def _along_depth(
    levels: int, first: int, heads: int, width: int, window: int, draw: Any, tokens: int
) -> _kernel_cases.Example:
    sizes = (tokens, heads, width)
    given = dict(zip("qkv", draw((levels - first, *sizes), *[(levels, *sizes)] * 2), strict=True))

    def call(rung: str, x: dict[str, Tensor]) -> Any:
        return short_swa(*x.values(), window=window, axis=0, query_start=first or None, rung=rung)

    return _kernel_cases.Example("short_swa", given, call)


def errors(sized: Sized, device: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest error of each result and gradient; at fewer tokens if so many have no room."""
    tokens = sized.tokens
    while True:
        try:
            found = compared(sized.example(tokens), device, dtype)
            break
        except torch.OutOfMemoryError:
            if tokens // 2 < FEWEST:
                raise
        # Outside of the handler, which holds on to all that was computed.
        tokens //= 2
        torch.cuda.empty_cache()
    note = "" if tokens == sized.tokens else f", at {tokens} tokens"
    return {name + note: error for name, error in found.items()}


def compared(example: _kernel_cases.Example, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Kernels in `dtype` against `eager` in float32, on the same numbers and upstream gradients."""
    with mock.patch.object(_kernel_cases, "normal", partial(_upstream, device, dtype)):
        want = _kernel_cases.run(example, "eager", torch.float32).arrays
        got = _kernel_cases.run(example, "kernels", dtype).arrays
    # One after the other, and gone then.
    return {name: worst(got.pop(name), want.pop(name)) for name in list(want)}


def _upstream(device: str, rounded: torch.dtype, *shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=rounded).to(dtype)


def worst(got: Tensor, truth: Tensor) -> float:
    """The largest root-mean-square error of neighbours in memory, relative to their size or that of all.

    A mean over millions of numbers would not show one token that is wrong.
    """
    if got.shape != truth.shape:
        return float("inf")
    size = truth.float().square().mean().sqrt().clamp(min=0.1)
    found = [torch.zeros((), device=truth.device)]
    for a, b in zip(_in_runs(got), _in_runs(truth), strict=True):
        near = b.float().square().mean(-1).sqrt().clamp(min=size)
        found.append(((a.float() - b.float()).square().mean(-1).sqrt() / near).max())
    largest = float(torch.stack(found).max())
    return largest if largest == largest else float("inf")


def _in_runs(x: Tensor) -> list[Tensor]:
    """The numbers in rows of RUN, and what is left in a row of its own."""
    flat = x.reshape(-1)
    whole = len(flat) // RUN * RUN
    return [part for part in (flat[:whole].view(-1, RUN), flat[whole:].view(1, -1)) if part.numel()]
