"""Vectorised NumPy: blocks of queries against the few keys they can see, as real matrix products.

A block of b queries sees at most b + w - 1 keys, so its scores are one (b, b + w - 1) matrix product and no
T × T array exists. About half of the products are wasted at b = w. It still wins: BLAS is that much faster
than anything that visits the pairs one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops.short_swa import Mask

Array = npt.NDArray[Any]

# Queries a block, and about how many scores exist at a time; measured, on a core with 512 KB of its own
# cache.
BLOCK = 48
SCORES = 1 << 17


def short_swa(
    q: Array, k: Array, v: Array, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Array:
    """The same reads as in `loops`, a block of queries at a time; arguments as the contract passes them."""
    shape = [*q.shape[:axis], *q.shape[axis + 1 : -1], k.shape[axis]]
    documents, valid = (
        None if x is None else np.broadcast_to(np.moveaxis(x, axis, -1), shape)
        for x in (mask.documents, mask.valid)
    )
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    q, k, v, z = (np.moveaxis(x, axis, -2) for x in (q, k, v, out))
    if head_axis is not None:
        # The axis of heads becomes two: the key head, and the query heads that share it. Both are views.
        heads = head_axis if head_axis < axis else head_axis - 1
        groups = k.shape[heads]
        q, z = _split(q, heads, groups), _split(z, heads, groups)
        documents, valid = (None if x is None else _split(x, heads, groups) for x in (documents, valid))
        k, v = np.expand_dims(k, heads + 1), np.expand_dims(v, heads + 1)

    block = BLOCK if mask.reach > BLOCK // 2 else BLOCK // 2
    for part, shared in _parts(q.shape[:-2], k.shape[:-2], block * min(block + mask.reach, k.shape[-2])):
        labels = tuple(None if x is None else x[part] for x in (documents, valid))
        _read_blocks(q[part], k[shared], v[shared], z[part], mask, labels, scale, block)
    return out


def _read_blocks(
    q: Array, k: Array, v: Array, z: Array, mask: Mask, labels: tuple[Any, ...], scale: float, block: int
) -> None:
    """Some of the independent sequences, (..., n, D), one block of queries after another, written into z."""
    documents, valid = labels
    read = _read if _all_finite(q, k, v, scale) else _read_carefully
    pattern = None
    for begin in range(mask.query_start, k.shape[-2], block):
        first, end = mask.first_seen(begin), min(begin + block, k.shape[-2])
        rows = slice(begin - mask.query_start, end - mask.query_start)
        # A strict window looks the same from one block and the next.
        if mask.window_type == "chunk" or pattern != (begin - first, end - begin):
            pattern = (begin - first, end - begin)
            by_position = _hide(mask.sees(np.arange(begin, end)[:, None], np.arange(first, end)))
        hide = by_position
        if documents is not None:
            hide = hide + _hide(documents[..., begin:end, None] == documents[..., None, first:end])
        if valid is not None:
            hide = hide + _hide(valid[..., begin:end, None] & valid[..., None, first:end])
        keys, values = k[..., first:end, :], v[..., first:end, :]
        z[..., rows, :] = read(q[..., rows, :], keys, values, hide, scale, empty_rows=valid is not None)


def _hide(visible: Array) -> Array:
    """0 where visible and -inf where not: what is added to a score to take it out of the softmax."""
    return np.where(visible, np.float32(0), np.float32(-np.inf))


def _read(q: Array, k: Array, v: Array, hide: Array, scale: float, *, empty_rows: bool) -> Array:
    """One block of queries reads its keys: two matrix products with a softmax between them."""
    q, k, v = _widened(q), _widened(k), _widened(v)
    weights, total = _softmax((q * q.dtype.type(scale)) @ k.swapaxes(-1, -2), hide, empty_rows)
    z: Array = weights @ v
    # Dividing the D_v sums is less work than dividing all the weights.
    z /= total
    return z


def _read_carefully(q: Array, k: Array, v: Array, hide: Array, scale: float, *, empty_rows: bool) -> Array:
    """The same for inputs with NaN or infinity in them.

    0 · NaN is NaN, so in a matrix product a bad value reaches rows that do not see it. Here what a row does
    not see is replaced by 0 before it is multiplied, at the price of a (queries, keys, width) array.
    """
    q, k, v = _widened(q), _widened(k), _widened(v)
    visible = hide == 0
    with np.errstate(invalid="ignore", over="ignore"):
        scores = np.where(visible, (q * q.dtype.type(scale)) @ k.swapaxes(-1, -2), 0)
        weights, total = _softmax(scores, hide, empty_rows)
        z: Array = (weights[..., None] * np.where(visible[..., None], v[..., None, :, :], 0)).sum(-2)
        return z / total


def _softmax(scores: Array, hide: Array, empty_rows: bool) -> tuple[Array, Array]:
    """exp(score - largest) of the visible entries, written into `scores`, and its sum over them."""
    scores += hide
    largest = scores.max(-1, keepdims=True)
    if empty_rows:
        # -inf - (-inf) would be NaN; with 0 in its place all weights of such a row are exp(-inf) = 0.
        nothing = hide.max(-1, keepdims=True) < 0
        np.copyto(largest, 0, where=nothing)
    scores -= largest
    weights = np.exp(scores, out=scores)
    # A product with ones is the fastest sum along a short axis.
    total = weights @ np.ones((weights.shape[-1], 1), weights.dtype)
    if empty_rows:
        np.copyto(total, 1, where=nothing)
    return weights, total


def _widened(x: Array) -> Array:
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def _all_finite(q: Array, k: Array, v: Array, scale: float) -> bool:
    """Whether no input and, by |q·k| <= |q||k|, no score is NaN or infinite."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = [float(np.linalg.norm(_widened(x))) for x in (q, k, v)]
    # The largest float32 is 3.4e38; float64 has room to spare.
    return norms[0] * norms[1] * max(1.0, abs(scale)) < 1e38 and norms[2] < 1e38


def _split(x: Array, place: int, groups: int) -> Array:
    return x.reshape(*x.shape[:place], groups, x.shape[place] // groups, *x.shape[place + 1 :])


def _parts(
    shape: tuple[int, ...], key_shape: tuple[int, ...], scores: int
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Cut the longest independent axis so that a part has about SCORES scores; the same cut for keys."""
    if not shape:
        yield (), ()
        return
    longest = max(range(len(shape)), key=shape.__getitem__)
    others = int(np.prod(shape)) // max(1, shape[longest])
    step = max(1, SCORES // max(1, others * scores))
    everything = [slice(None)] * len(shape)
    for start in range(0, shape[longest], step):
        part = everything.copy()
        part[longest] = slice(start, start + step)
        # Keys that are shared by the query heads have length 1 there, for every part.
        yield tuple(part), tuple(part if key_shape[longest] > 1 else everything)
