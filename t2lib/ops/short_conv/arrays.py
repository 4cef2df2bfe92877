"""Vectorised NumPy: one shifted product a tap, on all entries at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def short_conv(
    x: Array,
    weight: Array,
    bias: Array | None,
    *,
    axis: int,
    silu: bool,
    documents: Array | None,
    state: Array | None,
    keep: bool,
) -> tuple[Array, Array | None]:
    """The same as in `loops`; arguments as the contract passes them."""
    taps = weight.shape[1]
    wide = np.promote_types(x.dtype, np.float32)
    x = np.moveaxis(x, axis, -2)
    before = np.zeros((*x.shape[:-2], taps - 1, x.shape[-1]), x.dtype)
    if state is not None:
        before[...] = np.moveaxis(state, axis, -2)
    entries = np.concatenate([before, x], -2)
    labels = None
    if documents is not None:
        labels = np.moveaxis(documents, axis, -1)
        # The entries before the first belong to its document.
        labels = np.concatenate([np.repeat(labels[..., :1], taps - 1, -1), labels], -1)

    length, filters = x.shape[-2], weight.astype(wide)
    y = np.zeros(x.shape, wide)
    if bias is not None:
        y += bias.astype(wide)
    for tap in range(taps):
        seen = entries[..., tap : tap + length, :]
        if labels is not None:
            same = labels[..., tap : tap + length] == labels[..., taps - 1 :]
            seen = np.where(same[..., None], seen, seen.dtype.type(0))
        y += filters[:, tap] * seen
    if silu:
        # exp(-y) overflows to infinity for a very negative y, and y / infinity is the right 0.
        with np.errstate(over="ignore"):
            y /= 1 + np.exp(-y)
    result = np.moveaxis(y.astype(x.dtype), -2, axis)
    if not keep:
        return result, None
    after = entries[..., length:, :]
    if labels is not None:
        same = labels[..., length:] == labels[..., -1:]
        after = np.where(same[..., None], after, after.dtype.type(0))
    return result, np.moveaxis(after.copy(), -2, axis)
