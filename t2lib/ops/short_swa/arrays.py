"""Vectorised NumPy: blocks of queries against the few keys they can see, as real matrix products.

A block of b queries sees at most b + w - 1 keys, so the scores of one block are a (b, b + w - 1) matrix product and
no T × T array exists. Some of it is wasted (about half at b = w), and it still wins: BLAS is that much faster than
anything that visits the pairs one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops.short_swa import Mask

Array = npt.NDArray[Any]

# Queries a block, and the most scores that exist at a time: both were measured, and both fit a core's own cache.
BLOCK = 64
SCORES_AT_A_TIME = 1 << 18


def short_swa(
    q: Array, k: Array, v: Array, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Array:
    """The same reads as in `loops`, a block of queries at a time; arguments as the contract passes them."""
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    shape = [*q.shape[:axis], *q.shape[axis + 1 : -1], k.shape[axis]]
    documents, valid = (
        None if x is None else np.broadcast_to(np.moveaxis(x, axis, -1), shape)
        for x in (mask.documents, mask.valid)
    )
    queries, keys, values, result = (np.moveaxis(x, axis, -2) for x in (q, k, v, out))
    if head_axis is not None:
        # The axis of heads becomes two: the key head, and the query heads that share it. Both are views.
        place = head_axis if head_axis < axis else head_axis - 1
        shared = k.shape[head_axis]
        keys, values = np.expand_dims(keys, place + 1), np.expand_dims(values, place + 1)
        queries, result = _split(queries, place, shared), _split(result, place, shared)
        documents, valid = (None if x is None else _split(x, place, shared) for x in (documents, valid))

    finite = _all_finite(values)
    for start in range(0, queries.shape[-2], BLOCK):
        stop = min(start + BLOCK, queries.shape[-2])
        first, last = mask.first_seen(mask.query_start + start), mask.query_start + stop
        i, j = np.arange(mask.query_start + start, last), np.arange(first, last)
        inside = mask.sees(i[:, None], j)
        for part in _parts(queries.shape[:-2], inside.size):
            visible = inside
            if documents is not None:
                visible = visible & (documents[part][..., i, None] == documents[part][..., None, j])
            if valid is not None:
                visible = visible & valid[part][..., i, None] & valid[part][..., None, j]
            shared_part = tuple(s if n > 1 else slice(None) for s, n in zip(part, keys.shape, strict=False))
            result[part][..., start:stop, :] = _read(
                queries[part][..., start:stop, :],
                keys[shared_part][..., first:last, :],
                values[shared_part][..., first:last, :],
                visible,
                scale,
                empty_rows=valid is not None,
                finite=finite,
            )
    return out


def _read(
    q: Array, k: Array, v: Array, visible: Array, scale: float, *, empty_rows: bool, finite: bool
) -> Array:
    dtype = np.promote_types(q.dtype, np.float32)
    q, k, v = q.astype(dtype, copy=False), k.astype(dtype, copy=False), v.astype(dtype, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = (q * dtype.type(scale)) @ k.swapaxes(-1, -2)
        np.copyto(scores, -np.inf, where=~visible)
        largest = scores.max(-1, keepdims=True)
        if empty_rows:
            # A row that sees nothing: -inf - (-inf) would be NaN. With 0 in its place every weight is exp(-inf) = 0.
            nothing = ~visible.any(-1, keepdims=True)
            largest = np.where(nothing, 0, largest)
        weights = np.exp(np.subtract(scores, largest, out=scores), out=scores)
        total = weights.sum(-1, keepdims=True)
        if empty_rows:
            total = np.where(nothing, 1, total)
        if finite:
            z = weights @ v
            z /= total
            return z
        # 0 · NaN is NaN: in a matrix product a bad value would reach rows that do not see it.
        seen = np.where(visible[..., None], v[..., None, :, :], 0)
        weights /= total
        return np.asarray((weights[..., None] * seen).sum(-2))


def _all_finite(x: Array) -> bool:
    """A sum is finite only if all its terms are; one that overflows merely costs the careful path."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(x.sum()))


def _split(x: Array, place: int, heads: int) -> Array:
    return x.reshape(*x.shape[:place], heads, x.shape[place] // heads, *x.shape[place + 1 :])


def _parts(shape: tuple[int, ...], scores: int) -> Iterator[tuple[slice, ...]]:
    """Cut the longest independent axis so that one part has at most SCORES_AT_A_TIME scores, where it can."""
    if not shape:
        yield ()
        return
    longest = int(np.argmax(shape))
    others = int(np.prod(shape)) // max(1, shape[longest])
    step = max(1, SCORES_AT_A_TIME // max(1, others * scores))
    for start in range(0, shape[longest], step):
        cut = slice(start, start + step)
        yield tuple(cut if place == longest else slice(None) for place in range(len(shape)))
