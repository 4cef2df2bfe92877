"""PyTorch: the blocks of `arrays`, differentiable, on any device.

For a gradient the keys are split into blocks once, and a block of queries reads its own block of keys and
the few before it: the gradient of `split` is one `cat`, so the backward pass is linear in the length as
well. (A slice of k per block would not be: the gradient of every slice is a tensor of zeros as long as k.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from t2lib.ops.short_swa import Mask

# Queries a block, measured: 64, or half of it where the window is so short that 64 would mostly read in vain.
BLOCK = 64


def short_swa(
    q: Tensor, k: Tensor, v: Tensor, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Tensor:
    """The same reads as in `loops`, differentiable any number of times; arguments as in the contract."""
    shape = [*q.shape[:axis], *q.shape[axis + 1 : -1], k.shape[axis]]
    documents, valid = (
        None if x is None else x.movedim(axis, -1).expand(shape) for x in (mask.documents, mask.valid)
    )
    q, k, v = (x.movedim(axis, -2) for x in (q, k, v))
    heads = head_axis if head_axis is None or head_axis < axis else head_axis - 1
    if heads is not None:
        # The axis of heads becomes two: the key head, and the query heads that share it. Both are views.
        groups = (k.shape[heads], q.shape[heads] // k.shape[heads])
        q, k, v = torch.unflatten(q, heads, groups), k.unsqueeze(heads + 1), v.unsqueeze(heads + 1)
        documents, valid = (
            None if x is None else torch.unflatten(x, heads, groups) for x in (documents, valid)
        )

    block = BLOCK if mask.reach > BLOCK // 2 else BLOCK // 2
    begins = range(mask.query_start, k.shape[-2], block)
    spans = [(mask.first_seen(begin), min(begin + block, k.shape[-2])) for begin in begins]
    # Keys and values are cut alike, even if only one of them has a gradient.
    whole = len(spans) > 1 and (k.requires_grad or v.requires_grad) and torch.is_grad_enabled()
    span_of_keys, span_of_values = (_spans(x, spans, begins, whole=whole) for x in (k, v))
    read = _read if _all_finite(q, k, v, scale) else _read_carefully

    reads = []
    for begin, (_, end) in zip(begins, spans, strict=True):
        keys, values = span_of_keys(begin), span_of_values(begin)
        first = end - keys.shape[-2]
        i = torch.arange(begin, end, device=q.device)
        visible = mask.sees(i[:, None], torch.arange(first, end, device=q.device))
        if documents is not None:
            visible = visible & (documents[..., begin:end, None] == documents[..., None, first:end])
        if valid is not None:
            visible = visible & valid[..., begin:end, None] & valid[..., None, first:end]
        queries = q[..., begin - mask.query_start : end - mask.query_start, :]
        z = read(queries, keys, values, visible, scale, empty_rows=valid is not None).to(q.dtype)
        reads.append((z if heads is None else z.flatten(heads, heads + 1)).movedim(-2, axis))
    return reads[0] if len(reads) == 1 else torch.cat(reads, axis)


def _read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, *, empty_rows: bool) -> Tensor:
    """One block of queries reads its keys: two matrix products with a softmax between them."""
    q, k, v = _widened(q), _widened(k), _widened(v)
    return _softmax((q * scale) @ k.mT, visible, empty_rows) @ v


def _read_carefully(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, *, empty_rows: bool
) -> Tensor:
    """The same for inputs with NaN or infinity in them.

    0 · NaN is NaN, so in a matrix product, or in its gradient, a bad entry reaches rows that do not see it.
    Here what a row does not see is replaced by 0 before it is multiplied, at the price of a (queries, keys,
    width) array.
    """
    pair = visible[..., None]
    q = torch.where(pair, _widened(q)[..., :, None, :], 0)
    k = torch.where(pair, _widened(k)[..., None, :, :], 0)
    v = torch.where(pair, _widened(v)[..., None, :, :], 0)
    return (_softmax((q * scale * k).sum(-1), visible, empty_rows)[..., None] * v).sum(-2)


def _softmax(scores: Tensor, visible: Tensor, empty_rows: bool) -> Tensor:
    """Softmax over the visible entries, by adding -inf to the others: faster than filling them."""
    hide = torch.zeros(visible.shape, dtype=scores.dtype, device=scores.device)
    hide = hide.masked_fill(~visible, float("-inf"))
    if not empty_rows:
        return torch.softmax(scores + hide, -1)
    # A row that sees nothing has no softmax: it would be NaN, forward and backward. It works on its hidden
    # scores instead, and is then dropped.
    nothing = ~visible.any(-1, keepdim=True)
    return torch.softmax(scores + hide.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)


def _spans(x: Tensor, spans: list[tuple[int, int]], begins: range, *, whole: bool) -> Callable[[int], Tensor]:
    """A function from the first query of a block to the keys it reads, exactly or in `whole` blocks."""
    by_begin = dict(zip(begins, spans, strict=True))
    if not whole:
        return lambda begin: x[..., slice(*by_begin[begin]), :]
    # The grid of the queries, continued back to the first key that is read.
    origin, end = spans[0][0], spans[-1][1]
    grid = [c for c in range(begins.start % begins.step, end, begins.step) if c > origin]
    cuts = [origin, *grid, end]
    blocks = torch.split(x[..., origin:end, :], [b - a for a, b in pairwise(cuts)], -2)

    def joined(begin: int) -> Tensor:
        first, last = by_begin[begin]
        return torch.cat(blocks[bisect_right(cuts, first) - 1 : bisect_right(cuts, last - 1)], -2)

    return joined


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _all_finite(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
    """Whether no input and, by |q·k| <= |q||k|, no score is NaN or infinite.

    While torch.compile traces, there are no values to look at; they are then taken to be finite.
    """
    if torch.compiler.is_compiling():
        return True
    with torch.no_grad():
        norms = [float(torch.linalg.vector_norm(_widened(x))) for x in (q, k, v)]
    # The largest float32 is 3.4e38; float64 has room to spare.
    return norms[0] * norms[1] * max(1.0, abs(scale)) < 1e38 and norms[2] < 1e38
