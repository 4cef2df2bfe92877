"""torch.compile of the windowed view: every query beside a view of its own window of keys, one fused loop.

Written out in eager mode this would copy every key w times. The compiler never builds the window: it reads
k where it lies, and wastes no product on pairs outside the window, so it pays where windows are short and
reads are many (a read over depth) rather than where matrix products are large. The backward pass is two
loops of the same kind, one owned by the queries and one by the keys. First order only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from t2lib.ops._compile import run
from t2lib.ops.short_swa import Mask, sees

# A second length, batch or width makes the compiler take that size as a symbol, for all others too.
_run = partial(run, dynamic=None)


def short_swa(
    q: Tensor, k: Tensor, v: Tensor, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Tensor:
    """The same reads as in `loops`, compiled on first use; arguments as the contract passes them."""
    n_k = k.shape[axis]
    # Axes before the ordered one, the ordered one, axes behind it with the heads last, width.
    axes = [place for place in range(q.ndim - 1) if place != head_axis]
    ordered = axes.index(axis)
    axes += [] if head_axis is None else [head_axis]
    group = 1 if head_axis is None else q.shape[head_axis] // k.shape[head_axis]

    def five(x: Tensor, shared: int) -> Tensor:
        """(before, ordered, behind, query heads a key head, width): a view where it can be."""
        x = x.permute(*axes, x.ndim - 1)
        sizes = x.shape
        return x.reshape(
            sizes[:ordered].numel(),
            sizes[ordered],
            sizes[ordered + 1 : -1].numel() // shared,
            shared,
            sizes[-1],
        )

    labels: tuple[Tensor | None, ...] = (None, None)
    if mask.documents is not None or mask.valid is not None:
        shape = (*q.shape[:axis], n_k, *q.shape[axis + 1 : -1])
        documents = q.new_zeros((), dtype=torch.int64) if mask.documents is None else mask.documents
        valid = q.new_ones((), dtype=torch.bool) if mask.valid is None else mask.valid
        labels = tuple(five(x.expand(shape)[..., None], group)[..., 0] for x in (documents, valid))

    rule = (mask.window, mask.window_type, mask.lookback, min(mask.reach, n_k), mask.query_start, scale)
    z: Tensor = _Windowed.apply(  # type: ignore[no-untyped-call]
        five(q, group), five(k, 1), five(v, 1), *labels, rule
    )
    permuted = [q.shape[place] for place in axes]
    inverse = sorted(range(len(axes)), key=axes.__getitem__)
    return z.reshape(*permuted, z.shape[-1]).permute(*inverse, len(axes))


class _Windowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, documents: Any, valid: Any, rule: Any) -> Tensor:
        z: Tensor
        z, lse = _run(_forward, q, *(_before(x, rule) for x in (k, v)), *_sides(documents, valid, rule), rule)
        ctx.save_for_backward(q, k, v, documents, valid, z, lse)
        ctx.rule = rule
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Any, ...]:
        q, k, v, documents, valid, z, lse = ctx.saved_tensors
        rule, dq, dk, dv = ctx.rule, None, None, None
        delta = (dz.to(lse.dtype) * z.to(lse.dtype)).sum(-1)
        if ctx.needs_input_grad[0]:
            keys = (_before(x, rule) for x in (k, v))
            dq = _run(_queries_backward, q, *keys, dz, lse, delta, *_sides(documents, valid, rule), rule)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            queries = (_behind(x, rule) for x in (q, dz, lse, delta))
            sides = _sides(documents, valid, rule, keys_own=True)
            dk, dv = _run(_keys_backward, k, v, *queries, *sides, rule)
        return dq, dk, dv, None, None, None


def _before(x: Tensor, rule: Any) -> Tensor:
    """Keys with room in front of them, so that the window of the first query is whole too."""
    reach, start = rule[3], rule[4]
    missing = reach - 1 - start
    if missing <= 0:
        return x[:, -missing:]
    return F.pad(x, (0, 0) * (x.ndim - 2) + (missing, 0))


def _behind(x: Tensor, rule: Any) -> Tensor:
    """Queries at the positions of the keys, with room behind: key j is read from j ... j + reach - 1."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (rule[4], rule[3] - 1))


def _sides(documents: Any, valid: Any, rule: Any, *, keys_own: bool = False) -> tuple[Any, ...]:
    """Labels of the owners of the rows, and of the windows they read."""
    if documents is None:
        return None, None, None, None
    if keys_own:
        room = (0, 0) * 2 + (0, rule[3] - 1)
        return documents, valid, F.pad(documents, room), F.pad(valid, room)
    return documents[:, rule[4] :], valid[:, rule[4] :], _before(documents, rule), _before(valid, rule)


def _pairs(
    i: Tensor, j: Tensor, last: int, rule: Any, mine: Any, mine_valid: Any, theirs: Any, theirs_valid: Any
) -> Tensor:
    """Which owners and entries of their windows see each other: (before, ordered, behind, heads, reach)."""
    window, window_type, lookback, reach, start, _ = rule
    pairs: Tensor = sees(i, j, window=window, window_type=window_type, lookback=lookback)
    pairs = (pairs & (j >= 0) & (i >= start) & (i < last))[:, None, None, :]
    if mine is None:
        return pairs
    same = mine[..., None] == theirs.unfold(1, reach, 1)
    pairs = pairs & same & mine_valid[..., None] & theirs_valid.unfold(1, reach, 1)
    return pairs


def _forward(q: Tensor, k: Tensor, v: Tensor, d: Any, ok: Any, ds: Any, oks: Any, rule: Any) -> Any:
    reach, start, scale = rule[3:]
    i = torch.arange(q.shape[1], device=q.device)[:, None] + start
    j = i - (reach - 1) + torch.arange(reach, device=q.device)
    visible = _pairs(i, j, start + q.shape[1], rule, d, ok, ds, oks)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys, values = k.unfold(1, reach, 1).to(wide), v.unfold(1, reach, 1).to(wide)
    scores = (q.to(wide)[..., None] * keys).sum(-2) * scale
    scores = scores.masked_fill(~visible, float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    if d is not None:
        # A row that sees nothing: -inf - (-inf) would be NaN.
        nothing = ~visible.any(-1, keepdim=True)
        largest = largest.masked_fill(nothing, 0.0)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    if d is not None:
        total = total.masked_fill(nothing, 1.0)
    # What a row does not see is 0, not a weight of 0 times whatever stands there.
    seen = torch.where(visible[..., None, :], values, 0.0)
    z = (weights[..., None, :] * seen).sum(-1) / total
    return z.to(q.dtype), (largest + torch.log(total))[..., 0]


def _queries_backward(
    q: Tensor, k: Tensor, v: Tensor, dz: Tensor, lse: Tensor, delta: Tensor,
    d: Any, ok: Any, ds: Any, oks: Any, rule: Any,
) -> Any:  # fmt: skip
    reach, start, scale = rule[3:]
    i = torch.arange(q.shape[1], device=q.device)[:, None] + start
    j = i - (reach - 1) + torch.arange(reach, device=q.device)
    visible = _pairs(i, j, start + q.shape[1], rule, d, ok, ds, oks)
    wide = lse.dtype
    keys, values = k.unfold(1, reach, 1).to(wide), v.unfold(1, reach, 1).to(wide)
    scores = (q.to(wide)[..., None] * keys).sum(-2) * scale
    weights = torch.exp(scores - lse[..., None])
    d_weights = (dz.to(wide)[..., None] * values).sum(-2)
    d_scores = torch.where(visible, weights * (d_weights - delta[..., None]), 0.0) * scale
    dq = (d_scores[..., None, :] * torch.where(visible[..., None, :], keys, 0.0)).sum(-1)
    return dq.to(q.dtype)


def _keys_backward(
    k: Tensor, v: Tensor, q: Tensor, dz: Tensor, lse: Tensor, delta: Tensor,
    d: Any, ok: Any, ds: Any, oks: Any, rule: Any,
) -> Any:  # fmt: skip
    reach, _, scale = rule[3:]
    j = torch.arange(k.shape[1], device=k.device)[:, None]
    i = j + torch.arange(reach, device=k.device)
    visible = _pairs(i, j, k.shape[1], rule, d, ok, ds, oks)
    wide = lse.dtype
    queries, d_reads = q.unfold(1, reach, 1).to(wide), dz.unfold(1, reach, 1).to(wide)
    scores = (queries * k.to(wide)[..., None]).sum(-2) * scale
    weights = torch.where(visible, torch.exp(scores - lse.unfold(1, reach, 1)), 0.0)
    d_weights = (d_reads * v.to(wide)[..., None]).sum(-2)
    d_scores = torch.where(visible, weights * (d_weights - delta.unfold(1, reach, 1)), 0.0) * scale
    hidden = ~visible[..., None, :]
    dk = (d_scores[..., None, :] * queries.masked_fill(hidden, 0.0)).sum((-1, -3), keepdim=True)[..., 0]
    dv = (weights[..., None, :] * d_reads.masked_fill(hidden, 0.0)).sum((-1, -3), keepdim=True)[..., 0]
    return dk.to(k.dtype), dv.to(v.dtype)
