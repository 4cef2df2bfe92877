# Triton has no types for the functions it compiles, and no unpacking of tuples.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005
"""Triton, forward and backward. The states come as a tuple of pointers, each with its own strides.

A program owns one token, all its channels, and a few queries. It reads each state once, for norm, score and
sum together: the softmax is made as it goes (a larger score shrinks the sum so far). Finished reads of other
parts of the list join the same sum, each with its log-sum-exp, and the result may leave normalised as well.

Backward keeps of every token the log-sum-exp of each query and the norm of each state, makes scores and
weights again, and reads each state once more. The gradient of a query that all tokens share is summed over a
run of tokens into a place of the program's own, and PyTorch adds the runs up: no atomics, the same bits in
every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from t2lib.ops import _triton
from t2lib.ops._configs import tabled
from t2lib.ops._triton import DEVICES, offset
from t2lib.ops.depth_attention.eager import folded

# A program holds a whole token: wider ones do not fit its registers.
WIDEST = 8192
# Queries of one call.
MOST_QUERIES = 16


class Config(NamedTuple):
    """Queries a program holds forward, tokens it walks through backward, warps; channels and tokens of the
    programs that sum the gradients of several queries."""

    queries: int
    rows: int
    warps: int
    columns: int
    column_rows: int


@tabled("depth_attention")
def pick_config(capability: tuple[int, int], padded: int, queries: int) -> Config:
    """The configuration for a width padded to a power of two.

    Each entry compiles (Triton 3.7) without a spill from compute capability 7.5 on (tests/kernels/build);
    none is tuned for speed; those that were are in the table of `_configs`. Capability (0, 0) is the
    interpreter.
    """
    warps = min(16, max(1, padded // 256))
    held = 4 if padded <= 2048 else 2 if padded <= 4096 else 1
    if capability == (0, 0):
        return Config(min(2, queries), 4, warps, 64, 16)
    return Config(min(held, triton.next_power_of_2(queries)), 16, warps, min(256, padded), 64)


def states_at_once(padded: int, queries: int, held: int, *, backward: bool = False) -> int:
    """How many states one launch visits: loops over them are unrolled, so more would compile for long.

    Forward, another launch goes on from the reads so far; backward, it reads those and their gradients again.
    A wide token leaves few registers, and backward by one query, which is held with its gradient, the fewest.
    """
    wide = padded > 4096
    if backward:
        return 16 if not wide else 8 if queries > 1 else 2
    if held == 1:
        return 10 if wide else 24
    return 12 if padded <= 2048 else 10


@triton.jit
def _along(column, stride, DENSE: tl.constexpr):
    """The offset of each channel; in 64 bits unless neighbours lie side by side."""
    if DENSE:
        return column
    else:
        return column.to(tl.int64) * stride


@triton.jit
def _row(pointer, strides, row, column, inside, sizes, LEVELS: tl.constexpr, DENSE: tl.constexpr):
    """The channels of one token, in float32; strides are those of the width, then of the tokens."""
    at = pointer + offset(row, sizes, strides, LEVELS, 1) + _along(column, strides[0], DENSE)
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _row_of(
    pointer, strides, query, row, column, inside, sizes, LEVELS: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """The same for one of several queries, whose stride comes first."""
    at = pointer + tl.cast(query, tl.int64) * strides[0] + offset(row, sizes, strides, LEVELS, 2)
    return tl.load(at + _along(column, strides[1], DENSE), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _channels(column, query, queries, WIDTH: tl.constexpr, QUERIES: tl.constexpr):
    """The channels there are: none of a query past the last, of which a group of one has none."""
    if QUERIES == 1:
        return column < WIDTH
    else:
        return column < tl.where(query < queries, WIDTH, 0)


@triton.jit
def _ask(
    shared, query, row, column, inside, sizes, WIDTH: tl.constexpr, LEVELS: tl.constexpr, DENSE: tl.constexpr
):
    """What one query asks of this token: what it asks of all, and what the token's own asks, times a gain.

    `shared` is (asks [queries, channels], own, own_gain, own_strides); any pointer may be None.
    """
    asks, own, own_gain, own_strides = shared
    ask = tl.zeros(column.shape, tl.float32)
    if asks is not None:
        ask += tl.load(asks + query * WIDTH + column, mask=inside, other=0.0)
    if own is not None:
        mine = _row(own, own_strides, row, column, inside, sizes, LEVELS, DENSE)
        if own_gain is not None:
            mine *= tl.load(own_gain + column, mask=inside, other=0.0)
        ask += mine
    return ask


@triton.jit
def _absorb(score, block, peak, total, mixed):
    """A step of the online softmax: the peak, the sum of weights and the weighted sum with one more state."""
    new_peak = tl.maximum(peak, score)
    # A part that is empty has the log-sum-exp -inf, and -inf - -inf is NaN.
    finite_peak = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    weight, shrink = tl.exp(score - finite_peak), tl.exp(peak - finite_peak)
    return new_peak, total * shrink + weight, mixed * shrink + weight * block


@triton.jit(do_not_specialize=["tokens", "queries"])
def forward(
    states, asks, own, own_gain, parts, lses, norm_gain, z, lse, norms, normed,
    state_strides, own_strides, part_strides, lse_strides, sizes, tokens, queries, eps, norm_eps,
    STATES: tl.constexpr, PARTS: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One token and QUERIES queries: the reads, log-sum-exps, norms of the states, normalised reads."""
    groups = tl.cdiv(queries, QUERIES)
    row, first = tl.program_id(0) // groups, tl.program_id(0) % groups * QUERIES
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    shared = (asks, own, own_gain, own_strides)
    ask, peak, total, mixed = (), (), (), ()
    for i in tl.static_range(QUERIES):
        there = _channels(column, first + i, queries, WIDTH, QUERIES)
        ask = ask + (_ask(shared, first + i, row, column, there, sizes, WIDTH, LEVELS, DENSE),)
        peak = peak + (tl.full([], -float("inf"), tl.float32),)
        total = total + (tl.full([], 0.0, tl.float32),)
        mixed = mixed + (tl.zeros([PADDED], tl.float32),)
    for part in tl.static_range(PARTS):
        new_peak, new_total, new_mixed = (), (), ()
        for i in tl.static_range(QUERIES):
            there = _channels(column, first + i, queries, WIDTH, QUERIES)
            block = _row_of(
                parts[part], part_strides[part], first + i, row, column, there, sizes, LEVELS, DENSE
            )
            at = offset(row, sizes, lse_strides[part], LEVELS, 1)
            at += tl.cast(first + i, tl.int64) * lse_strides[part][0]
            score = tl.load(lses[part] + at, mask=first + i < queries, other=0.0)
            a, b, c = _absorb(score, block, peak[i], total[i], mixed[i])
            new_peak, new_total, new_mixed = new_peak + (a,), new_total + (b,), new_mixed + (c,)
        peak, total, mixed = new_peak, new_total, new_mixed
    for j in tl.static_range(STATES):
        strides = state_strides[0 if SAME else j]
        block = _row(states[j], strides, row, column, inside, sizes, LEVELS, DENSE)
        norm = tl.rsqrt(tl.sum(block * block) / WIDTH + eps)
        # Every group of queries finds the same norm.
        tl.store(norms + j * tl.cast(tokens, tl.int64) + row, norm, mask=first == 0)
        new_peak, new_total, new_mixed = (), (), ()
        for i in tl.static_range(QUERIES):
            score = tl.sum(block * ask[i]) * norm
            a, b, c = _absorb(score, block, peak[i], total[i], mixed[i])
            new_peak, new_total, new_mixed = new_peak + (a,), new_total + (b,), new_mixed + (c,)
        peak, total, mixed = new_peak, new_total, new_mixed
    for i in tl.static_range(QUERIES):
        there, exists = _channels(column, first + i, queries, WIDTH, QUERIES), first + i < queries
        number = tl.cast(first + i, tl.int64) * tokens + row
        read = mixed[i] / total[i]
        tl.store(z + number * WIDTH + column, read.to(z.dtype.element_ty), mask=there)
        tl.store(lse + number, peak[i] + tl.log(total[i]), mask=exists)
        if normed is not None:
            read *= tl.rsqrt(tl.sum(read * read) / WIDTH + norm_eps)
            read *= tl.load(norm_gain + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(normed + number * WIDTH + column, read.to(normed.dtype.element_ty), mask=there)


@triton.jit
def _pull_back(block, ask, above, norm, lse, delta):
    """What one query sends to one state: its weight, the gradient of its dot product, what its norm takes.

    `delta` is the part in the gradient of a score that all states share.
    """
    score = tl.sum(block * ask) * norm
    weight = tl.exp(score - lse)
    d_score = weight * (tl.sum(block * above) - delta)
    return weight, d_score * norm, d_score * score


@triton.jit(do_not_specialize=["tokens", "rows"])
def backward(
    states, asks, own, own_gain, parts, lses, grad, grad_lse, z, lse, norms,
    d_states, d_asks, d_own, d_parts, d_lses,
    state_strides, own_strides, part_strides, lse_strides, grad_strides, grad_lse_strides, sizes,
    tokens, rows,
    STATES: tl.constexpr, PARTS: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """All gradients of a read by one query.

    That of the query is d_own, for each token in float32, if tokens have their own; else d_asks, as a sum for
    each run of tokens.
    """
    run = tl.program_id(0)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    d_ask = tl.zeros([PADDED], tl.float32)
    for step in range(tl.minimum(rows, tokens - run * rows)):
        row = run * rows + step
        number = row.to(tl.int64)
        above = _row_of(grad, grad_strides, 0, row, column, inside, sizes, LEVELS, DENSE)
        read = tl.load(z + number * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        log_sum = tl.load(lse + number)
        delta = tl.sum(above * read)
        if grad_lse is not None:
            delta -= tl.load(grad_lse + offset(row, sizes, grad_lse_strides, LEVELS, 1))
        for part in tl.static_range(PARTS):
            block = _row_of(parts[part], part_strides[part], 0, row, column, inside, sizes, LEVELS, DENSE)
            score = tl.load(lses[part] + offset(row, sizes, lse_strides[part], LEVELS, 1))
            weight = tl.exp(score - log_sum)
            at = d_parts[part] + number * WIDTH + column
            tl.store(at, (weight * above).to(d_parts[part].dtype.element_ty), mask=inside)
            tl.store(d_lses[part] + number, weight * (tl.sum(block * above) - delta))
        if STATES > 0:
            shared = (asks, own, own_gain, own_strides)
            ask = _ask(shared, 0, row, column, inside, sizes, WIDTH, LEVELS, DENSE)
            if d_own is not None:
                d_ask = tl.zeros([PADDED], tl.float32)
            for j in tl.static_range(STATES):
                strides = state_strides[0 if SAME else j]
                block = _row(states[j], strides, row, column, inside, sizes, LEVELS, DENSE)
                norm = tl.load(norms + j * tl.cast(tokens, tl.int64) + row)
                weight, d_dot, back = _pull_back(block, ask, above, norm, log_sum, delta)
                d_ask += d_dot * block
                d_state = weight * above + d_dot * ask - back * norm * norm / WIDTH * block
                at = d_states[j] + number * WIDTH + column
                tl.store(at, d_state.to(d_states[j].dtype.element_ty), mask=inside)
            if d_own is not None:
                tl.store(d_own + number * WIDTH + column, d_ask, mask=inside)
    if d_asks is not None:
        tl.store(d_asks + tl.cast(run, tl.int64) * WIDTH + column, d_ask, mask=inside)


@triton.jit(do_not_specialize=["tokens", "queries"])
def backward_states(
    states, asks, grad, grad_lse, z, lse, norms, deltas, slopes, d_states,
    state_strides, grad_strides, grad_lse_strides, sizes, tokens, queries,
    STATES: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The gradients of the states under several queries, and that of each dot product, for `backward_asks`.

    What is held of a query would not fit for all of them, so each is read again at each state; the rows of
    one token stay in the cache.
    """
    row = tl.program_id(0)
    number = row.to(tl.int64)
    step = tl.cast(tokens, tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    for i in range(queries):
        above = _row_of(grad, grad_strides, i, row, column, inside, sizes, LEVELS, DENSE)
        read = tl.load(z + (i * step + number) * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        delta = tl.sum(above * read)
        if grad_lse is not None:
            at = grad_lse + i * tl.cast(grad_lse_strides[0], tl.int64)
            delta -= tl.load(at + offset(row, sizes, grad_lse_strides, LEVELS, 1))
        tl.store(deltas + i * step + number, delta)
    # The loop below loads what other threads of this program have stored.
    tl.debug_barrier()
    for j in tl.static_range(STATES):
        strides = state_strides[0 if SAME else j]
        block = _row(states[j], strides, row, column, inside, sizes, LEVELS, DENSE)
        norm = tl.load(norms + j * step + number)
        d_state = tl.zeros([PADDED], tl.float32)
        taken = tl.full([], 0.0, tl.float32)
        for i in range(queries):
            at = i * step + number
            above = _row_of(grad, grad_strides, i, row, column, inside, sizes, LEVELS, DENSE)
            ask = tl.load(asks + i * WIDTH + column, mask=inside, other=0.0)
            weight, d_dot, back = _pull_back(block, ask, above, norm, tl.load(lse + at), tl.load(deltas + at))
            d_state += weight * above + d_dot * ask
            taken += back
            tl.store(slopes + (j * tl.cast(queries, tl.int64) + i) * step + number, d_dot)
        d_state -= taken * norm * norm / WIDTH * block
        tl.store(d_states[j] + number * WIDTH + column, d_state.to(d_states[j].dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "column_rows"])
def backward_asks(
    states, slopes, d_asks, state_strides, sizes, tokens, column_rows,
    STATES: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, DENSE: tl.constexpr, ALL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of several queries over some channels, as a sum for each run of tokens."""
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    run = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    totals = ()
    for _ in tl.static_range(ALL):
        totals = totals + (tl.zeros([COLUMNS], tl.float32),)
    for step in range(tl.minimum(column_rows, tokens - run * column_rows)):
        row = run * column_rows + step
        for j in tl.static_range(STATES):
            strides = state_strides[0 if SAME else j]
            block = _row(states[j], strides, row, column, inside, sizes, LEVELS, DENSE)
            added = ()
            for i in tl.static_range(ALL):
                slope = tl.load(slopes + (j * ALL + i) * tl.cast(tokens, tl.int64) + row)
                added = added + (totals[i] + slope * block,)
            totals = added
    for i in tl.static_range(ALL):
        tl.store(d_asks + (tl.cast(run, tl.int64) * ALL + i) * WIDTH + column, totals[i], mask=inside)


@triton.jit(do_not_specialize=["tokens", "rows"])
def backward_norm(
    grad_normed, grad, z, norm_gain, d_read, d_norm_gain, grad_normed_strides, grad_strides, sizes,
    tokens, rows,
    norm_eps, LEVELS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The gradient of a read out of that of the normalised read, added to its own, if it has one."""
    run = tl.program_id(0)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    gain = tl.load(norm_gain + column, mask=inside, other=0.0).to(tl.float32)
    d_gain = tl.zeros([PADDED], tl.float32)
    for step in range(tl.minimum(rows, tokens - run * rows)):
        row = run * rows + step
        at = row.to(tl.int64) * WIDTH + column
        above = _row_of(grad_normed, grad_normed_strides, 0, row, column, inside, sizes, LEVELS, DENSE)
        read = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        norm = tl.rsqrt(tl.sum(read * read) / WIDTH + norm_eps)
        d_gain += above * read * norm
        above *= gain
        below = norm * above - norm * norm * norm / WIDTH * tl.sum(above * read) * read
        if grad is not None:
            below += _row_of(grad, grad_strides, 0, row, column, inside, sizes, LEVELS, DENSE)
        tl.store(d_read + at, below.to(d_read.dtype.element_ty), mask=inside)
    tl.store(d_norm_gain + tl.cast(run, tl.int64) * WIDTH + column, d_gain, mask=inside)


class _Call(NamedTuple):
    """What the launches of one call share: the shape, strides, and how to cut it."""

    like: Tensor
    tokens: int
    config: Config
    arguments: dict[str, Any]

    def launch(self, kernel: Any, programs: int, arguments: dict[str, Any]) -> None:
        _triton.launch(
            "depth_attention", kernel, programs, self.arguments | arguments,
            device=self.like.device, warps=self.config.warps,
        )  # fmt: skip

    def states(self, states: list[Tensor], first: int, most: int) -> dict[str, Any]:
        """The arguments for some of the states, those from number `first` on."""
        some = states[first : first + most]
        found: dict[str, Any] = {"states": tuple(some) or None, "STATES": len(some)}
        if not self.arguments["SAME"]:
            found["state_strides"] = self.arguments["state_strides"][first : first + most]
        return found


# What each kind of input has before and behind the axes of the tokens: one for each query, channels.
_HAS_QUERIES = ("parts", "lses", "grad", "grad_lse", "grad_normed")
_HAS_WIDTH = ("states", "own", "parts", "grad", "grad_normed")


def _prepare(
    groups: dict[str, list[Tensor]], queries: int, capability: tuple[int, int] | None = None
) -> _Call:
    """Turn shapes and strides into the arguments the kernels share; nothing is copied.

    `groups` holds tensors by what they are; the first one has channels.
    """
    rows: list[Tensor] = []
    before: list[tuple[int, ...]] = []
    for name, group in groups.items():
        for x in group:
            row = x[0] if name in _HAS_QUERIES else x
            lead = (x.stride(0),) if name in _HAS_QUERIES else ()
            # The stride of an axis of length 1 may be anything and is never used.
            channel = (row.stride(-1) if row.shape[-1] > 1 else 1,) if name in _HAS_WIDTH else ()
            rows.append(row)
            before.append((*lead, *channel))
    like = rows[0]
    width = like.shape[-1]
    tokens, padded = like.numel() // width, max(16, triton.next_power_of_2(width))
    levels = _triton.levels(rows, list(range(like.ndim - 1)))
    strides = iter((*lead, *(steps[n] for _, steps in levels)) for n, lead in enumerate(before))
    each = {name: tuple(next(strides) for _ in group) for name, group in groups.items()}
    dense = all(lead[-1] == 1 for name in each if name in _HAS_WIDTH for lead in _leads(each[name], levels))
    config = pick_config(_triton.capability(like) if capability is None else capability, padded, queries)
    if tokens * max(queries, triton.cdiv(width, config.columns)) >= 2**31:
        raise ValueError(f"rung='kernels' takes fewer than 2^31 programs, got {tokens} tokens.")
    states, none = each.get("states", ()), ((0, 0),)
    same = len(set(states)) <= 1
    return _Call(like, tokens, config, {
        # Decoding a token does not need the outermost size, and it would make variants for nothing.
        "sizes": (1, *(size for size, _ in levels[1:])), "LEVELS": len(levels), "DENSE": dense, "SAME": same,
        "state_strides": (states[:1] if same else states) or none,
        "part_strides": each.get("parts") or none, "lse_strides": each.get("lses") or none,
        **{f"{name}_strides": (each.get(name) or none)[0]
           for name in ("own", "grad", "grad_lse", "grad_normed")},
        "WIDTH": width, "PADDED": padded, "tokens": tokens, "queries": queries, "QUERIES": config.queries,
        "ALL": queries, "COLUMNS": config.columns, "rows": config.rows, "column_rows": config.column_rows,
    })  # fmt: skip


def _leads(strides: tuple[tuple[int, ...], ...], levels: list[Any]) -> list[tuple[int, ...]]:
    return [one[: len(one) - len(levels)] for one in strides]


def _listed(x: Tensor | None) -> list[Tensor]:
    return [] if x is None else [x]


def _empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _results(
    states: list[Tensor], parts: list[Tensor], asks: Tensor | None, norm_gain: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like = states[0] if states else parts[0][0]
    queries = 1 if asks is None else len(asks)
    z = _empty(like, queries, *like.shape)
    lse = _empty(like, queries, *like.shape[:-1], dtype=torch.float32)
    norms = _empty(like, len(states), *like.shape[:-1], dtype=torch.float32)
    return z, lse, norms, _empty(like, 0) if norm_gain is None else _empty(like, *z.shape)


@torch.library.custom_op("t2lib::depth_attention", mutates_args=(), device_types=DEVICES)
def _forward(
    states: list[Tensor], asks: Tensor | None, own: Tensor | None, own_gain: Tensor | None, eps: float,
    parts: list[Tensor], lses: list[Tensor], norm_gain: Tensor | None, norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The reads, their log-sum-exps, the norms of the states, the normalised reads (or nothing)."""
    z, lse, norms, normed = _results(states, parts, asks, norm_gain)
    # Vectors that all tokens share are read as they are folded, side by side.
    asks, own_gain, norm_gain = (None if x is None else x.contiguous() for x in (asks, own_gain, norm_gain))
    given: dict[str, Any] = {"asks": asks, "own": own, "own_gain": own_gain, "eps": eps, "norm_eps": norm_eps}
    first, last = 0, z.numel() == 0
    while not last:
        call = _prepare({"states": states, "own": _listed(own), "parts": parts, "lses": lses}, len(z))
        most = states_at_once(call.arguments["PADDED"], len(z), call.config.queries)
        last = first + most >= len(states)
        # More states than a launch takes: its read is one more part for the next.
        out = (z, lse) if last else (_empty(z, *z.shape, dtype=torch.float32), _empty(lse, *lse.shape))
        given |= {"parts": tuple(parts) or None, "lses": tuple(lses) or None, "PARTS": len(parts)}
        given |= {"z": out[0], "lse": out[1], "norms": norms[first:] if states else norms}
        given |= {"norm_gain": norm_gain, "normed": normed if last and norm_gain is not None else None}
        programs = call.tokens * triton.cdiv(len(z), call.config.queries)
        call.launch(forward, programs, given | call.states(states, first, most))
        parts, lses, first = [out[0]], [out[1]], first + most
    return z, lse, norms, normed


@torch.library.custom_op("t2lib::depth_attention_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    grad: Tensor, grad_lse: Tensor | None, z: Tensor, lse: Tensor, norms: Tensor,
    states: list[Tensor], asks: Tensor | None, own: Tensor | None, own_gain: Tensor | None,
    parts: list[Tensor], lses: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """The gradients of states, asks, own, own_gain, parts and lses, those there are, in this order."""
    queries = len(z)
    # Vectors that all tokens share are read as they are folded, side by side.
    asks, own_gain = (None if x is None else x.contiguous() for x in (asks, own_gain))
    groups = {"grad": [grad], "grad_lse": _listed(grad_lse), "states": states}
    groups |= {"own": _listed(own), "parts": parts, "lses": lses}
    call = _prepare(groups, queries)
    d_states = [_empty(x, *x.shape) for x in states]
    d_parts, d_lses = ([_empty(x, *x.shape) for x in group] for group in (parts, lses))
    single = queries == 1
    rows = call.config.rows if single else call.config.column_rows
    runs, most = (
        triton.cdiv(call.tokens, rows),
        states_at_once(call.arguments["PADDED"], queries, 1, backward=True),
    )
    launches = triton.cdiv(len(states), most)
    width = z.shape[-1]

    # One sum for each launch and run; or the gradient of each token's own query, of each launch.
    shape = (runs, queries, width) if own is None else tuple(z.shape)
    sums = None if asks is None and own is None else _empty(z, launches, *shape, dtype=torch.float32)
    given: dict[str, Any] = {
        "asks": asks, "own": own, "own_gain": own_gain, "grad": grad, "grad_lse": grad_lse, "z": z,
        "lse": lse, "lses": tuple(lses) or None,
        "d_parts": tuple(d_parts) or None, "d_lses": tuple(d_lses) or None,
    }  # fmt: skip
    if not single:
        given |= {"deltas": _empty(lse, *lse.shape), "slopes": _empty(lse, len(states), *lse.shape)}
    for launch in range(max(1, launches)) if z.numel() else ():
        first = launch * most
        given |= call.states(states, first, most) | {"norms": norms[first:]}
        given |= {"d_states": tuple(d_states[first : first + most]) or None}
        given["d_asks"] = sums[launch] if sums is not None and own is None else None
        given["d_own"] = sums[launch] if sums is not None and own is not None else None
        if single:
            given |= {"parts": None if launch else tuple(parts) or None, "PARTS": 0 if launch else len(parts)}
            call.launch(backward, runs, given)
        else:
            call.launch(backward_states, call.tokens, given)
            call.launch(backward_asks, runs * triton.cdiv(width, call.config.columns), given)
    found = d_states
    if sums is not None and own is None:
        found.append(sums.sum((0, 1)))
    elif sums is not None and own is not None:
        each = sums[0, 0] if launches == 1 else sums.sum(0)[0]
        tokens = tuple(range(own.ndim - 1))
        found += [] if asks is None else [each.sum(tokens)[None]]
        found.append((each if own_gain is None else each * own_gain).to(own.dtype))
        found += [] if own_gain is None else [(each * own).sum(tokens)]
    return [*found, *d_parts, *d_lses]


@torch.library.custom_op("t2lib::depth_attention_norm_backward", mutates_args=(), device_types=DEVICES)
def _backward_norm(
    grad_normed: Tensor, grad: Tensor | None, z: Tensor, norm_gain: Tensor, norm_eps: float
) -> tuple[Tensor, Tensor]:
    """The gradients of the read and of the gain of its norm, for one query."""
    call = _prepare({"grad_normed": [grad_normed], "grad": _listed(grad)}, 1)
    runs = triton.cdiv(call.tokens, call.config.rows)
    d_read = _empty(z, *z.shape)
    d_gain = _empty(z, runs, z.shape[-1], dtype=torch.float32)
    if z.numel():
        call.launch(backward_norm, runs, {
            "grad_normed": grad_normed, "grad": grad, "z": z,
            "norm_gain": norm_gain.contiguous(),
            "d_read": d_read, "d_norm_gain": d_gain, "norm_eps": norm_eps,
        })  # fmt: skip
    return d_read, d_gain.sum(0).to(norm_gain.dtype)


@_forward.register_fake
def _(
    states: list[Tensor], asks: Tensor | None, own: Tensor | None, own_gain: Tensor | None, eps: float,
    parts: list[Tensor], lses: list[Tensor], norm_gain: Tensor | None, norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _results(states, parts, asks, norm_gain)


@_backward.register_fake
def _(
    grad: Tensor, grad_lse: Tensor | None, z: Tensor, lse: Tensor, norms: Tensor,
    states: list[Tensor], asks: Tensor | None, own: Tensor | None, own_gain: Tensor | None,
    parts: list[Tensor], lses: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    each = [*states, *_listed(asks), *_listed(own), *_listed(own_gain), *parts, *lses]
    return [_empty(x, *x.shape) for x in each]


@_backward_norm.register_fake
def _(
    grad_normed: Tensor, grad: Tensor | None, z: Tensor, norm_gain: Tensor, norm_eps: float
) -> tuple[Tensor, Tensor]:
    return _empty(z, *z.shape), _empty(norm_gain, *norm_gain.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    states, asks, own, own_gain, _, parts, lses, norm_gain, ctx.norm_eps = inputs
    ctx.counts = len(states), len(parts)
    ctx.save_for_backward(*output[:3], asks, own, own_gain, norm_gain, *states, *parts, *lses)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad: Tensor | None, grad_lse: Tensor | None, _: Any, grad_normed: Tensor | None
) -> tuple[Any, ...]:
    z, lse, norms, asks, own, own_gain, norm_gain, *rest = ctx.saved_tensors
    n, p = ctx.counts
    states, parts, lses = rest[:n], rest[n : n + p], rest[n + p :]
    d_norm_gain = None
    if norm_gain is not None and grad_normed is not None:
        grad, d_norm_gain = _backward_norm(grad_normed, grad, z, norm_gain, ctx.norm_eps)
    if grad is None:
        # No memory: one zero, for every place.
        grad = z.new_zeros(()).expand(z.shape)
    found = iter(_backward(grad, grad_lse, z, lse, norms, states, asks, own, own_gain, parts, lses))
    d_states = [next(found) for _ in states]
    d_asks, d_own, d_gain = (None if x is None else next(found) for x in (asks, own, own_gain))
    d_parts, d_lses = [next(found) for _ in parts], [next(found) for _ in lses]
    return d_states, d_asks, d_own, d_gain, None, d_parts, d_lses, d_norm_gain, None


_forward.register_autograd(_differentiate, setup_context=_save)


def refuses(state: Tensor) -> str | None:
    """Why the kernels do not take a tensor like `state`, as the end of a sentence; None if they do."""
    reason = _triton.refuses(state, "states[0]")
    if reason is None and state.shape[-1] > WIDEST:
        return f"it takes a width of at most {WIDEST}, got {state.shape[-1]}, takes rung='eager'"
    return reason


def depth_attention(
    states: tuple[Tensor, ...],
    pseudo_query: Tensor | None,
    gain: Tensor | None,
    query: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The reads of `loops`, several queries in one launch; arguments as the contract passes them.

    float32, float16, and bfloat16 from compute capability 8.0; norms, scores, softmax and sums in float32.
    Differentiable once: the backward pass has no derivative of its own. Bytes moved: `cost.kernel_bytes`.
    """
    _triton.check("depth_attention", refuses(states[0]))
    if pseudo_query is None or query is not None:
        own, own_gain = None if query is None else query[0], None if gain is None else gain[0].float()
        asks = folded(pseudo_query, gain)
        z, lse, _, _ = _forward(list(states), asks, own, own_gain, eps, [], [], None, 0.0)
        return z, lse
    reads, lses = [], []
    for first in range(0, len(pseudo_query), MOST_QUERIES):
        some = slice(first, first + MOST_QUERIES)
        asks = folded(pseudo_query[some], None if gain is None else gain[some])
        z, lse, _, _ = _forward(list(states), asks, None, None, eps, [], [], None, 0.0)
        reads.append(z)
        lses.append(lse)
    return (reads[0], lses[0]) if len(reads) == 1 else (torch.cat(reads), torch.cat(lses))


def merge(reads: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """One read out of reads of parts of the list, in one pass; arguments as the contract passes them."""
    _triton.check("depth_attention", refuses(reads[0]))
    parts, sums = [x[None] for x in reads], [x[None] for x in lses]
    z, lse, _, _ = _forward([], None, None, None, 0.0, parts, sums, None, 0.0)
    return z[0], lse[0]


def read_on(
    states: tuple[Tensor, ...],
    pseudo_query: Tensor | None,
    gain: Tensor | None,
    query: Tensor | None,
    eps: float,
    reads: tuple[Tensor, ...],
    lses: tuple[Tensor, ...],
    norm_gain: Tensor | None,
    norm_eps: float,
) -> tuple[Tensor, ...]:
    """The read by one query that goes on from finished parts and may leave normalised, in one pass.

    Returns the read (1, ..., d) of all, its log-sum-exp (1, ...), and with a `norm_gain` the normalised read.
    """
    _triton.check("depth_attention", refuses(states[0]))
    own, own_gain = (None, None) if query is None else (query[0], None if gain is None else gain[0].float())
    parts, sums = [x[None] for x in reads], [x[None] for x in lses]
    z, lse, _, normed = _forward(
        list(states), folded(pseudo_query, gain), own, own_gain, eps, parts, sums, norm_gain, norm_eps
    )
    return (z, lse) if norm_gain is None else (z, lse, normed)
