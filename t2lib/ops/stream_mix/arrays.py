"""Vectorised NumPy: small matrix products, a block of tokens at a time so that the state is loaded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops._rows import row_blocks

Array = npt.NDArray[Any]

# Bytes of state a block, on a core with 512 KB of its own cache.
BUDGET = 1 << 17


def stream_mix(
    streams: Array, mix: Array | None, write: Array | None, branch: Array | None, read: Array | None
) -> Any:
    """The same as in `loops`, a block of tokens at a time; arguments as the contract passes them."""
    *leading, n, d = streams.shape
    wide = np.promote_types(streams.dtype, np.float32)
    changes = mix is not None or write is not None
    new = np.empty(streams.shape if changes else 0, streams.dtype)
    h = np.empty((*leading, d) if read is not None else 0, streams.dtype)
    for rows in row_blocks((*leading, n * d), wide.itemsize, BUDGET):
        state = streams[rows].astype(wide, copy=False)
        if mix is not None:
            state = _of(mix, rows, 2, wide) @ state
        if write is not None and branch is not None:
            state = state + _of(write, rows, 1, wide)[..., :, None] * branch[rows].astype(wide)[..., None, :]
        if read is not None:
            h[rows] = (_of(read, rows, 1, wide)[..., None, :] @ state)[..., 0, :]
        if changes:
            new[rows] = state
    if not changes:
        return h
    return new if read is None else (new, h)


def _of(coefficient: Array, rows: Any, axes: int, wide: Any) -> Array:
    """The coefficients of a block of tokens: those of all tokens if they are shared."""
    own: Array = coefficient if coefficient.ndim == axes else coefficient[rows]
    return own.astype(wide, copy=False)


def sinkhorn(logits: Array, iterations: int, eps: float) -> Array:
    """The same as in `loops`, on all matrices at once: on logarithms for eps = 0."""
    M = logits.astype(np.promote_types(logits.dtype, np.float32))
    if eps == 0:
        for _ in range(iterations):
            M = _log_normalised(_log_normalised(M, -2), -1)
        result: Array = np.exp(M).astype(logits.dtype)
        return result
    M = np.exp(_log_normalised(M, -2)) + M.dtype.type(eps)
    for step in range(iterations):
        if step > 0:
            M = M / (M.sum(-2, keepdims=True) + M.dtype.type(eps))
        M = M / (M.sum(-1, keepdims=True) + M.dtype.type(eps))
    result = M.astype(logits.dtype)
    return result


def _log_normalised(logs: Array, axis: int) -> Array:
    """log(x / Σ x) from log x."""
    shifted = logs - logs.max(axis, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return normalised
