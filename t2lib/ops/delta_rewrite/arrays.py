"""Vectorised NumPy: a block of tokens at a time, so that a state is still in the cache when it is written.

Read and written once each, a state would go through memory twice if all tokens were read before the first
is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops._rows import row_blocks
from t2lib.ops.delta_rewrite import Rule

Array = npt.NDArray[Any]

# Bytes of state a block, on a core with 512 KB of its own cache.
BUDGET = 1 << 17


def delta_rewrite(X: Array, k: Array, v: Array, beta: Array, *, rule: Rule) -> tuple[Array, Array, Array]:
    """The same as in `loops`, a block of tokens at a time; arguments as the contract passes them."""
    wide = np.promote_types(X.dtype, np.float32)
    *leading, d, d_v = X.shape
    out = np.empty(X.shape, X.dtype)
    readings, corrections = np.empty((*leading, d_v), wide), np.empty((*leading, d_v), wide)
    for rows in row_blocks((*leading, d * d_v), wide.itemsize, BUDGET):
        state, unit = X[rows].astype(wide, copy=False), k[rows].astype(wide)
        if rule.floor is not None:
            unit /= np.sqrt((unit * unit).sum(-1, keepdims=True) + wide.type(rule.floor))
        reading = (unit[..., None, :] @ state)[..., 0, :]
        target = v[rows].astype(wide, copy=False)
        correction = beta[rows].astype(wide, copy=False)[..., None] * (
            target - reading if rule.erase else target
        )
        # A product of matrices: broadcasting would run loops of d_v steps. It lands in the result itself.
        update = out[rows] if X.dtype == wide else np.empty(state.shape, wide)
        np.matmul(unit[..., :, None], correction[..., None, :], out=update)
        update += state
        if X.dtype != wide:
            out[rows] = update
        readings[rows], corrections[rows] = reading, correction
    return out, readings, corrections
