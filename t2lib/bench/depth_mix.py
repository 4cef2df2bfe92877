"""depth_mix with one weight a state: its rungs, and what one would use without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2lib.bench._case import BACKWARD, BEST, Bar, Draw, Peer, Setting, missing, normal, on_cuda, optional
from t2lib.ops import depth_mix
from t2lib.ops.depth_mix import cost

NAME = "depth_mix"
GROWTH = {"T": "tokens", "N": "states", "d": "width"}
BARS = (
    Bar(BEST, "tensordot, stack given", at_most=1.2),
    Bar("stack and einsum", BEST, at_least=1),
    Bar("stack and einsum", BEST, at_least=1, of=BACKWARD),
    *on_cuda("sum of products, compiled"),
)


@dataclass(frozen=True)
class Shape:
    tokens: int = 2048
    width: int = 512
    states: int = 24


ON_CUDA = Shape(tokens=16384, width=2048)


def inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """N states (T, d), then the weights (N,)."""
    return draw(*[(shape.tokens, shape.width)] * shape.states, (shape.states,))


def call(shape: Shape, rung: str) -> Callable[..., Any]:
    return lambda *given: depth_mix(given[:-1], given[-1], rung=rung)


def bytes_moved(shape: Shape, itemsize: int, backward: bool) -> int:
    """N states in, the sum out; backward also the N states and dz in, N gradients out."""
    once = cost.forward_bytes(shape.states, shape.width, itemsize=itemsize, tokens=shape.tokens)
    again = 2 * shape.states + 1 if backward else 0
    return once + again * state_bytes(shape, itemsize)


def flops(shape: Shape) -> int:
    return cost.forward_flops(shape.states, shape.width, tokens=shape.tokens)


def state_bytes(shape: Shape, itemsize: int) -> int:
    return shape.tokens * shape.width * itemsize


def peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    """With a stack given, the states lie in one array already, so copying them there is not counted."""
    return {
        "numba, loops": missing("numba") or Peer(_numba_loops(), "numpy", prepare=_stacked),
        "NumPy tensordot, stack given": Peer(_numpy_tensordot, "numpy", prepare=_stacked),
        "tensordot, stack given": Peer(_tensordot, prepare=_stacked),
        "stack and einsum": Peer(_stack_and_einsum),
        "sum of products": Peer(_sum_of_products),
        # The operator's own compiled rung takes the states in groups; this is the sum as one writes it.
        "sum of products, compiled": Peer(_sum_of_products, compiled=True),
    }


def _stacked(*given: Any) -> tuple[Any, ...]:
    if isinstance(given[0], np.ndarray):
        return np.stack(given[:-1]), given[-1]
    import torch

    return torch.stack(given[:-1]), given[-1]


def _numpy_tensordot(stack: Any, weights: Any) -> Any:
    return np.tensordot(weights, stack, axes=1)


def _tensordot(stack: Any, weights: Any) -> Any:
    import torch

    return torch.tensordot(weights, stack, dims=1)


def _stack_and_einsum(*given: Any) -> Any:
    import torch

    return torch.einsum("n,ntd->td", given[-1], torch.stack(given[:-1]))


def _sum_of_products(*given: Any) -> Any:
    *states, weights = given
    total = weights[0] * states[0]
    for weight, state in zip(weights[1:], states[1:], strict=True):
        total = total + weight * state
    return total


def _numba_loops() -> Callable[..., Any]:
    """The definition as scalar loops, compiled by numba."""
    numba: Any = optional("numba")

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def loops(stack: Any, weights: Any) -> Any:
        states, tokens, width = stack.shape
        z = np.zeros((tokens, width), np.float32)
        for t in range(tokens):
            for n in range(states):
                weight = weights[n]
                for c in range(width):
                    z[t, c] += weight * stack[n, t, c]
        return z

    return loops  # type: ignore[no-any-return]
