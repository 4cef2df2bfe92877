"""The rungs of short_swa and what one would use without them, at one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from t2lib.ops import _registry, short_swa

# What the ratios below the table compare: (the slower, the faster, how many times at least).
BARS = (
    ("NumPy loop over positions", "arrays", 5.0),
    ("SDPA, band mask", "eager", 5.0),
    ("full T x T mask", "eager", 15.0),
)


@dataclass(frozen=True)
class Shape:
    batch: int = 1
    tokens: int = 2048
    width: int = 512
    heads: int = 8
    window: int = 64
    device: str = "cpu"


def rungs(shape: Shape, names: list[str]) -> dict[str, Callable[[], Any]]:
    """The rungs that run here, each as a call without arguments on the same numbers."""
    arrays = _inputs(shape)
    read = partial(short_swa, window=shape.window, axis=1)
    cases: dict[str, Callable[[], Any]] = {}
    for rung, runs_here, _ in _registry.ladder("short_swa"):
        if rung not in names or not runs_here or rung == "loops":
            continue
        if rung in _registry.NUMPY_RUNGS:
            cases[rung] = partial(read, *arrays, rung=rung)
        elif rung != "kernels" or shape.device == "cuda":
            cases[rung] = _synchronised(partial(read, *_tensors(shape), rung=rung), shape.device)
    return cases


def peers(shape: Shape, *, compiled: bool) -> dict[str, Callable[[], Any]]:
    """What one would write or call instead. All see the same window and return (B, T, H, D)."""
    cases: dict[str, Callable[[], Any]] = {
        "NumPy loop over positions": partial(_loop_over_positions, _inputs(shape), shape.window),
        "the same, all heads at once": partial(_loop_with_all_heads, _inputs(shape), shape.window),
    }
    if not _registry.installed("torch"):
        return cases
    import torch

    # Heads before tokens: the layout that the peers want.
    q, k, v = (x.transpose(1, 2) for x in _tensors(shape))
    i = torch.arange(shape.tokens, device=shape.device)
    band = (i <= i[:, None]) & (i[:, None] - i < shape.window)

    def sdpa() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=band).transpose(1, 2)

    def full() -> Any:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return (torch.softmax(scores.masked_fill(~band, float("-inf")), -1) @ v).transpose(1, 2)

    torch_peers = {"SDPA, band mask": sdpa, "full T x T mask": full}
    if compiled and _registry.ladder("short_swa")[3].runs_here:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (j <= i) & (i - j < shape.window)

        # The better of its two natural block sizes on a CPU; a GPU wants its default of 128.
        size = 64 if shape.device == "cpu" else 128
        length = shape.tokens
        block_mask = create_block_mask(
            mask_mod, None, None, length, length, device=shape.device, BLOCK_SIZE=size
        )
        attention = torch.compile(flex_attention, dynamic=False)
        torch_peers["FlexAttention, compiled"] = lambda: attention(q, k, v, block_mask=block_mask).transpose(
            1, 2
        )
    return cases | {name: _synchronised(f, shape.device) for name, f in torch_peers.items()}


def _loop_over_positions(qkv: list[Any], window: int) -> Any:
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


def _loop_with_all_heads(qkv: list[Any], window: int) -> Any:
    """One position after another, all its heads at once: the same loop, written with more care."""
    q, k, v = qkv
    z = np.empty_like(q)
    scale = np.float32(q.shape[-1] ** -0.5)
    for t in range(q.shape[1]):
        keys, values = k[:, max(0, t - window + 1) : t + 1], v[:, max(0, t - window + 1) : t + 1]
        scores = np.einsum("bhd,bjhd->bhj", q[:, t], keys) * scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        z[:, t] = np.einsum("bhj,bjhd->bhd", weights, values)
    return z


def _inputs(shape: Shape) -> list[Any]:
    generator = np.random.default_rng(0)
    sizes = (shape.batch, shape.tokens, shape.heads, shape.width // shape.heads)
    return [generator.standard_normal(sizes, dtype=np.float32) for _ in range(3)]


def _tensors(shape: Shape) -> list[Any]:
    import torch

    return [torch.from_numpy(x).to(shape.device) for x in _inputs(shape)]


def _synchronised(function: Callable[[], Any], device: str) -> Callable[[], Any]:
    if device != "cuda":
        return function
    import torch

    def run() -> Any:
        result = function()
        torch.cuda.synchronize()
        return result

    return run
