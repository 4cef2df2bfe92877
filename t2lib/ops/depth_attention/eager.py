"""PyTorch: the blocks of `arrays`, differentiable, on any device.

The backward pass is written out, as in `depth_mix`. It keeps the states themselves, and of every state and
token its score and its norm; the softmax is made again from the scores. First order only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from t2lib.ops._pages import empty
from t2lib.ops.depth_mix import eager as mix
from t2lib.ops.depth_mix.eager import blocks, weight_of, widened


def depth_attention(
    states: tuple[Tensor, ...],
    pseudo_query: Tensor | None,
    gain: Tensor | None,
    query: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The same reads as in `loops`; arguments as the contract passes them."""
    asks, own = folded(pseudo_query, gain), folded(query, gain)
    if torch.compiler.is_compiling():
        # The compiler fuses the plain form by itself, forward and backward.
        return plain(states, asks, own, eps)
    z, lse = _Read.apply(eps, asks, own, *states)  # type: ignore[no-untyped-call]
    return z, lse


def merge(reads: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """A softmax over the log-sum-exps weights the reads of the parts."""
    stacked = torch.stack(lses, -1)
    weights = torch.softmax(stacked, -1)[..., None, :]
    return mix.depth_mix(reads, None, weights, outputs=1)[0], torch.logsumexp(stacked, -1)


def folded(query: Tensor | None, gain: Tensor | None) -> Tensor | None:
    """Only the product of a query and the gain matters."""
    if query is None:
        return None
    if gain is None:
        return widened(query)
    return widened(query) * widened(gain).reshape(len(gain), *(1,) * (query.ndim - 2), -1)


def plain(
    states: tuple[Tensor, ...], asks: Tensor | None, own: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The read written as one expression, for a compiler to fuse."""
    near = [widened(state) for state in states]
    norms = [torch.rsqrt(block.square().mean(-1) + eps) for block in near]
    given = own if asks is None else asks
    reads, lses = [], []
    for i in range(0 if given is None else len(given)):
        parts = [x[i] for x in (asks, own) if x is not None]
        ask = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        scores = [(block * ask).sum(-1) * norm for block, norm in zip(near, norms, strict=True)]
        lse = torch.logsumexp(torch.stack(scores, -1), -1)
        z = torch.exp(scores[0] - lse)[..., None] * near[0]
        for score, block in zip(scores[1:], near[1:], strict=True):
            z = z + torch.exp(score - lse)[..., None] * block
        reads.append(z)
        lses.append(lse)
    return torch.stack(reads).to(states[0].dtype), torch.stack(lses)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, eps: float, asks: Tensor | None, own: Tensor | None, *states: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = own if asks is None else asks
        like, queries = states[0], 0 if given is None else len(given)
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        z = empty(like, (queries, *like.shape))
        scores = like.new_empty((*like.shape[:-1], queries, len(states)), dtype=dtype)
        norms = like.new_empty((*like.shape[:-1], len(states)), dtype=dtype)
        for where in blocks(like):
            everywhere = (slice(None), *where)
            near = [state[where] for state in states]
            mine = None if own is None else own[everywhere]
            for j, state in enumerate(near):
                block = widened(state)
                norm = torch.rsqrt(block.square().mean(-1) + eps)
                norms[where][..., j] = norm
                scores[where][..., j] = _dots(block, asks, mine) * norm[..., None]
            z[everywhere] = mix.mix_block(near, None, torch.softmax(scores[where], -1), queries)
        ctx.save_for_backward(asks, own, scores, norms, *states)
        return z, torch.logsumexp(scores, -1).movedim(-1, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        asks, own, all_scores, all_norms, *states = ctx.saved_tensors
        _, need_asks, need_own, *need_states = ctx.needs_input_grad
        d_asks = torch.zeros_like(asks) if need_asks else None
        d_own = torch.zeros_like(own) if need_own else None
        d_states = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if need else None
            for x, need in zip(states, need_states, strict=True)
        ]
        for where in blocks(states[0]):
            everywhere = (slice(None), *where)
            above, scores, norms = widened(dz[everywhere]), all_scores[where], all_norms[where]
            mine = None if own is None else own[everywhere]
            near = [state[where] for state in states]
            weights = torch.softmax(scores, -1)
            d_weights = torch.stack([_each_dot(above, widened(state)) for state in near], -1)
            delta = (weights * d_weights).sum(-1, keepdim=True)
            # The gradient of the log-sum-exp by a score is its weight.
            from_lse = d_lse[everywhere].movedim(0, -1)[..., None]
            d_scores = weights * (d_weights - delta + from_lse)
            # A score is a dot product times a norm, and the norm depends on the state as well.
            d_dots = d_scores * norms[..., None, :]
            shrink = (d_scores * scores).sum(-2) * norms.square() / states[0].shape[-1]
            weight, d_dot = weight_of(None, weights), weight_of(None, d_dots)
            for j, state in enumerate(near):
                block, d_state = widened(state), d_states[j]
                if d_state is not None:
                    total = block * -shrink[..., j, None]
                    for i in range(len(above)):
                        total.addcmul_(above[i], weight(i, j))
                        for ask in (asks, mine):
                            if ask is not None:
                                total.addcmul_(ask[i], d_dot(i, j))
                    d_state[where] = total
                if d_asks is not None:
                    d_asks += d_dots[..., j].reshape(-1, len(above)).mT @ block.reshape(-1, block.shape[-1])
                if d_own is not None:
                    d_own[everywhere] += d_dots[..., j].movedim(-1, 0)[..., None] * block
        return None, d_asks, d_own, *d_states


def _dots(block: Tensor, asks: Tensor | None, mine: Tensor | None) -> Tensor:
    """(..., Q): the dot product of one state of the block with each query."""
    parts = [] if asks is None else [block @ asks.mT]
    if mine is not None:
        parts.append(_each_dot(mine, block))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _each_dot(several: Tensor, block: Tensor) -> Tensor:
    """(..., Q): the dot products of Q arrays (Q, ..., d) with one (..., d), token by token."""
    return torch.stack([(one * block).sum(-1) for one in several], -1)
