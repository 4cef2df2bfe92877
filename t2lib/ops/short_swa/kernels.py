# Triton has no types for the functions it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""Triton, forward and backward. Tokens and depth run the same kernels: only the strides they get differ.

Three kernels, the result, dq, and dk with dv, each in two forms:

* tile: a block of queries against blocks of keys with `tl.dot`; for many queries.
* shift: every row steps through its own window, one key a step, no dot; for few queries (one layer's depth
  read, a decoding step) and very short windows. Rows of many independent groups fill a program.

All axes but the ordered one and the width are *groups*. They are numbered through, and a kernel decodes the
number level by level, so any layout is read where it lies; axes whose strides allow it count as one level.

A weight of zero times NaN is NaN: a tile that holds a NaN would hand it to rows that do not see it. And a
tile in half precision rounds its factors to it, which may overflow. So a program whose result is not finite
does its rows again in the shift form, which loads only what is seen and multiplies in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from t2lib.ops import _triton
from t2lib.ops._configs import tabled
from t2lib.ops._triton import DEVICES, has_nan, offset
from t2lib.ops.short_swa import Mask
from t2lib.ops.short_swa.cost import WIDEST

# Fewer queries than this, or a window no longer than SHORT, take the shift form.
FEW, SHORT = 16, 4
# Triton compiles a variant for an argument that is 1 or divisible by 16; a length must not make a variant.
LENGTHS = ["groups", "n_q", "n_k", "query_start", "window", "lookback", "reach"]


class Config(NamedTuple):
    """How a call is cut: its form, rows a program owns, columns a tile takes a step, warps, stages."""

    tile: bool
    rows: int
    columns: int
    warps: int
    stages: int


@tabled("short_swa")
def pick_config(
    capability: tuple[int, int], dtype: torch.dtype, width: int,
    *, few: bool, aligned: bool, backward: bool = False,
) -> Config:  # fmt: skip
    """The configuration for a head width padded to a power of two.

    `few` queries take the shift form; `aligned` says that vectors can be loaded from the start of each row.
    Each entry compiles (Triton 3.7) within its chip's shared memory and spills no register; smaller tiles for
    unaligned rows are the price (tests/kernels/build). None is tuned for speed; those that were are in the
    table of `_configs`. Capability (0, 0) is the interpreter, where few large programs are fastest.
    """
    if capability == (0, 0):
        return Config(False, 128, 1, 4, 1) if few else Config(True, 64, 64, 4, 1)
    # Triton has matrix instructions for half precision from 8.0 on; elsewhere a dot is plain multiply-adds,
    # which hold a whole row of both operands in registers: only narrow heads leave room for that.
    matrix_unit = capability >= (8, 0) and dtype != torch.float32
    widest_tile = 64 if not matrix_unit else WIDEST if aligned else 128
    if few or width > widest_tile:
        # Where no vectors can be loaded, the addresses of single numbers take as much room as these.
        return Config(False, (1024 if aligned else 512) // width, 1, 8, 1)
    if not matrix_unit:
        return Config(True, 16, 32 if aligned and dtype == torch.float32 and not backward else 16, 8, 1)
    if width > 128 or not aligned:
        return Config(True, 16, 16 if backward and not aligned else 32, 8, 1)
    if width <= 64 and not backward:
        # 64 rows share each load of their keys, and take the wide matrix instruction of 9.0. The backward
        # kernels hold twice as much and would leave room for half as many programs.
        return Config(True, 64, 32, 4, 1)
    return Config(True, 32, 32, 4 if width <= 64 else 8, 1)


@triton.jit
def _addresses(view, position, inside, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A view is (pointer, offset, strides); the offset is that of one group, or of one a row."""
    column = tl.arange(0, PADDED)
    row = view[1] + position.to(tl.int64) * view[2][0]
    where = view[0] + row[:, None] + column.to(tl.int64)[None, :] * view[2][1]
    wanted = inside[:, None]
    if WIDTH < PADDED:
        wanted = wanted & (column < WIDTH)[None, :]
    return where, wanted


@triton.jit
def _load(view, position, inside, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """The rows at `position` as [rows, PADDED]; zero where not inside, and past the width."""
    where, wanted = _addresses(view, position, inside, WIDTH, PADDED)
    return tl.load(where, mask=wanted, other=0.0)


@triton.jit
def _store(view, position, inside, rows, WIDTH: tl.constexpr):
    where, wanted = _addresses(view, position, inside, WIDTH, rows.shape[1])
    tl.store(where, rows.to(view[0].dtype.element_ty), mask=wanted)


@triton.jit
def _label(view, position, n_k):
    exists = (position >= 0) & (position < n_k)
    return tl.load(view[0] + view[1] + position.to(tl.int64) * view[2][0], mask=exists, other=0)


@triton.jit
def _sees(query, key, rule, CHUNK: tl.constexpr):
    """Who sees whom: the one predicate of all kernels. Both are positions, of shapes that broadcast.

    A rule is (n_k, window, lookback, reach, documents, valid), the last two views whose pointer may be None.
    """
    n_k, window, lookback, _reach, documents, valid = rule
    seen = (key >= 0) & (key <= query) & (query < n_k)
    if CHUNK:
        seen &= query // window - key // window <= lookback
    else:
        seen &= query - key < window
    if documents[0] is not None:
        seen &= _label(documents, query, n_k) == _label(documents, key, n_k)
    if valid[0] is not None:
        seen &= (_label(valid, query, n_k) != 0) & (_label(valid, key, n_k) != 0)
    return seen


@triton.jit
def _first_seen(query, rule, CHUNK: tl.constexpr):
    """The first key that the query at this position can see; trims the loops over keys."""
    _n_k, window, lookback, _reach, _documents, _valid = rule
    first = (query // window - lookback) * window if CHUNK else query - window + 1
    return tl.maximum(first, 0)


@triton.jit
def _last_seeing(key, rule, CHUNK: tl.constexpr):
    """The last query that can see the key at this position; trims the loops over queries."""
    n_k, window, lookback, _reach, _documents, _valid = rule
    last = (key // window + lookback + 1) * window - 1 if CHUNK else key + window - 1
    return tl.minimum(last, n_k - 1)


@triton.jit
def _place(count, groups, ROWS: tl.constexpr, TILE: tl.constexpr):
    """The group (of the tile, or of each row), the first row of a tile, the rows, which of them exist."""
    if TILE:
        blocks = tl.cdiv(count, ROWS)
        group = tl.program_id(0) // blocks
        begin = tl.program_id(0) % blocks * ROWS
        row = begin + tl.arange(0, ROWS)
        inside = row < count
    else:
        number = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        group = number // count
        begin = tl.program_id(0) * 0
        row = number % count
        inside = number < groups * count
    return group, begin, row, inside


@triton.jit
def _not_finite(x):
    """Whether any entry is NaN or infinite: x - x is NaN for both."""
    return has_nan(x - x)


@triton.jit
def _absorb(score, peak):
    """A step of the online softmax: the new peak, the weights under it, what shrinks the sums so far."""
    if len(score.shape) == 2:
        new_peak = tl.maximum(peak, tl.max(score, 1))
        # A row that has seen nothing yet has the peak -inf, and -inf - -inf is NaN.
        finite_peak = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        weight = tl.exp2(score - finite_peak[:, None])
    else:
        new_peak = tl.maximum(peak, score)
        finite_peak = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        weight = tl.exp2(score - finite_peak)
    return new_peak, weight, tl.exp2(peak - finite_peak)


@triton.jit
def _finish(peak, total, mixed, query, rule, CHUNK: tl.constexpr):
    """Divide by the softmax denominator; a row that saw nothing gives zeros, and -inf for its log-sum."""
    # Who sees anything sees itself. (A total of 0 says less: all scores may be -inf, and the result NaN.)
    seen_any = _sees(query, query, rule, CHUNK)
    denominator = tl.where(seen_any, total, 1.0)
    return mixed / denominator[:, None], tl.where(seen_any, peak + tl.log2(denominator), -float("inf"))


@triton.jit
def _read_by_shift(
    q_rows, query, keys, values, rule, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
):  # fmt: skip
    """The read of every row, one key a step, from itself backwards."""
    q_rows = q_rows.to(tl.float32)
    peak = tl.full([q_rows.shape[0]], -float("inf"), tl.float32)
    total = tl.zeros([q_rows.shape[0]], tl.float32)
    mixed = tl.zeros([q_rows.shape[0], VALUE_PADDED], tl.float32)
    for step in range(rule[3]):
        key = query - step
        seen = _sees(query, key, rule, CHUNK)
        k_rows = _load(keys, key, seen, WIDTH, q_rows.shape[1]).to(tl.float32)
        v_rows = _load(values, key, seen, VALUE_WIDTH, VALUE_PADDED).to(tl.float32)
        score = tl.sum(q_rows * k_rows, 1) * (scale * 1.4426950408889634)
        peak, weight, shrink = _absorb(tl.where(seen, score, -float("inf")), peak)
        total = total * shrink + weight
        mixed = mixed * shrink[:, None] + weight[:, None] * v_rows
    return _finish(peak, total, mixed, query, rule, CHUNK)


@triton.jit
def _read_by_tile(
    q_rows, begin, query, keys, values, rule, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same read for a block of queries of one group, a block of keys a step."""
    peak = tl.full([q_rows.shape[0]], -float("inf"), tl.float32)
    total = tl.zeros([q_rows.shape[0]], tl.float32)
    mixed = tl.zeros([q_rows.shape[0], VALUE_PADDED], tl.float32)
    end = tl.minimum(begin + q_rows.shape[0], rule[0])
    for start in range(_first_seen(begin, rule, CHUNK), end, COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        k_rows = _load(keys, key, key < end, WIDTH, q_rows.shape[1])
        v_rows = _load(values, key, key < end, VALUE_WIDTH, VALUE_PADDED)
        score = tl.dot(q_rows, tl.trans(k_rows), input_precision="ieee") * (scale * 1.4426950408889634)
        seen = _sees(query[:, None], key[None, :], rule, CHUNK)
        peak, weight, shrink = _absorb(tl.where(seen, score, -float("inf")), peak)
        total = total * shrink + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(v_rows.dtype), v_rows, mixed * shrink[:, None], input_precision="ieee")
    return _finish(peak, total, mixed, query, rule, CHUNK)


@triton.jit
def _dq_by_shift(
    q_rows, grad_rows, query, log_sum, delta, keys, values, rule, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    q_rows, grad_rows = q_rows.to(tl.float32), grad_rows.to(tl.float32)
    dq = tl.zeros([q_rows.shape[0], q_rows.shape[1]], tl.float32)
    for step in range(rule[3]):
        key = query - step
        seen = _sees(query, key, rule, CHUNK)
        k_rows = _load(keys, key, seen, WIDTH, q_rows.shape[1]).to(tl.float32)
        v_rows = _load(values, key, seen, VALUE_WIDTH, grad_rows.shape[1]).to(tl.float32)
        weight = tl.exp2(tl.sum(q_rows * k_rows, 1) * (scale * 1.4426950408889634) - log_sum)
        ds = weight * (tl.sum(grad_rows * v_rows, 1) - delta)
        dq += tl.where(seen[:, None], ds[:, None] * k_rows, 0.0)
    return dq


@triton.jit
def _dq_by_tile(
    q_rows, grad_rows, begin, query, log_sum, delta, keys, values, rule, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    dq = tl.zeros([q_rows.shape[0], q_rows.shape[1]], tl.float32)
    end = tl.minimum(begin + q_rows.shape[0], rule[0])
    for start in range(_first_seen(begin, rule, CHUNK), end, COLUMNS):
        key = start + tl.arange(0, COLUMNS)
        k_rows = _load(keys, key, key < end, WIDTH, q_rows.shape[1])
        v_rows = _load(values, key, key < end, VALUE_WIDTH, grad_rows.shape[1])
        score = tl.dot(q_rows, tl.trans(k_rows), input_precision="ieee") * (scale * 1.4426950408889634)
        weight = tl.exp2(score - log_sum[:, None])
        ds = weight * (tl.dot(grad_rows, tl.trans(v_rows), input_precision="ieee") - delta[:, None])
        ds = tl.where(_sees(query[:, None], key[None, :], rule, CHUNK), ds, 0.0)
        dq = tl.dot(ds.to(k_rows.dtype), k_rows, dq, input_precision="ieee")
    return dq


@triton.jit
def _dkv_by_shift(
    dk, dv, k_rows, v_rows, key, queries, grads, lse, deltas, before, span, rule, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Add what the queries of one head send back to their keys, one query a step, forwards."""
    k_rows, v_rows = k_rows.to(tl.float32), v_rows.to(tl.float32)
    for step in range(tl.minimum(rule[3], span[0])):
        query = tl.maximum(key, span[1]) + step
        row = query - span[1]
        seen = _sees(query, key, rule, CHUNK)
        q_rows = _load(queries, row, seen, WIDTH, k_rows.shape[1]).to(tl.float32)
        grad_rows = _load(grads, row, seen, VALUE_WIDTH, v_rows.shape[1]).to(tl.float32)
        score = tl.sum(q_rows * k_rows, 1) * (scale * 1.4426950408889634)
        weight = tl.exp2(score - tl.load(lse + before + row, mask=seen, other=0.0))
        if DV:
            dv += tl.where(seen[:, None], weight[:, None] * grad_rows, 0.0)
        if DK:
            delta = tl.load(deltas + before + row, mask=seen, other=0.0)
            ds = weight * (tl.sum(grad_rows * v_rows, 1) - delta)
            dk += tl.where(seen[:, None], ds[:, None] * q_rows, 0.0)
    return dk, dv


@triton.jit
def _dkv_by_tile(
    dk, dv, k_rows, v_rows, begin, key, queries, grads, lse, deltas, before, span, rule, scale,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    end = _last_seeing(tl.minimum(begin + k_rows.shape[0], rule[0]) - 1, rule, CHUNK) + 1
    for start in range(tl.maximum(begin, span[1]), end, COLUMNS):
        query = start + tl.arange(0, COLUMNS)
        row = query - span[1]
        q_rows = _load(queries, row, query < end, WIDTH, k_rows.shape[1])
        grad_rows = _load(grads, row, query < end, VALUE_WIDTH, v_rows.shape[1])
        seen = _sees(query[None, :], key[:, None], rule, CHUNK)
        score = tl.dot(k_rows, tl.trans(q_rows), input_precision="ieee") * (scale * 1.4426950408889634)
        weight = tl.exp2(score - tl.load(lse + before + row, mask=query < end, other=0.0)[None, :])
        weight = tl.where(seen, weight, 0.0)
        if DV:
            dv = tl.dot(weight.to(grad_rows.dtype), grad_rows, dv, input_precision="ieee")
        if DK:
            delta = tl.load(deltas + before + row, mask=query < end, other=0.0)
            ds = weight * (tl.dot(v_rows, tl.trans(grad_rows), input_precision="ieee") - delta[None, :])
            dk = tl.dot(tl.where(seen, ds, 0.0).to(q_rows.dtype), q_rows, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def _dkv_of_heads(
    k_rows, v_rows, begin, key, key_group, share, sources, labels, sizes, span, facts, scale,
    LEVELS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dk (without the scale) and dv, summed over the query heads that share these keys; zero if not asked."""
    dk = tl.zeros([k_rows.shape[0], k_rows.shape[1]], tl.float32)
    dv = tl.zeros([v_rows.shape[0], v_rows.shape[1]], tl.float32)
    for member in range(share):
        group = key_group * share + member
        rule = (
            facts[0], facts[1], facts[2], facts[3],
            (labels[0], offset(group, sizes, labels[1], LEVELS, 2), labels[1]),
            (labels[2], offset(group, sizes, labels[3], LEVELS, 2), labels[3]),
        )  # fmt: skip
        queries = (sources[0], offset(group, sizes, sources[1], LEVELS, 2), sources[1])
        grads = (sources[2], offset(group, sizes, sources[3], LEVELS, 2), sources[3])
        lse, deltas, before = sources[4], sources[5], group.to(tl.int64) * span[0]
        if TILE:
            dk, dv = _dkv_by_tile(
                dk, dv, k_rows, v_rows, begin, key, queries, grads, lse, deltas, before, span, rule, scale,
                CHUNK, WIDTH, VALUE_WIDTH, DK, DV, COLUMNS,
            )  # fmt: skip
        else:
            dk, dv = _dkv_by_shift(
                dk, dv, k_rows, v_rows, key, queries, grads, lse, deltas, before, span, rule, scale,
                CHUNK, WIDTH, VALUE_WIDTH, DK, DV,
            )  # fmt: skip
    return dk, dv


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    q, k, v, out, lse, documents, valid,
    q_strides, k_strides, v_strides, out_strides, document_strides, valid_strides, sizes, key_sizes,
    groups, share, n_q, n_k, query_start, window, lookback, reach, scale,
    LEVELS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    group, begin, row, inside = _place(n_q, groups, ROWS, TILE)
    # A row that does not exist gets the position n_k, which sees nothing.
    query = tl.where(inside, query_start + row, n_k)
    rule = (
        n_k, window, lookback, reach,
        (documents, offset(group, sizes, document_strides, LEVELS, 2), document_strides),
        (valid, offset(group, sizes, valid_strides, LEVELS, 2), valid_strides),
    )  # fmt: skip
    queries = (q, offset(group, sizes, q_strides, LEVELS, 2), q_strides)
    keys = (k, offset(group // share, key_sizes, k_strides, LEVELS, 2), k_strides)
    values = (v, offset(group // share, key_sizes, v_strides, LEVELS, 2), v_strides)
    outs = (out, offset(group, sizes, out_strides, LEVELS, 2), out_strides)
    q_rows = _load(queries, row, inside, WIDTH, PADDED)
    if TILE:
        mixed, log_sum = _read_by_tile(
            q_rows, query_start + begin, query, keys, values, rule, scale,
            CHUNK, WIDTH, VALUE_WIDTH, VALUE_PADDED, COLUMNS,
        )  # fmt: skip
        if _not_finite(mixed):
            mixed, log_sum = _read_by_shift(
                q_rows, query, keys, values, rule, scale, CHUNK, WIDTH, VALUE_WIDTH, VALUE_PADDED
            )  # fmt: skip
    else:
        mixed, log_sum = _read_by_shift(
            q_rows, query, keys, values, rule, scale, CHUNK, WIDTH, VALUE_WIDTH, VALUE_PADDED
        )  # fmt: skip
    _store(outs, row, inside, mixed, VALUE_WIDTH)
    tl.store(lse + group.to(tl.int64) * n_q + row, log_sum, mask=inside)


@triton.jit(do_not_specialize=LENGTHS)
def backward_q(
    q, k, v, out, grad, lse, deltas, dq, documents, valid,
    q_strides, k_strides, v_strides, out_strides, grad_strides, dq_strides, document_strides, valid_strides,
    sizes, key_sizes, groups, share, n_q, n_k, query_start, window, lookback, reach, scale,
    LEVELS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dq, owned by queries like the forward, and delta = Σ grad · out of each row for `backward_kv`.

    Either may be None; without dq nothing but grad and out is read.
    """
    group, begin, row, inside = _place(n_q, groups, ROWS, TILE)
    outs = (out, offset(group, sizes, out_strides, LEVELS, 2), out_strides)
    grads = (grad, offset(group, sizes, grad_strides, LEVELS, 2), grad_strides)
    number = group.to(tl.int64) * n_q + row
    grad_rows = _load(grads, row, inside, VALUE_WIDTH, VALUE_PADDED)
    out_rows = _load(outs, row, inside, VALUE_WIDTH, VALUE_PADDED)
    delta = tl.sum(grad_rows.to(tl.float32) * out_rows.to(tl.float32), 1)
    if deltas is not None:
        tl.store(deltas + number, delta, mask=inside)
    if dq is not None:
        query = tl.where(inside, query_start + row, n_k)
        rule = (
            n_k, window, lookback, reach,
            (documents, offset(group, sizes, document_strides, LEVELS, 2), document_strides),
            (valid, offset(group, sizes, valid_strides, LEVELS, 2), valid_strides),
        )  # fmt: skip
        queries = (q, offset(group, sizes, q_strides, LEVELS, 2), q_strides)
        keys = (k, offset(group // share, key_sizes, k_strides, LEVELS, 2), k_strides)
        values = (v, offset(group // share, key_sizes, v_strides, LEVELS, 2), v_strides)
        dqs = (dq, offset(group, sizes, dq_strides, LEVELS, 2), dq_strides)
        q_rows = _load(queries, row, inside, WIDTH, PADDED)
        log_sum = tl.load(lse + number, mask=inside, other=0.0)
        if TILE:
            dq_rows = _dq_by_tile(
                q_rows, grad_rows, query_start + begin, query, log_sum, delta, keys, values, rule, scale,
                CHUNK, WIDTH, VALUE_WIDTH, COLUMNS,
            )  # fmt: skip
            if _not_finite(dq_rows):
                dq_rows = _dq_by_shift(
                    q_rows, grad_rows, query, log_sum, delta, keys, values, rule, scale,
                    CHUNK, WIDTH, VALUE_WIDTH,
                )  # fmt: skip
        else:
            dq_rows = _dq_by_shift(
                q_rows, grad_rows, query, log_sum, delta, keys, values, rule, scale,
                CHUNK, WIDTH, VALUE_WIDTH,
            )  # fmt: skip
        _store(dqs, row, inside, dq_rows * scale, WIDTH)


@triton.jit(do_not_specialize=LENGTHS)
def backward_kv(
    q, k, v, grad, lse, deltas, dk, dv, documents, valid, q_strides, k_strides, v_strides, grad_strides,
    dk_strides, dv_strides, document_strides, valid_strides, sizes, key_sizes,
    groups, share, n_q, n_k, query_start, window, lookback, reach, scale,
    LEVELS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dk and dv, owned by keys, so that no sum needs an atomic.

    Either may be None; without dk neither v nor deltas is read.
    """
    key_group, begin, row, inside = _place(n_k, groups // share, ROWS, TILE)
    key = tl.where(inside, row, n_k)
    k_offset = offset(key_group, key_sizes, k_strides, LEVELS, 2)
    v_offset = offset(key_group, key_sizes, v_strides, LEVELS, 2)
    k_rows = _load((k, k_offset, k_strides), row, inside, WIDTH, PADDED)
    v_rows = tl.zeros([ROWS, VALUE_PADDED], v.dtype.element_ty)
    if dk is not None:
        v_rows = _load((v, v_offset, v_strides), row, inside, VALUE_WIDTH, VALUE_PADDED)
    sources = (q, q_strides, grad, grad_strides, lse, deltas)
    labels = (documents, document_strides, valid, valid_strides)
    span = (n_q, query_start)
    facts = (n_k, window, lookback, reach)
    dk_rows, dv_rows = _dkv_of_heads(
        k_rows, v_rows, begin, key, key_group, share, sources, labels, sizes, span, facts, scale,
        LEVELS, CHUNK, WIDTH, VALUE_WIDTH, dk is not None, dv is not None, TILE, COLUMNS,
    )  # fmt: skip
    if TILE and (_not_finite(dk_rows) | _not_finite(dv_rows)):
        dk_rows, dv_rows = _dkv_of_heads(
            k_rows, v_rows, begin, key, key_group, share, sources, labels, sizes, span, facts, scale,
            LEVELS, CHUNK, WIDTH, VALUE_WIDTH, dk is not None, dv is not None, False, COLUMNS,
        )  # fmt: skip
    if dk is not None:
        dk_offset = offset(key_group, key_sizes, dk_strides, LEVELS, 2)
        _store((dk, dk_offset, dk_strides), row, inside, dk_rows * scale, WIDTH)
    if dv is not None:
        dv_offset = offset(key_group, key_sizes, dv_strides, LEVELS, 2)
        _store((dv, dv_offset, dv_strides), row, inside, dv_rows, VALUE_WIDTH)


class _Call(NamedTuple):
    """What the launches of one call share."""

    groups: int
    config: Config
    arguments: dict[str, Any]


def _prepare(
    tensors: dict[str, Tensor], documents: Tensor | None, valid: Tensor | None,
    axis: int, head_axis: int | None, window: int, chunk: bool, lookback: int, query_start: int, scale: float,
) -> _Call:  # fmt: skip
    """Turn shapes and strides into the arguments the kernels share; nothing is copied."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    n_q, n_k = q.shape[axis], k.shape[axis]
    groups = q.numel() // (n_q * q.shape[-1])
    if groups * n_k >= 2**31:
        raise ValueError(
            f"rung='kernels' takes fewer than 2^31 rows, groups times length; got {groups * n_k}."
        )
    if head_axis is not None and q.shape[head_axis] == k.shape[head_axis]:
        head_axis = None
    places = [place for place in range(q.ndim - 1) if place not in (axis, head_axis)]
    places += [] if head_axis is None else [head_axis]

    shape = [*q.shape[:axis], n_k, *q.shape[axis + 1 : -1]]
    labels = {"document": documents, "valid": None if valid is None else valid.view(torch.uint8)}
    everything = tensors | {
        name: x.expand(shape).unsqueeze(-1) for name, x in labels.items() if x is not None
    }
    levels = _triton.levels(list(everything.values()), places, head_axis)
    share = 1 if head_axis is None else q.shape[head_axis] // k.shape[head_axis]
    # Decoding does not need the outermost size, and it would make variants for nothing.
    sizes = (1, *(size for size, _ in levels[1:]))
    none = (0,) * (2 + len(levels))
    arguments: dict[str, Any] = dict.fromkeys(
        (f"{name}_strides" for name in ("document", "valid", "dq", "dk", "dv")), none
    )
    for index, (name, x) in enumerate(everything.items()):
        by_level = (strides[index] for _, strides in levels)
        arguments[f"{name}_strides"] = (x.stride(axis), x.stride(-1), *by_level)

    # A window beyond the length is the length; that also keeps the products of both below 2^31.
    window = min(window, n_k)
    lookback = min(lookback, -(-n_k // window))
    reach = min(window * (lookback + 1) if chunk else window, n_k)
    arguments |= {
        "documents": labels["document"], "valid": labels["valid"],
        # The axis of grouped heads is the innermost level.
        "sizes": sizes, "key_sizes": (*sizes[:-1], max(1, sizes[-1] // share)),
        "groups": groups, "share": share,
        "n_q": n_q, "n_k": n_k, "query_start": query_start,
        "window": window, "lookback": lookback, "reach": reach, "scale": scale,
        "LEVELS": len(levels), "CHUNK": chunk, "WIDTH": q.shape[-1], "VALUE_WIDTH": v.shape[-1],
        "PADDED": max(16, triton.next_power_of_2(q.shape[-1])),
        "VALUE_PADDED": max(16, triton.next_power_of_2(v.shape[-1])),
    }  # fmt: skip
    padded = max(arguments["PADDED"], arguments["VALUE_PADDED"])
    few, aligned = n_q < FEW or reach <= SHORT, all(_triton.aligned(x, axis) for x in tensors.values())
    config = pick_config(
        _triton.capability(q), q.dtype, padded, few=few, aligned=aligned, backward="grad" in tensors
    )
    arguments |= {"TILE": config.tile, "ROWS": config.rows, "COLUMNS": config.columns}
    return _Call(groups, config, arguments)


def _launch(kernel: Any, call: _Call, groups: int, count: int, tensors: dict[str, Any]) -> None:
    """Run one kernel over `count` rows of each of `groups` groups."""
    tile, rows, _, warps, stages = call.config
    programs = groups * triton.cdiv(count, rows) if tile else triton.cdiv(groups * count, rows)
    _triton.launch(
        "short_swa", kernel, programs, call.arguments | tensors,
        device=tensors["q"].device, warps=warps, stages=stages, registers=_triton.most_registers(warps),
    )  # fmt: skip


def _empty_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    return out, torch.empty(q.numel() // q.shape[-1], dtype=torch.float32, device=q.device)


def _empty_gradients(inputs: tuple[Tensor, Tensor, Tensor], needs: tuple[bool, bool, bool]) -> list[Tensor]:
    """Room for each gradient that is needed; something empty for others: an operator cannot return None."""
    return [
        torch.empty(x.shape if need else [0], dtype=x.dtype, device=x.device)
        for x, need in zip(inputs, needs, strict=True)
    ]


@torch.library.custom_op("t2lib::short_swa", mutates_args=(), device_types=DEVICES)
def _forward(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, valid: Tensor | None,
    axis: int, head_axis: int | None, window: int, chunk: bool, lookback: int, query_start: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result, and the base-2 logarithm of each row's softmax denominator for the backward pass."""
    out, lse = _empty_results(q, v)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    call = _prepare(tensors, documents, valid, axis, head_axis, window, chunk, lookback, query_start, scale)
    if call.groups:
        _launch(forward, call, call.groups, q.shape[axis], tensors | {"lse": lse})
    return out, lse


@torch.library.custom_op("t2lib::short_swa_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    documents: Tensor | None, valid: Tensor | None,
    axis: int, head_axis: int | None, window: int, chunk: bool, lookback: int, query_start: int, scale: float,
    need_q: bool, need_k: bool, need_v: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv; something empty for each that is not needed."""
    needs = (need_q, need_k, need_v)
    dq, dk, dv = _empty_gradients((q, k, v), needs)
    tensors = {"q": q, "k": k, "v": v, "out": out, "grad": grad}
    wanted = zip(("dq", "dk", "dv"), (dq, dk, dv), needs, strict=True)
    tensors |= {name: x for name, x, need in wanted if need}
    call = _prepare(tensors, documents, valid, axis, head_axis, window, chunk, lookback, query_start, scale)
    if call.groups:
        absent = dict.fromkeys(("dq", "dk", "dv"))
        given: dict[str, Any] = absent | tensors | {"lse": lse, "deltas": None}
        if need_k:
            given["deltas"] = torch.empty_like(lse)
        if need_q or need_k:
            _launch(backward_q, call, call.groups, q.shape[axis], given)
        if need_k or need_v:
            _launch(backward_kv, call, call.groups // call.arguments["share"], k.shape[axis], given)
    return dq, dk, dv


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = _empty_gradients((q, k, v), rest[-3:])
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, documents, valid, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, documents, valid)


def _differentiate(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad[:3]
    found = _backward(grad, *ctx.saved_tensors, *ctx.rest, *needs)
    return *(x if need else None for x, need in zip(found, needs, strict=True)), *[None] * 9


_forward.register_autograd(_differentiate, setup_context=_save)


def refuses(q: Tensor) -> str | None:
    """Why the kernels do not take a tensor like q, as the end of a sentence; None if they do."""
    reason = _triton.refuses(q)
    if reason is None and q.numel() // max(1, q.shape[-1]) >= 2**31:
        return f"it takes fewer than 2^31 rows of q, got shape {tuple(q.shape)}, takes rung='eager'"
    if reason is None and q.shape[-1] > WIDEST:
        return f"it takes a width of q and k of at most {WIDEST}, got {q.shape[-1]}, takes rung='eager'"
    return reason


def short_swa(
    q: Tensor, k: Tensor, v: Tensor, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Tensor:
    """The reads of `loops` in one kernel, their gradients in two; arguments as the contract passes them.

    float32 (products in full float32, not TF32), float16, and bfloat16 from compute capability 8.0; softmax
    and sums in float32. Differentiable once: the backward pass has no derivative of its own; it computes the
    gradients that are needed and reads what they need. A NaN in q, k or v reaches exactly the rows that see
    it. Memory beyond results and gradients: two float32 a row of q. Bytes moved: `cost.kernel_bytes`.
    """
    _triton.check("short_swa", refuses(q))
    rule = (
        mask.documents, mask.valid, axis, head_axis, mask.window, mask.window_type == "chunk", mask.lookback,
        mask.query_start, scale,
    )  # fmt: skip
    # A value wider than the kernels hold is read in pieces, each with the same weights.
    pieces = [_forward(q, k, piece, *rule)[0] for piece in v.split(WIDEST, -1)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
