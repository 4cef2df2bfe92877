"""Vectorised NumPy: a block of tokens, all its scores, one softmax, then the sum while the states are near.

Stacking the states and their normalised copies would move several times the list. Here the states of a
block are read once from memory, for the scores, and once more from the cache, for the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops._rows import row_blocks
from t2lib.ops.depth_mix import arrays as mix

Array = npt.NDArray[Any]


def depth_attention(
    states: tuple[Array, ...], pseudo_query: Array | None, gain: Array | None, query: Array | None, eps: float
) -> tuple[Array, Array]:
    """The same reads as in `loops`, a block of tokens at a time; arguments as the contract passes them."""
    shape, dtype = states[0].shape, states[0].dtype
    wide = np.promote_types(dtype, np.float32)
    pseudo_query, gain = (None if x is None else x.astype(wide, copy=False) for x in (pseudo_query, gain))
    given = query if pseudo_query is None else pseudo_query
    queries = 0 if given is None else len(given)
    asks = pseudo_query if pseudo_query is None or gain is None else pseudo_query * gain
    z, lse = np.empty((queries, *shape), dtype), np.empty((queries, *shape[:-1]), wide)
    for where in row_blocks(shape, wide.itemsize, mix.BLOCK):
        everywhere = (slice(None), *where)
        own = None
        if query is not None:
            own = query[everywhere].astype(wide)
            if gain is not None:
                own *= gain.reshape(queries, *(1,) * (own.ndim - 2), -1)
        near = [state[where] for state in states]
        scores = np.stack([_scores(state.astype(wide, copy=False), asks, own, eps) for state in near], -1)
        largest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True)
        lse[everywhere] = np.moveaxis(_log_sum(largest, total)[..., 0], -1, 0)
        z[everywhere] = mix.mix_block(near, None, weights / total, queries)
    return z, lse


def merge(reads: tuple[Array, ...], lses: tuple[Array, ...]) -> tuple[Array, Array]:
    """A softmax over the log-sum-exps weights the reads of the parts."""
    stacked = np.stack(lses, -1)
    largest = stacked.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        weights = np.exp(stacked - largest)
    total = weights.sum(-1, keepdims=True)
    z = mix.depth_mix(reads, None, (weights / total)[..., None, :], outputs=1)[0]
    return z, _log_sum(largest, total)[..., 0]


def _log_sum(largest: Array, total: Array) -> Array:
    """The log-sum-exp from the largest score and the sum over it; where nothing weighs anything, log 0."""
    log_sum: Array = np.where(largest == -np.inf, largest, largest + np.log(total))
    return log_sum


def _scores(block: Array, asks: Array | None, own: Array | None, eps: float) -> Array:
    """(..., Q): how well one state of the block answers each query."""
    mean_square = np.einsum("...d,...d->...", block, block) / block.shape[-1]
    scores: Any = 0.0
    if asks is not None:
        scores = block @ asks.T
    if own is not None:
        scores = scores + np.einsum("...d,q...d->...q", block, own)
    result: Array = scores / np.sqrt(mean_square + block.dtype.type(eps))[..., None]
    return result
