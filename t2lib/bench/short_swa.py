"""short_swa along the tokens, and how its read along depth grows: rungs, and what one would use instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from t2lib.bench import _short_swa_peers as instead
from t2lib.bench._case import (
    BACKWARD,
    BEST,
    FORWARD,
    Bar,
    Draw,
    Peer,
    Setting,
    missing,
    normal,
    rungs,
)
from t2lib.ops import short_swa
from t2lib.ops.short_swa import cost

NAME = "short_swa"
GROWTH = {"T": "tokens", "L": "layers", "K": "depth_window", "w": "window", "d": "width"}
FLEX, FULL = "FlexAttention, compiled", "full T x T mask, compiled"
# Beside the window of the bench, those at which the kernels have to be ahead of FlexAttention on a GPU.
WINDOWS = (32, 128)
# The depth read has this many layers of the same array: as many numbers as there are along the tokens.
LAYERS = 16
BARS = (
    Bar("NumPy loop over positions", "arrays", at_least=5),
    Bar("SDPA, band mask", "eager", at_least=5),
    Bar("full T x T mask", "eager", at_least=15),
    Bar(FLEX, BEST, at_least=1),
    Bar(FULL, BEST, at_least=1),
    Bar(FLEX, "kernels", at_least=1, of=BACKWARD, on="cuda"),
    *(Bar(f"{FLEX}, w = {w}", f"kernels, w = {w}", at_least=1, of=BACKWARD, on="cuda") for w in WINDOWS),
    *(Bar("compiled", "kernels", at_least=1, of=which, on="cuda") for which in (FORWARD, BACKWARD)),
)


@dataclass(frozen=True)
class Shape:
    batch: int = 1
    tokens: int = 2048
    width: int = 512
    heads: int = 8
    window: int = 64
    layers: int = LAYERS
    depth_window: int = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width; got heads {self.heads}, width {self.width}.")


ON_CUDA = Shape(tokens=16384, width=2048, heads=32)


def inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """q, k and v, (B, T, H, D) each."""
    sizes = (shape.batch, shape.tokens, shape.heads, shape.width // shape.heads)
    return draw(sizes, sizes, sizes)


def call(shape: Shape, rung: str) -> Callable[..., Any]:
    return partial(short_swa, window=shape.window, axis=1, rung=rung)


def depth_inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """q, k and v of all layers, (B, L, T / 16, H, D) each: the depth axis before the tokens."""
    tokens = max(1, shape.tokens // LAYERS)
    sizes = (shape.batch, shape.layers, tokens, shape.heads, shape.width // shape.heads)
    return draw(sizes, sizes, sizes)


def depth_call(shape: Shape, rung: str) -> Callable[..., Any]:
    """The same operator, axis and window alone are others."""
    return partial(short_swa, window=shape.depth_window, axis=1, rung=rung)


# What grows with L and K in place of this module.
GROWING = dict.fromkeys(("L", "K"), SimpleNamespace(NAME=NAME, inputs=depth_inputs, call=depth_call))


def bytes_moved(shape: Shape, itemsize: int, backward: bool) -> int:
    """q, k, v in and z out; backward also q, k, v, z, dz in and dq, dk, dv out."""
    once = cost.forward_bytes(
        shape.tokens, shape.window, shape.width, itemsize=itemsize, block=shape.tokens, sequences=shape.batch
    )
    return once + (2 * once if backward else 0)


def flops(shape: Shape) -> int:
    return cost.forward_flops(
        shape.tokens,
        shape.window,
        shape.width // shape.heads,
        sequences=shape.batch * shape.heads,
    )


def state_bytes(shape: Shape, itemsize: int) -> int:
    return shape.batch * shape.tokens * shape.width * itemsize


def peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    """All see the same window and return (B, T, H, D)."""
    window = shape.window
    found: dict[str, Peer | str] = {
        "numba, loops": missing("numba") or Peer(instead.numba_loops(window), "numpy"),
        "flash-attention": missing("flash_attn", setting) or Peer(instead.flash_attention(window)),
        "flash-linear-attention": missing("fla", setting) or Peer(instead.flash_linear_attention(window)),
        "NumPy loop over positions": Peer(partial(instead.loop_over_positions, window=window), "numpy"),
        "NumPy loop, all heads at once": Peer(partial(instead.loop_with_all_heads, window=window), "numpy"),
        "windows stacked, einsum": Peer(partial(instead.stacked_windows, window=window)),
        "SDPA, band mask": instead.with_band(instead.sdpa, window),
        "full T x T mask": instead.with_band(instead.full_mask, window),
        FULL: instead.with_band(instead.full_mask, window, compiled=True),
        FLEX: _flex(window, setting),
    }
    # All scores take this much; with their gradient, three times as much. The mask is made from integers.
    scores = shape.batch * shape.heads * shape.tokens**2 * setting.itemsize
    if scores > 1 << 31:
        found |= dict.fromkeys(
            ("full T x T mask", FULL), f"its scores alone would take {scores / 1e9:.0f} GB"
        )
    if (mask := 8 * shape.tokens**2) > 1 << 32:
        found["SDPA, band mask"] = f"making its mask would take {mask / 1e9:.0f} GB"
    return found | (_at_other_windows(shape, setting) if setting.device == "cuda" else {})


def _at_other_windows(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    """The kernels and FlexAttention side by side at more windows than that of the bench."""
    found: dict[str, Peer | str] = {}
    why = rungs(NAME, setting)["kernels"]
    for window in WINDOWS:
        found[f"kernels, w = {window}"] = why or Peer(call(replace(shape, window=window), "kernels"))
        found[f"{FLEX}, w = {window}"] = _flex(window, setting)
    return found


def _flex(window: int, setting: Setting) -> Peer | str:
    # It compiles what it is given itself. On a CPU it has no backward pass.
    return rungs(NAME, setting)["compiled"] or Peer(
        instead.flex_attention(window), prepare=instead.heads_first, backward=setting.device != "cpu"
    )
