"""PyTorch: the blocks of `arrays`, differentiable, on any device.

Left to itself, autograd would walk the whole list once for every state and keep a widened copy of each one
in half precision. The backward pass here is written out: it keeps the states themselves, reads each once
more, and makes the gradient of a state and of its weights in the same visit. First order only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from t2lib.ops._pages import empty
from t2lib.ops._rows import Block, row_blocks

Weight = Callable[[int, int], Tensor]

# Bytes of a block in the dtype of the sums, measured: smaller ones fit the cache better, but every call costs
# microseconds before it computes.
BLOCK = 1 << 19


def depth_mix(
    states: tuple[Tensor, ...], weights: Tensor | None, token_weights: Tensor | None, *, outputs: int
) -> Tensor:
    """The same sums as in `loops`; arguments as the contract passes them."""
    if torch.compiler.is_compiling():
        # The compiler fuses the plain form by itself, forward and backward.
        return plain(states, weights, token_weights, outputs=outputs).to(states[0].dtype)
    mixed: Tensor = _Mix.apply(outputs, weights, token_weights, *states)  # type: ignore[no-untyped-call]
    return mixed


def plain(
    states: tuple[Tensor, ...], weights: Tensor | None, token_weights: Tensor | None, *, outputs: int
) -> Tensor:
    """The sums written as one expression, for a compiler to fuse, in the dtype of the sums."""
    weight = weight_of(_maybe(weights), _maybe(token_weights))
    sums = []
    for output in range(outputs):
        total = weight(output, 0) * widened(states[0])
        for j, state in enumerate(states[1:], 1):
            total = total + weight(output, j) * widened(state)
        sums.append(total)
    return sums[0][None] if outputs == 1 else torch.stack(sums)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: int, weights: Tensor | None, token_weights: Tensor | None, *states: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, token_weights, *states)
        static, mine = _maybe(weights), _maybe(token_weights)
        like = states[0]
        z = empty(like, (outputs, *like.shape))
        for where in blocks(like):
            rows = None if mine is None else mine[where]
            z[(slice(None), *where)] = mix_block([state[where] for state in states], static, rows, outputs)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        weights, token_weights, *states = ctx.saved_tensors
        _, need_static, need_mine, *need_states = ctx.needs_input_grad
        static, mine = _maybe(weights), _maybe(token_weights)
        d_static = torch.zeros_like(static) if static is not None and need_static else None
        d_mine = torch.empty_like(mine) if mine is not None and need_mine else None
        d_states = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if need else None
            for x, need in zip(states, need_states, strict=True)
        ]
        for where in blocks(states[0]):
            above = widened(dz[(slice(None), *where)])
            weight = weight_of(static, None if mine is None else mine[where])
            for j, state in enumerate(states):
                d_state = d_states[j]
                if d_state is not None:
                    d_state[where] = _pull(above, weight, j)
                if d_static is not None or d_mine is not None:
                    block = widened(state[where])
                    for output, upstream in enumerate(above):
                        product = upstream * block
                        if d_mine is not None:
                            d_mine[where][..., output, j] = product.sum(-1)
                        if d_static is not None:
                            d_static[output, j] += product.sum_to_size(d_static.shape[2:])
        return (
            None,
            None if d_static is None else d_static.to(weights.dtype),
            None if d_mine is None else d_mine.to(token_weights.dtype),
            *d_states,
        )


def mix_block(states: list[Tensor], static: Tensor | None, rows: Tensor | None, outputs: int) -> Tensor:
    """The sums of one block of tokens, (C, ..., d) in the dtype of the sums."""
    dtype = torch.float64 if states[0].dtype == torch.float64 else torch.float32
    total = states[0].new_empty((outputs, *states[0].shape), dtype=dtype)
    sums, weight = total.unbind(), weight_of(static, rows)
    for j, state in enumerate(states):
        block = widened(state)
        for output, one in enumerate(sums):
            if j == 0:
                torch.mul(block, weight(output, j), out=one)
            else:
                one.addcmul_(block, weight(output, j))
    return total


def _pull(above: Tensor, weight: Weight, j: int) -> Tensor:
    """The gradient of one state: what each output passes down, by the weight it gave the state."""
    total = above[0] * weight(0, j)
    for output in range(1, len(above)):
        total.addcmul_(above[output], weight(output, j))
    return total


def weight_of(static: Tensor | None, rows: Tensor | None) -> Weight:
    """A function from an output and a state to the weight, in a shape that spreads over (..., d)."""
    fixed = [] if static is None else [one.unbind() for one in static.unbind()]
    own = [] if rows is None else [one[..., None].unbind(-2) for one in rows.unbind(-2)]
    if rows is None:
        return lambda output, j: fixed[output][j]
    if static is None:
        return lambda output, j: own[output][j]
    # Made when it is needed: with a weight a channel it is as large as a state.
    return lambda output, j: fixed[output][j] + own[output][j]


def blocks(like: Tensor) -> Iterator[Block]:
    """Blocks of tokens that stay in the cache of a CPU; on other devices, all tokens at once."""
    if like.device.type != "cpu":
        return iter(((...,),))
    return row_blocks(tuple(like.shape), max(4, like.element_size()), BLOCK)


def widened(x: Tensor) -> Tensor:
    """In the dtype of the sums."""
    return x if x.dtype == torch.float64 else x.float()


def _maybe(x: Tensor | None) -> Tensor | None:
    return None if x is None else widened(x)
