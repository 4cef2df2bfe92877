"""depth_attention by one pseudo-query: its rungs, and what one would use without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2lib.bench._case import BACKWARD, BEST, Bar, Draw, Peer, Setting, missing, normal, on_cuda, optional
from t2lib.ops import depth_attention
from t2lib.ops.depth_attention import cost

NAME = "depth_attention"
GROWTH = {"T": "tokens", "N": "states", "d": "width"}
STACKED = "stack and softmax"
BARS = (
    Bar(STACKED, BEST, at_least=4),
    Bar(STACKED, BEST, at_least=1, of=BACKWARD),
    Bar(BEST, "one state", at_most=1, of="memory"),
    *on_cuda("stack and softmax, compiled"),
)
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    tokens: int = 2048
    width: int = 512
    states: int = 24


ON_CUDA = Shape(tokens=16384, width=2048)


def inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """N states (T, d), then the pseudo-query (d,) and the gain of the keys (d,)."""
    *states, query, gain = draw(*[(shape.tokens, shape.width)] * shape.states, (shape.width,), (shape.width,))
    # Scores of about 1: what a trained query makes of them.
    return (*states, query / shape.width**0.5, 1 + gain / 10)


def call(shape: Shape, rung: str) -> Callable[..., Any]:
    return lambda *given: depth_attention(given[:-2], given[-2], gain=given[-1], eps=EPS, rung=rung)


def bytes_moved(shape: Shape, itemsize: int, backward: bool) -> int:
    """N states in, the read out; backward also the N states and dz in, N gradients out."""
    once = cost.forward_bytes(shape.states, shape.width, itemsize=itemsize, tokens=shape.tokens)
    again = 2 * shape.states + 1 if backward else 0
    return once + again * state_bytes(shape, itemsize)


def flops(shape: Shape) -> int:
    return cost.forward_flops(shape.states, shape.width, tokens=shape.tokens)


def state_bytes(shape: Shape, itemsize: int) -> int:
    return shape.tokens * shape.width * itemsize


def peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    return {
        "numba, loops": missing("numba") or Peer(_numba_loops(), "numpy", prepare=_scaled),
        "flash-linear-attention": missing("fla", setting) or Peer(_fla()),
        # Copying the states to one array is not counted, so that it is compared at its best.
        "Liger-Kernel, stack given": missing("liger_kernel", setting) or Peer(_liger(), prepare=_in_one),
        STACKED: Peer(_stack_and_softmax),
        "SDPA on the stack": Peer(_sdpa),
        "stack and softmax, compiled": Peer(_stack_and_softmax, compiled=True),
    }


def _scaled(*given: Any) -> tuple[Any, ...]:
    return np.stack(given[:-2]), given[-2] * given[-1]


def _in_one(*given: Any) -> tuple[Any, ...]:
    import torch

    return torch.stack(given[:-2]), given[-2], given[-1]


def _stack_and_softmax(*given: Any) -> Any:
    """As one first writes it: stack, normalise the keys, score, softmax, sum."""
    import torch

    *states, query, gain = given
    values = torch.stack(states)
    keys = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPS) * gain
    weights = torch.softmax(torch.einsum("d,ntd->nt", query, keys), 0)
    return torch.einsum("nt,ntd->td", weights, values)


def _sdpa(*given: Any) -> Any:
    """torch's attention with one query a token and the states as its keys."""
    import torch

    *states, query, gain = given
    values = torch.stack(states, -2)
    keys = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + EPS) * gain
    asks = query.expand(len(values), 1, -1)
    return torch.nn.functional.scaled_dot_product_attention(asks, keys, values, scale=1.0)[:, 0]


def _fla() -> Callable[..., Any]:
    package: Any = optional("fla.ops.attnres")
    return lambda *given: package.fused_attnres(given[-2], given[:-2], given[-1], rms_eps=EPS)


def _liger() -> Callable[..., Any]:
    """As of 0.8.5 it takes one tensor (N, B, T, d); its text speaks of a list, on which it raises."""
    package: Any = optional("liger_kernel.transformers.functional")
    return lambda stack, query, gain: package.liger_attn_res(stack[:, None], query, gain, eps=EPS)[0]


def _numba_loops() -> Callable[..., Any]:
    """The definition as scalar loops, compiled by numba."""
    numba: Any = optional("numba")

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def loops(stack: Any, query: Any) -> Any:
        states, tokens, width = stack.shape
        z = np.zeros((tokens, width), np.float32)
        scores = np.empty(states, np.float32)
        for t in range(tokens):
            for n in range(states):
                score = np.float32(0)
                square = np.float32(0)
                for c in range(width):
                    score += query[c] * stack[n, t, c]
                    square += stack[n, t, c] * stack[n, t, c]
                scores[n] = score / np.sqrt(square / width + np.float32(EPS))
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            for n in range(states):
                weight = weights[n]
                for c in range(width):
                    z[t, c] += weight * stack[n, t, c]
        return z

    return loops  # type: ignore[no-any-return]
