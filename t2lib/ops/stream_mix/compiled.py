"""torch.compile: mix, write and read as sums of products, one loop that loads the state once.

The matrices are too small for a matrix product to pay (n is 4, say), and a product would keep the compiler
from joining the three.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.stream_mix import eager


def stream_mix(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None
) -> Any:
    """The same as in `loops`, compiled on first use; arguments as the contract passes them."""
    return run(_stream_mix, streams, mix, write, branch, read)


def _stream_mix(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None
) -> Any:
    wide = torch.float64 if streams.dtype == torch.float64 else torch.float32
    state = streams.to(wide)
    if mix is not None:
        state = (mix.to(wide)[..., None] * state[..., None, :, :]).sum(-2)
    if write is not None and branch is not None:
        state = state + write.to(wide)[..., :, None] * branch.to(wide)[..., None, :]
    if read is None:
        return state.to(streams.dtype)
    h = (read.to(wide)[..., :, None] * state).sum(-2).to(streams.dtype)
    return h if mix is None and write is None else (state.to(streams.dtype), h)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The same as in `eager`, with its steps fused; a number of iterations compiles once."""
    result: Tensor = run(eager.steps, logits, iterations, eps)
    return result
