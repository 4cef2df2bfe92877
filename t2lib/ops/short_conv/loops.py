"""The definition, in plain loops: an entry, the K entries it sees, a tap for each.

Every other rung is checked against this one. It imports NumPy only, and is slow on purpose.
"""

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
    """The result and, if asked for, the state behind it; arguments as the contract passes them."""
    taps = weight.shape[1]
    wide = np.promote_types(x.dtype, np.float32)
    # The ordered axis next to the width: x[where] is then one sequence of shape (N, d).
    x, out = np.moveaxis(x, axis, -2), np.empty_like(np.moveaxis(x, axis, -2))
    if state is not None:
        state = np.moveaxis(state, axis, -2)
    if documents is not None:
        documents = np.broadcast_to(np.moveaxis(documents, axis, -1), x.shape[:-1])
    after = np.zeros((*x.shape[:-2], taps - 1, x.shape[-1]), x.dtype)

    for where in np.ndindex(x.shape[:-2]):
        before = None if state is None else state[where]
        labels = None if documents is None else documents[where]

        def entry(t: int, reader: int, x: Array = x[where], before: Array | None = before,
                  labels: Array | None = labels) -> Array:  # fmt: skip
            """What `reader` sees at place t: zeros before the beginning and in other documents."""
            if labels is not None and labels[reader] != labels[max(t, 0)]:
                return np.zeros_like(x[0])
            if t < 0 and before is None:
                return np.zeros_like(x[0])
            source, place = (x, t) if before is None or t >= 0 else (before, t + taps - 1)
            seen: Array = source[place]
            return seen

        for t in range(x.shape[-2]):
            y = np.zeros(x.shape[-1], wide) if bias is None else bias.astype(wide)
            for j in range(taps):
                y = y + weight[:, taps - 1 - j].astype(wide) * entry(t - j, t).astype(wide)
            # exp(-y) overflows to infinity for a very negative y, and y / infinity is the right 0.
            with np.errstate(over="ignore"):
                out[where][t] = y / (1 + np.exp(-y)) if silu else y
        last = x.shape[-2] - 1
        for j in range(taps - 1):
            after[where][taps - 2 - j] = entry(last - j, last)
    return np.moveaxis(out, -2, axis), np.moveaxis(after, -2, axis) if keep else None
