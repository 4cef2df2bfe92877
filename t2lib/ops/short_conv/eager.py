"""PyTorch: one shifted product a tap, differentiable any number of times, on any device.

Products of views: what is kept for the backward pass is the entries once, whatever the number of taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """The same as in `loops`; arguments as the contract passes them."""
    return convolved(x, weight, bias, axis, silu, documents, state, keep)


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, axis: int, silu: bool, documents: Tensor | None,
    state: Tensor | None, keep: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The result and, if asked for, the state behind it."""
    taps, length = weight.shape[1], x.shape[axis]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    x = x.movedim(axis, -2)
    # Padding rather than joining with zeros: a compiler then reads x itself and writes no padded copy.
    before = None if state is None else state.movedim(axis, -2)
    entries = F.pad(x, (0, 0, taps - 1, 0)) if before is None else torch.cat([before, x], -2)
    labels = None
    if documents is not None:
        labels = documents.movedim(axis, -1)
        # The entries before the first belong to its document.
        labels = torch.cat([labels[..., :1].expand(*labels.shape[:-1], taps - 1), labels], -1)

    summands, filters = entries.to(wide), weight.to(wide)
    y = None if bias is None else bias.to(wide)
    for tap in range(taps):
        seen = summands[..., tap : tap + length, :]
        if labels is not None:
            same = labels[..., tap : tap + length] == labels[..., taps - 1 :]
            seen = torch.where(same[..., None], seen, 0.0)
        y = seen * filters[:, tap] if y is None else torch.addcmul(y, seen, filters[:, tap])
    assert y is not None
    y = F.silu(y) if silu else y
    result = y.to(x.dtype).movedim(-2, axis)
    if not keep:
        return result, None
    after = entries[..., length:, :]
    if labels is not None:
        same = labels[..., length:] == labels[..., -1:]
        after = torch.where(same[..., None], after, 0.0)
    # A copy: a view would keep all the entries alive for the sake of the last few.
    return result, after.clone().movedim(-2, axis)
