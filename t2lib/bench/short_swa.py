"""short_swa along the tokens: its rungs, and what one would use without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from t2lib.bench._case import BACKWARD, BEST, Bar, Draw, Peer, Setting, missing, normal, optional
from t2lib.ops import _registry, short_swa
from t2lib.ops.short_swa import cost

NAME = "short_swa"
GROWTH = {"T": "tokens", "w": "window", "d": "width"}
BARS = (
    Bar("NumPy loop over positions", "arrays", at_least=5),
    Bar("SDPA, band mask", "eager", at_least=5),
    Bar("full T x T mask", "eager", at_least=15),
    Bar("FlexAttention, compiled", BEST, at_least=1),
    Bar("FlexAttention, compiled", "kernels", at_least=1, of=BACKWARD, on="cuda"),
    Bar("full T x T mask, compiled", BEST, at_least=1),
)


@dataclass(frozen=True)
class Shape:
    batch: int = 1
    tokens: int = 2048
    width: int = 512
    heads: int = 8
    window: int = 64

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
    numpy_loop, all_heads = (
        partial(f, window=shape.window) for f in (_loop_over_positions, _loop_with_all_heads)
    )
    found: dict[str, Peer | str] = {
        "numba, loops": missing("numba") or Peer(_numba_loops(shape.window), "numpy"),
        "flash-attention": missing("flash_attn", setting) or Peer(_flash_attention(shape.window)),
        "flash-linear-attention": missing("fla", setting) or Peer(_fla(shape.window)),
    }
    found["NumPy loop over positions"] = Peer(numpy_loop, "numpy")
    found["the same, all heads at once"] = Peer(all_heads, "numpy")
    if _registry.installed("torch"):
        found |= _torch_peers(shape, setting)
    return found


def _torch_peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    import torch

    i = torch.arange(shape.tokens, device=setting.device)
    band = (i <= i[:, None]) & (i[:, None] - i < shape.window)

    def sdpa(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=band).transpose(1, 2)

    def full(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return (torch.softmax(scores.masked_fill(~band, float("-inf")), -1) @ v).transpose(1, 2)

    found: dict[str, Peer | str] = {
        "SDPA, band mask": Peer(sdpa, prepare=_heads_first),
        "windows stacked, einsum": Peer(partial(_stacked_windows, window=shape.window)),
    }
    # Its matrix of scores alone takes this much; with its gradient, three times as much.
    scores = shape.batch * shape.heads * shape.tokens**2 * setting.itemsize
    if scores > 1 << 31:
        found["full T x T mask"] = f"its scores alone would take {scores / 1e9:.0f} GB"
    else:
        found["full T x T mask"] = Peer(full, prepare=_heads_first)
    if not setting.compiled or not _registry.ladder(NAME)[3].runs_here:
        return found
    if scores <= 1 << 31:
        compiled = torch.compile(full, dynamic=False)
        found["full T x T mask, compiled"] = Peer(compiled, prepare=_heads_first)
    # On a CPU it has no backward pass.
    flex = Peer(_flex_attention(shape, setting), prepare=_heads_first, backward=setting.device != "cpu")
    found["FlexAttention, compiled"] = flex
    return found


def _heads_first(*qkv: Any) -> tuple[Any, ...]:
    """The layout (B, H, T, D) that these peers want."""
    return tuple(x.transpose(1, 2) for x in qkv)


def _flex_attention(shape: Shape, setting: Setting) -> Callable[..., Any]:
    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (i - j < shape.window)

    @cache
    def prepared() -> tuple[Any, Any]:
        """Made in the first call, which is not timed."""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        # The better of its two natural block sizes on a CPU; a GPU wants its default of 128.
        size, length = 64 if setting.device == "cpu" else 128, shape.tokens
        mask = create_block_mask(mask_mod, None, None, length, length, device=setting.device, BLOCK_SIZE=size)
        return torch.compile(flex_attention, dynamic=False), mask

    def attention(q: Any, k: Any, v: Any) -> Any:
        compiled, mask = prepared()
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return attention


def _flash_attention(window: int) -> Callable[..., Any]:
    package: Any = optional("flash_attn")
    # Its window is the number of keys to the left, oneself not counted.
    return lambda q, k, v: package.flash_attn_func(q, k, v, causal=True, window_size=(window - 1, 0))


def _fla(window: int) -> Callable[..., Any]:
    package: Any = optional("fla.ops.attn")
    return lambda q, k, v: package.parallel_attn(q, k, v, window_size=window)


def _stacked_windows(q: Any, k: Any, v: Any, *, window: int) -> Any:
    """A copy of its window of keys and values beside every query, then two einsums."""
    import torch

    first = torch.arange(q.shape[1], device=q.device)[:, None] - (window - 1)
    seen = first + torch.arange(window, device=q.device)
    keys, values = k[:, seen.clamp(min=0)], v[:, seen.clamp(min=0)]
    scores = torch.einsum("bthd,btwhd->bthw", q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill((seen < 0)[:, None], float("-inf"))
    return torch.einsum("bthw,btwhd->bthd", torch.softmax(scores, -1), values)


def _loop_over_positions(*qkv: Any, window: int) -> Any:
    """One query of one head after another, with products of NumPy inside: what one writes first."""
    q, k, v = (np.moveaxis(x, 1, 2) for x in qkv)
    z = np.empty_like(qkv[0])
    scale = np.float32(q.shape[-1] ** -0.5)
    for b, h, t in np.ndindex(q.shape[:3]):
        seen = slice(max(0, t - window + 1), t + 1)
        scores = k[b, h, seen] @ q[b, h, t] * scale
        weights = np.exp(scores - scores.max())
        z[b, t, h] = weights @ v[b, h, seen] / weights.sum()
    return z


def _loop_with_all_heads(q: Any, k: Any, v: Any, *, window: int) -> Any:
    """One position after another, all its heads at once: the same loop, written with more care."""
    z = np.empty_like(q)
    scale = np.float32(q.shape[-1] ** -0.5)
    for t in range(q.shape[1]):
        keys, values = k[:, max(0, t - window + 1) : t + 1], v[:, max(0, t - window + 1) : t + 1]
        scores = np.einsum("bhd,bjhd->bhj", q[:, t], keys) * scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        z[:, t] = np.einsum("bhj,bjhd->bhd", weights, values)
    return z


def _numba_loops(window: int) -> Callable[..., Any]:
    """The definition as scalar loops, compiled by numba."""
    numba: Any = optional("numba")

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def loops(q: Any, k: Any, v: Any) -> Any:
        z = np.zeros_like(q)
        batch, length, heads, width = q.shape
        scores = np.empty(window, np.float32)
        scale = np.float32(width**-0.5)
        for b in range(batch):
            for h in range(heads):
                for i in range(length):
                    first = max(0, i - window + 1)
                    most = np.float32(-np.inf)
                    for j in range(first, i + 1):
                        score = np.float32(0)
                        for c in range(width):
                            score += q[b, i, h, c] * k[b, j, h, c]
                        scores[j - first] = score * scale
                        most = max(most, scores[j - first])
                    total = np.float32(0)
                    for j in range(first, i + 1):
                        weight = np.exp(scores[j - first] - most)
                        total += weight
                        for c in range(width):
                            z[b, i, h, c] += weight * v[b, j, h, c]
                    for c in range(width):
                        z[b, i, h, c] /= total
        return z

    return loops  # type: ignore[no-any-return]
