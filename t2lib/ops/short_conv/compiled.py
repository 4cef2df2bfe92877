"""torch.compile of `eager`, whose shifted products it fuses into one loop, forward and backward."""

from __future__ import annotations

from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.short_conv.eager import convolved


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    axis: int,
    silu: bool,
    documents: Tensor | None,
    state: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The same as in `loops`, compiled on first use; arguments as the contract passes them."""
    y, after = run(convolved, x, weight, bias, axis, silu, documents, state, keep)
    return y, after
