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

    Every step is differentiated, so the gradient is that of the iteration as it ran, not of its limit.
    """
    M = _widened(logits)
    if eps == 0:
        for _ in range(iterations):
            M = torch.log_softmax(torch.log_softmax(M, -2), -1)
        return M.exp().to(logits.dtype)
    M = torch.softmax(M, -2) + eps
    for step in range(iterations):
        if step > 0:
            M = M / (M.sum(-2, keepdim=True) + eps)
        M = M / (M.sum(-1, keepdim=True) + eps)
    return M.to(logits.dtype)


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
