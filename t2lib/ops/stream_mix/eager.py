"""PyTorch: small matrix products over the streams, differentiable any number of times, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def stream_mix(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None
) -> Any:
    """The same as in `loops`; arguments as the contract passes them."""
    state = _widened(streams)
    if mix is not None:
        state = _widened(mix) @ state
    if write is not None and branch is not None:
        state = torch.addcmul(state, _widened(write)[..., :, None], _widened(branch)[..., None, :])
    new = state.to(streams.dtype)
    if read is None:
        return new
    h = (_widened(read)[..., None, :] @ state)[..., 0, :].to(streams.dtype)
    return h if mix is None and write is None else (new, h)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The same as in `loops`, on all matrices at once: on logarithms for eps = 0.

    Every step is differentiated, so the gradient is that of the iteration as it ran, not of its limit. In a
    graph that is being compiled the iteration is one operator: dozens of steps on matrices of a few numbers
    would take the compiler minutes a call.
    """
    if torch.compiler.is_compiling():
        whole: Tensor = _whole(_widened(logits), iterations, eps)
        return whole.to(logits.dtype)
    return steps(logits, iterations, eps)


def steps(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The iteration, step by step."""
    return _trace(_widened(logits), iterations, eps)[-1].to(logits.dtype)


def _trace(logits: Tensor, iterations: int, eps: float) -> list[Tensor]:
    """What every step gives: logarithms for eps = 0, and their exponential last; else matrices."""
    if eps == 0:
        found = [torch.log_softmax(logits, -2)]
        for step in range(1, 2 * iterations):
            found.append(torch.log_softmax(found[-1], -1 if step % 2 else -2))
        return [*found, found[-1].exp()]
    found = [torch.softmax(logits, -2) + eps]
    for step in range(1, 2 * iterations):
        found.append(found[-1] / (found[-1].sum(-1 if step % 2 else -2, keepdim=True) + eps))
    return found


@torch.library.custom_op("t2lib::sinkhorn", mutates_args=())
def _whole(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return _trace(logits, iterations, eps)[-1]


@torch.library.custom_op("t2lib::sinkhorn_backward", mutates_args=())
def _whole_backward(logits: Tensor, upstream: Tensor, iterations: int, eps: float) -> Tensor:
    """The steps again, then back through them one by one."""
    found = _trace(logits, iterations, eps)
    gradient = upstream * found[-1] if eps == 0 else upstream
    for step in reversed(range(2 * iterations)):
        axis = -1 if step % 2 else -2
        if eps == 0:
            gradient = gradient - found[step].exp() * gradient.sum(axis, keepdim=True)
        elif step == 0:
            unit = found[0] - eps
            gradient = unit * (gradient - (gradient * unit).sum(axis, keepdim=True))
        else:
            sums = found[step - 1].sum(axis, keepdim=True) + eps
            gradient = (gradient - (gradient * found[step]).sum(axis, keepdim=True)) / sums
    return gradient


def _differentiate(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
    (logits,) = ctx.saved_tensors
    return _whole_backward(logits, upstream, ctx.iterations, ctx.eps), None, None


def _keep(ctx: Any, inputs: tuple[Tensor, int, float], output: Tensor) -> None:
    logits, ctx.iterations, ctx.eps = inputs
    ctx.save_for_backward(logits)


_whole.register_fake(lambda logits, iterations, eps: torch.empty_like(logits))
_whole_backward.register_fake(lambda logits, upstream, iterations, eps: torch.empty_like(logits))
_whole.register_autograd(_differentiate, setup_context=_keep)


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
