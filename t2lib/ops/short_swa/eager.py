"""PyTorch: the blocks of `arrays`, differentiable, on any device.

The keys are split into blocks once; a block of queries reads its own block of keys and the few before it. The
gradient of `split` is one `cat`, so the backward pass is linear in the length as well. (A slice of k per block would
not be: the gradient of every slice is a tensor of zeros as long as k.)
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import torch
from torch import Tensor

from t2lib.ops.short_swa import Mask

# Queries a block, measured: 64, or half of it where the window is so short that 64 would mostly read in vain.
BLOCK = 64


def short_swa(
    q: Tensor, k: Tensor, v: Tensor, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Tensor:
    """The same reads as in `loops`, differentiable as often as one likes; arguments as the contract passes them."""
    n_k = k.shape[axis]
    shape = [*q.shape[:axis], *q.shape[axis + 1 : -1], n_k]
    documents, valid = (
        None if x is None else x.movedim(axis, -1).expand(shape) for x in (mask.documents, mask.valid)
    )
    q, k, v = (x.movedim(axis, -2) for x in (q, k, v))
    if head_axis is not None:
        # The axis of heads becomes two: the key head, and the query heads that share it. Both are views.
        heads = head_axis if head_axis < axis else head_axis - 1
        sizes = (k.shape[heads], q.shape[heads] // k.shape[heads])
        q, k, v = q.unflatten(heads, sizes), k.unsqueeze(heads + 1), v.unsqueeze(heads + 1)
        documents, valid = (None if x is None else x.unflatten(heads, sizes) for x in (documents, valid))

    # Nothing before `origin` is ever read. From there on, keys are cut at the places where queries are.
    origin = mask.first_seen(mask.query_start)
    block = BLOCK if mask.reach > BLOCK // 2 else BLOCK // 2
    cuts = [origin, n_k]
    if q.shape[-2] > block:
        cuts[1:1] = [cut for cut in range(mask.query_start % block, n_k, block) if cut > origin]
    sizes = [end - begin for begin, end in pairwise(cuts)]
    key_blocks = k[..., origin:, :].split(sizes, -2)
    value_blocks = v[..., origin:, :].split(sizes, -2)
    query_blocks = q.split(block, -2)

    finite = _all_finite(q, k, v)
    reads, begin = [], mask.query_start
    for queries in query_blocks:
        end = begin + queries.shape[-2]
        blocks = slice(bisect_right(cuts, mask.first_seen(begin)) - 1, bisect_right(cuts, end - 1))
        first = cuts[blocks.start]
        i = torch.arange(begin, end, device=q.device)
        visible = mask.sees(i[:, None], torch.arange(first, end, device=q.device))
        if documents is not None:
            visible = visible & (documents[..., begin:end, None] == documents[..., None, first:end])
        if valid is not None:
            visible = visible & valid[..., begin:end, None] & valid[..., None, first:end]
        keys, values = _joined(key_blocks[blocks]), _joined(value_blocks[blocks])
        read = _read if finite else _read_carefully
        z = read(queries, keys, values, visible, scale, empty_rows=valid is not None)
        if head_axis is not None:
            z = z.flatten(heads, heads + 1)
        reads.append(z.to(q.dtype).movedim(-2, axis))
        begin = end
    return _joined(tuple(reads), axis)


def _read(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, *, empty_rows: bool) -> Tensor:
    """One block of queries reads its keys: two matrix products with a softmax between them."""
    q, k, v = _widened(q), _widened(k), _widened(v)
    scores = (q * scale) @ k.mT
    return _weights(scores, visible, empty_rows) @ v


def _read_carefully(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, *, empty_rows: bool
) -> Tensor:
    """The same, for inputs with NaN or infinity in them.

    0 · NaN is NaN, so in a matrix product, or in its gradient, a bad entry reaches rows that do not see it. Here
    what a row does not see is replaced by 0 before it is multiplied, at the price of a (queries, keys, width) array.
    """
    pair = visible[..., None]
    k_seen = torch.where(pair, _widened(k)[..., None, :, :], 0)
    v_seen = torch.where(pair, _widened(v)[..., None, :, :], 0)
    q_seen = torch.where(pair, _widened(q)[..., :, None, :], 0)
    scores = (q_seen * scale * k_seen).sum(-1)
    return (_weights(scores, visible, empty_rows)[..., None] * v_seen).sum(-2)


def _weights(scores: Tensor, visible: Tensor, empty_rows: bool) -> Tensor:
    scores = scores.masked_fill(~visible, float("-inf"))
    if not empty_rows:
        return torch.softmax(scores, -1)
    # A row that sees nothing has no softmax: it is NaN in the forward and in the backward pass. Give such a row
    # something finite to work on, then drop it.
    nothing = ~visible.any(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _joined(blocks: tuple[Tensor, ...], axis: int = -2) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, axis)


def _all_finite(*tensors: Tensor) -> bool:
    """A sum is finite only if all its terms are; one that overflows merely costs the careful path.

    While torch.compile traces there are no values to look at. The careful path is right for all of them, and the
    compiler fuses its large array away.
    """
    if torch.compiler.is_compiling():
        return False
    with torch.no_grad():
        return all(bool(x.sum().isfinite()) for x in tensors)
