"""short_conv along the tokens: its rungs, and what one would use without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from t2lib.bench._case import BACKWARD, BEST, Bar, Draw, Peer, Setting, missing, normal, on_cuda, optional
from t2lib.ops import short_conv
from t2lib.ops.short_conv import cost

NAME = "short_conv"
GROWTH = {"T": "tokens", "K": "taps", "d": "width"}
BARS = (
    Bar("conv1d", BEST, at_least=1),
    Bar("conv1d", BEST, at_least=1, of=BACKWARD),
    *on_cuda("shifts and products, compiled"),
)


@dataclass(frozen=True)
class Shape:
    batch: int = 1
    tokens: int = 2048
    width: int = 512
    taps: int = 4


ON_CUDA = Shape(tokens=16384, width=2048)


def inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """Entries (B, T, d) and taps (d, K)."""
    return draw((shape.batch, shape.tokens, shape.width), (shape.width, shape.taps))


def call(shape: Shape, rung: str) -> Callable[..., Any]:
    return partial(short_conv, axis=1, rung=rung)


def bytes_moved(shape: Shape, itemsize: int, backward: bool) -> int:
    """Entries in and out; backward also entries and dy in, dx out."""
    entries = shape.batch * shape.tokens
    once = cost.forward_bytes(shape.width, shape.taps, itemsize=itemsize, entries=entries)
    return once + (3 * state_bytes(shape, itemsize) if backward else 0)


def flops(shape: Shape) -> int:
    return cost.forward_flops(shape.width, shape.taps, entries=shape.batch * shape.tokens)


def state_bytes(shape: Shape, itemsize: int) -> int:
    return shape.batch * shape.tokens * shape.width * itemsize


def peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    return {
        "numba, loops": missing("numba") or Peer(_numba_loops(), "numpy"),
        "flash-linear-attention": missing("fla", setting) or Peer(_fla()),
        "NumPy, windows and einsum": Peer(_windows, "numpy"),
        "conv1d": Peer(_conv1d),
        "shifts and products": Peer(_shifts),
        "shifts and products, compiled": Peer(_shifts, compiled=True),
    }


def _windows(x: Any, weight: Any) -> Any:
    taps = weight.shape[1]
    padded = np.pad(x, ((0, 0), (taps - 1, 0), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=1)
    return np.einsum("btdk,dk->btd", views, weight)


def _conv1d(x: Any, weight: Any) -> Any:
    """torch's convolution, one group a channel; it wants the channels before the tokens."""
    import torch

    width, taps = weight.shape
    channels_first = x.transpose(1, 2)
    y = torch.nn.functional.conv1d(channels_first, weight[:, None], padding=taps - 1, groups=width)
    return y[..., : x.shape[1]].transpose(1, 2)


def _shifts(x: Any, weight: Any) -> Any:
    import torch

    taps, length = weight.shape[1], x.shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, taps - 1, 0))
    total = padded[:, :length] * weight[:, 0]
    for tap in range(1, taps):
        total = total + padded[:, tap : tap + length] * weight[:, tap]
    return total


def _fla() -> Callable[..., Any]:
    package: Any = optional("fla.modules.causal_conv1d") or optional("fla.modules.convolution")
    return lambda x, weight: package.causal_conv1d(x, weight)[0]


def _numba_loops() -> Callable[..., Any]:
    """The definition as scalar loops, compiled by numba."""
    numba: Any = optional("numba")

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def loops(x: Any, weight: Any) -> Any:
        batch, length, width = x.shape
        taps = weight.shape[1]
        # A tap of all channels in one row, so that the inner loop runs along memory.
        rows = np.ascontiguousarray(weight.T)
        y = np.zeros_like(x)
        for b in range(batch):
            for t in range(length):
                for tap in range(max(0, taps - 1 - t), taps):
                    for c in range(width):
                        y[b, t, c] += rows[tap, c] * x[b, t - (taps - 1 - tap), c]
        return y

    return loops  # type: ignore[no-any-return]
