"""What one would use in place of short_swa: functions of q, k and v (B, T, H, D), each made for a window."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from t2lib.bench._case import Peer, optional


def heads_first(*qkv: Any) -> tuple[Any, ...]:
    """The layout (B, H, T, D) that torch's own attention wants."""
    return tuple(x.transpose(1, 2) for x in qkv)


def with_band(attention: Callable[..., Any], window: int, **options: Any) -> Peer:
    """A function of q, k, v, heads first, and the mask of the band, which is made before the clock runs."""
    band: list[Any] = []

    def prepare(*qkv: Any) -> tuple[Any, ...]:
        import torch

        i = torch.arange(qkv[0].shape[1], device=qkv[0].device)
        band[:] = [(i <= i[:, None]) & (i[:, None] - i < window)]
        return heads_first(*qkv)

    return Peer(lambda q, k, v: attention(q, k, v, band[0]), prepare=prepare, **options)


def sdpa(q: Any, k: Any, v: Any, band: Any) -> Any:
    """torch's attention with the band as its mask."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=band).transpose(1, 2)


def full_mask(q: Any, k: Any, v: Any, band: Any) -> Any:
    """As one first writes it: all scores, then a mask."""
    import torch

    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (torch.softmax(scores.masked_fill(~band, float("-inf")), -1) @ v).transpose(1, 2)


def flex_attention(window: int) -> Callable[..., Any]:
    """FlexAttention, compiled, with its mask in blocks; heads first."""

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (i - j < window)

    @cache
    def prepared(length: int, device: Any) -> tuple[Any, Any]:
        """Made in the first call, which is not timed."""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        # The better of its two natural block sizes on a CPU; a GPU wants its default of 128.
        size = 64 if device.type == "cpu" else 128
        mask = create_block_mask(mask_mod, None, None, length, length, device=device, BLOCK_SIZE=size)
        return torch.compile(flex_attention, dynamic=False), mask

    def attention(q: Any, k: Any, v: Any) -> Any:
        compiled, mask = prepared(q.shape[-2], q.device)
        return compiled(q, k, v, block_mask=mask).transpose(1, 2)

    return attention


def flash_attention(window: int) -> Callable[..., Any]:
    package: Any = optional("flash_attn")
    # Its window is the number of keys to the left, oneself not counted.
    return lambda q, k, v: package.flash_attn_func(q, k, v, causal=True, window_size=(window - 1, 0))


def flash_linear_attention(window: int) -> Callable[..., Any]:
    package: Any = optional("fla.ops.attn")
    return lambda q, k, v: package.parallel_attn(q, k, v, window_size=window)


def stacked_windows(q: Any, k: Any, v: Any, *, window: int) -> Any:
    """A copy of its window of keys and values beside every query, then two einsums."""
    import torch

    first = torch.arange(q.shape[1], device=q.device)[:, None] - (window - 1)
    seen = first + torch.arange(window, device=q.device)
    keys, values = k[:, seen.clamp(min=0)], v[:, seen.clamp(min=0)]
    scores = torch.einsum("bthd,btwhd->bthw", q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill((seen < 0)[:, None], float("-inf"))
    return torch.einsum("bthw,btwhd->bthd", torch.softmax(scores, -1), values)


def loop_over_positions(*qkv: Any, window: int) -> Any:
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


def loop_with_all_heads(q: Any, k: Any, v: Any, *, window: int) -> Any:
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


def numba_loops(window: int) -> Callable[..., Any]:
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
