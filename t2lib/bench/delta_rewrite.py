"""delta_rewrite with four value channels: its rungs, and what one would use without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2lib.bench._case import BACKWARD, BEST, Bar, Draw, Peer, Setting, missing, normal, on_cuda, optional
from t2lib.ops import delta_rewrite
from t2lib.ops.delta_rewrite import cost

NAME = "delta_rewrite"
GROWTH = {"T": "tokens", "d_v": "channels", "d": "width"}
BARS = (
    Bar("einsum", BEST, at_least=3),
    Bar("einsum", BEST, at_least=3, of=BACKWARD),
    *on_cuda("einsum, compiled"),
)
EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    tokens: int = 2048
    width: int = 1024
    channels: int = 4


ON_CUDA = Shape(tokens=16384, width=2048)


def inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """State (T, d, d_v), direction (T, d), target (T, d_v), gate (T,) between 0 and 2."""
    t, d, d_v = shape.tokens, shape.width, shape.channels
    state, direction, target, gate = draw((t, d, d_v), (t, d), (t, d_v), (t,))
    # In operators that arrays and tensors share.
    return state, direction, target, 1 + gate / (1 + abs(gate))


def call(shape: Shape, rung: str) -> Callable[..., Any]:
    return lambda X, k, v, beta: delta_rewrite(X, k, v, beta, eps=EPS, rung=rung)


def bytes_moved(shape: Shape, itemsize: int, backward: bool) -> int:
    """State and direction in, state out; backward also state, direction and gradient in, gradients out."""
    sizes = (shape.width, shape.channels)
    once = cost.forward_bytes(*sizes, itemsize=itemsize, tokens=shape.tokens)
    return once + (cost.backward_bytes(*sizes, itemsize=itemsize, tokens=shape.tokens) if backward else 0)


def flops(shape: Shape) -> int:
    return cost.forward_flops(shape.width, shape.channels, tokens=shape.tokens)


def state_bytes(shape: Shape, itemsize: int) -> int:
    return shape.tokens * shape.width * shape.channels * itemsize


def peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    found: dict[str, Peer | str] = {
        "numba, loops": missing("numba") or Peer(_numba_loops(), "numpy"),
    }
    found["NumPy einsum"] = Peer(_numpy_einsum, "numpy")
    found["einsum"] = Peer(_einsum)
    found["einsum, compiled"] = Peer(_einsum, compiled=True)
    return found


def _numpy_einsum(X: Any, k: Any, v: Any, beta: Any) -> Any:
    unit = k / np.sqrt((k * k).sum(-1, keepdims=True) + np.float32(EPS**2))
    reading = np.einsum("td,tdv->tv", unit, X)
    return X + np.einsum("td,tv->tdv", unit, beta[:, None] * (v - reading))


def _einsum(X: Any, k: Any, v: Any, beta: Any) -> Any:
    """As one first writes it: normalise, read, correct, write, each an operation of its own."""
    import torch

    unit = k / torch.sqrt(k.square().sum(-1, keepdim=True) + EPS**2)
    reading = torch.einsum("td,tdv->tv", unit, X)
    return X + beta[:, None, None] * torch.einsum("td,tv->tdv", unit, v - reading)


def _numba_loops() -> Callable[..., Any]:
    """The definition as scalar loops, compiled by numba."""
    numba: Any = optional("numba")

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def loops(X: Any, k: Any, v: Any, beta: Any) -> Any:
        tokens, width, channels = X.shape
        result = np.empty_like(X)
        reading = np.empty(channels, np.float32)
        for t in range(tokens):
            square = np.float32(EPS**2)
            reading[:] = 0
            for c in range(width):
                square += k[t, c] * k[t, c]
                for e in range(channels):
                    reading[e] += k[t, c] * X[t, c, e]
            length = np.sqrt(square)
            for e in range(channels):
                reading[e] = beta[t] * (v[t, e] - reading[e] / length) / length
            for c in range(width):
                for e in range(channels):
                    result[t, c, e] = X[t, c, e] + k[t, c] * reading[e]
        return result

    return loops  # type: ignore[no-any-return]
