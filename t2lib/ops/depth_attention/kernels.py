# Triton has no types for the functions it compiles, and no unpacking of tuples.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005
"""Triton, forward and backward. The states come as a tuple of pointers, each with its own strides.

A program owns one token, all its channels, and a few queries. It reads each state once, for norm, score and
sum together: the softmax is made as it goes (a larger score shrinks the sum so far). Finished reads of other
parts of the list join the same sum, each with its log-sum-exp, and the result may leave normalised as well.

Backward keeps of every token the log-sum-exp of each query and the norm of each state, makes scores and
weights again, and reads each state once more. What nobody needs is neither computed nor written. The gradient
of a query that all tokens share is summed over a run of tokens into a place of the program's own, and PyTorch
adds the runs up: no atomics, the same bits in every run.

A loop over the states goes by groups: those of a group are unrolled, and which group it is decides at run
time among pointers. So neither the code nor the registers grow with the list.
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
# States of one launch: the arguments of a kernel end at 4096 bytes, and each state takes two pointers, and
# strides if they differ.
MOST_STATES = 64
# Queries whose gradients one program sums.
MOST_SUMS = 8


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
    # Eight numbers of a row to a thread; but of 512 threads the assembler makes room for two programs at a
    # time, and spills where that is too little.
    warps = 32 if padded > 2048 else max(1, padded // 256)
    held = 4 if padded <= 2048 else 2 if padded <= 4096 else 1
    if capability == (0, 0):
        return Config(min(2, queries), 4, warps, 64, 16)
    return Config(min(held, triton.next_power_of_2(queries)), 16, warps, min(256, padded), 64)


def group(padded: int, *, kernel: str) -> int:
    """How many states a kernel unrolls: more are under way at once, and hold more registers.

    Of 1024 threads with four numbers each the assembler tries to make room for two programs; four states
    keep it from that, and from the spill it costs.
    """
    if kernel == "forward":
        return 4 if 2048 < padded <= 4096 else 2
    return 1 if padded > 4096 and kernel != "backward_asks" else 2


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
def _nth(items, first, i: tl.constexpr, GROUP: tl.constexpr):
    """items[first + i] for a `first` that only the run knows, a multiple of GROUP; past the end, any item."""
    found = items[i]
    for place in tl.static_range(i + GROUP, len(items), GROUP):
        found = tl.where(first == place - i, items[place], found)
    return found


@triton.jit
def _state(
    listed, first, i: tl.constexpr, row, column, inside, sizes,
    SAME: tl.constexpr, LEVELS: tl.constexpr, DENSE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The channels of state first + i at one token; `listed` is (states, their strides by level)."""
    strides = ()
    for level in tl.static_range(LEVELS + 1):
        if SAME:
            strides = strides + (listed[1][level][0],)
        else:
            strides = strides + (_nth(listed[1][level], first, i, GROUP),)
    return _row(_nth(listed[0], first, i, GROUP), strides, row, column, inside, sizes, LEVELS, DENSE)


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
    GROUP: tl.constexpr,
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
            at = lses[part] + offset(row, sizes, lse_strides[part], LEVELS, 1)
            at += tl.cast(first + i, tl.int64) * lse_strides[part][0]
            score = tl.load(at, mask=first + i < queries, other=0.0)
            a, b, c = _absorb(score, block, peak[i], total[i], mixed[i])
            new_peak, new_total, new_mixed = new_peak + (a,), new_total + (b,), new_mixed + (c,)
        peak, total, mixed = new_peak, new_total, new_mixed
    if STATES > 0:
        listed = (states, state_strides)
        for start in range(0, STATES, GROUP):
            for one in tl.static_range(GROUP):
                exists = start + one < STATES
                block = _state(
                    listed, start, one, row, column, inside & exists, sizes, SAME, LEVELS, DENSE, GROUP
                )
                norm = tl.rsqrt(tl.sum(block * block) / WIDTH + eps)
                # Every group of queries finds the same norm.
                place = norms + (start + one) * tl.cast(tokens, tl.int64) + row
                tl.store(place, norm, mask=exists & (first == 0))
                new_peak, new_total, new_mixed = (), (), ()
                for i in tl.static_range(QUERIES):
                    score = tl.where(exists, tl.sum(block * ask[i]) * norm, -float("inf"))
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


@triton.jit
def _add_up(at, x, inside):
    tl.store(at, tl.load(at, mask=inside, other=0.0) + x, mask=inside)


@triton.jit(do_not_specialize=["tokens", "rows"])
def backward(
    states, asks, own, own_gain, parts, lses, grad, grad_lse, z, lse, norms, carried,
    d_states, d_asks, d_own, d_gain, d_parts, d_lses,
    state_strides, own_strides, part_strides, lse_strides, grad_strides, grad_lse_strides, sizes,
    tokens, rows,
    STATES: tl.constexpr, PARTS: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The gradients of a read by one query, those that are not None.

    d_asks and d_gain are sums, one for each run of tokens; if tokens have queries of their own, they are
    added to what is there. d_own has a row for each token; what an earlier launch over other states has found
    of it is `carried`.
    """
    run = tl.program_id(0)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    d_ask = tl.zeros([PADDED], tl.float32)
    for step in range(tl.minimum(rows, tokens - run * rows)):
        row = run * rows + step
        number = row.to(tl.int64)
        above = _row_of(grad, grad_strides, 0, row, column, inside, sizes, LEVELS, DENSE)
        log_sum = tl.load(lse + number)
        delta = tl.full([], 0.0, tl.float32)
        if STATES > 0 or d_lses is not None:
            delta += tl.sum(
                above * tl.load(z + number * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
            )
            if grad_lse is not None:
                delta -= tl.load(grad_lse + offset(row, sizes, grad_lse_strides, LEVELS, 1))
        for part in tl.static_range(PARTS):
            weight = tl.exp(tl.load(lses[part] + offset(row, sizes, lse_strides[part], LEVELS, 1)) - log_sum)
            if d_parts is not None:
                at = d_parts[part] + number * WIDTH + column
                tl.store(at, (weight * above).to(d_parts[part].dtype.element_ty), mask=inside)
            if d_lses is not None:
                block = _row_of(parts[part], part_strides[part], 0, row, column, inside, sizes, LEVELS, DENSE)
                tl.store(d_lses[part] + number, weight * (tl.sum(block * above) - delta))
        if STATES > 0:
            listed, shared = (states, state_strides), (asks, own, own_gain, own_strides)
            ask = _ask(shared, 0, row, column, inside, sizes, WIDTH, LEVELS, DENSE)
            if own is not None:
                d_ask = tl.zeros([PADDED], tl.float32)
            for start in range(0, STATES, GROUP):
                for one in tl.static_range(GROUP):
                    exists = start + one < STATES
                    there = inside & exists
                    block = _state(listed, start, one, row, column, there, sizes, SAME, LEVELS, DENSE, GROUP)
                    norm = tl.load(
                        norms + (start + one) * tl.cast(tokens, tl.int64) + row, mask=exists, other=0.0
                    )
                    weight, d_dot, back = _pull_back(block, ask, above, norm, log_sum, delta)
                    if d_asks is not None or d_own is not None or d_gain is not None:
                        d_ask += d_dot * block
                    if d_states is not None:
                        d_state = weight * above + d_dot * ask - back * norm * norm / WIDTH * block
                        place = _nth(d_states, start, one, GROUP) + number * WIDTH + column
                        tl.store(place, d_state.to(d_states[0].dtype.element_ty), mask=there)
            # Two more rows would not fit the registers, so these sums are in memory, that is in the cache.
            if d_asks is not None and own is not None:
                _add_up(d_asks + run.to(tl.int64) * WIDTH + column, d_ask, inside)
            if d_gain is not None:
                mine = _row(own, own_strides, row, column, inside, sizes, LEVELS, DENSE)
                _add_up(d_gain + run.to(tl.int64) * WIDTH + column, d_ask * mine, inside)
            if d_own is not None:
                if own_gain is not None:
                    d_ask *= tl.load(own_gain + column, mask=inside, other=0.0)
                if carried is not None:
                    d_ask += tl.load(carried + number * WIDTH + column, mask=inside, other=0.0)
                tl.store(d_own + number * WIDTH + column, d_ask.to(d_own.dtype.element_ty), mask=inside)
    if d_asks is not None and own is None:
        tl.store(d_asks + run.to(tl.int64) * WIDTH + column, d_ask, mask=inside)


@triton.jit(do_not_specialize=["tokens", "queries"])
def backward_states(
    states, asks, grad, grad_lse, z, lse, norms, deltas, slopes, d_states,
    state_strides, grad_strides, grad_lse_strides, sizes, tokens, queries,
    STATES: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The gradients of the states under several queries, and that of each dot product, for `backward_asks`.

    Either may be None. What is held of a query would not fit for all of them, so each is read again at each
    group of states, which is held meanwhile: its gradient row, and what it asks of all tokens. Those of many
    queries of a wide token come from the second-level cache, not from the first.
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
    for start in range(0, STATES, GROUP):
        block, norm, d_state, taken = (), (), (), ()
        for one in tl.static_range(GROUP):
            exists = start + one < STATES
            block = block + (_state(
                (states, state_strides), start, one, row, column, inside & exists, sizes,
                SAME, LEVELS, DENSE, GROUP,
            ),)  # fmt: skip
            norm = norm + (tl.load(norms + (start + one) * step + number, mask=exists, other=0.0),)
            d_state = d_state + (tl.zeros([PADDED], tl.float32),)
            taken = taken + (tl.full([], 0.0, tl.float32),)
        for i in range(queries):
            here = i * step + number
            above = _row_of(grad, grad_strides, i, row, column, inside, sizes, LEVELS, DENSE)
            ask = tl.load(asks + i * WIDTH + column, mask=inside, other=0.0)
            log_sum, delta = tl.load(lse + here), tl.load(deltas + here)
            new_state, new_taken = (), ()
            for one in tl.static_range(GROUP):
                weight, d_dot, back = _pull_back(block[one], ask, above, norm[one], log_sum, delta)
                new_state = new_state + (d_state[one] + weight * above + d_dot * ask,)
                new_taken = new_taken + (taken[one] + back,)
                if slopes is not None:
                    place = slopes + ((start + one) * step + number) * queries + i
                    tl.store(place, d_dot, mask=start + one < STATES)
            d_state, taken = new_state, new_taken
        if d_states is not None:
            for one in tl.static_range(GROUP):
                found = d_state[one] - taken[one] * norm[one] * norm[one] / WIDTH * block[one]
                place = _nth(d_states, start, one, GROUP) + number * WIDTH + column
                there = inside & (start + one < STATES)
                tl.store(place, found.to(d_states[0].dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["tokens", "queries", "column_rows"])
def backward_asks(
    states, slopes, d_asks, state_strides, sizes, tokens, queries, column_rows,
    STATES: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr, WIDTH: tl.constexpr,
    DENSE: tl.constexpr, SUMS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The gradients of some of the queries over some channels, as a sum for each run of tokens.

    The programs for other queries of the same tokens come next, and find the states in the cache.
    """
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    shares = tl.cdiv(queries, SUMS)
    first = tl.program_id(0) % shares * SUMS
    run = tl.program_id(0) // shares // blocks
    column = tl.program_id(0) // shares % blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    totals = ()
    for _ in tl.static_range(SUMS):
        totals = totals + (tl.zeros([COLUMNS], tl.float32),)
    for step in range(tl.minimum(column_rows, tokens - run * column_rows)):
        row = run * column_rows + step
        for start in range(0, STATES, GROUP):
            for one in tl.static_range(GROUP):
                exists = start + one < STATES
                block = _state(
                    (states, state_strides), start, one, row, column, inside & exists, sizes,
                    SAME, LEVELS, DENSE, GROUP,
                )  # fmt: skip
                at = slopes + ((start + one) * tl.cast(tokens, tl.int64) + row) * queries + first
                added = ()
                for i in tl.static_range(SUMS):
                    there = exists & (first + i < queries)
                    slope = tl.load(at + i, mask=there, other=0.0)
                    added = added + (totals[i] + slope * block,)
                totals = added
    for i in tl.static_range(SUMS):
        at = d_asks + (tl.cast(run, tl.int64) * queries + first + i) * WIDTH + column
        tl.store(at, totals[i], mask=inside & (first + i < queries))


@triton.jit(do_not_specialize=["tokens", "rows"])
def backward_norm(
    grad_normed, grad, z, norm_gain, d_read, d_norm_gain, grad_normed_strides, grad_strides, sizes,
    tokens, rows,
    norm_eps, LEVELS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """The gradient of a read out of that of the normalised read, added to its own, if it has one; and that of
    the gain, as a sum for each run of tokens. Either may be None."""
    run = tl.program_id(0)
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    if d_read is not None:
        gain = tl.load(norm_gain + column, mask=inside, other=0.0).to(tl.float32)
    d_gain = tl.zeros([PADDED], tl.float32)
    for step in range(tl.minimum(rows, tokens - run * rows)):
        row = run * rows + step
        at = row.to(tl.int64) * WIDTH + column
        above = _row_of(grad_normed, grad_normed_strides, 0, row, column, inside, sizes, LEVELS, DENSE)
        read = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        norm = tl.rsqrt(tl.sum(read * read) / WIDTH + norm_eps)
        d_gain += above * read * norm
        if d_read is not None:
            above *= gain
            below = norm * above - norm * norm * norm / WIDTH * tl.sum(above * read) * read
            if grad is not None:
                below += _row_of(grad, grad_strides, 0, row, column, inside, sizes, LEVELS, DENSE)
            tl.store(d_read + at, below.to(d_read.dtype.element_ty), mask=inside)
    if d_norm_gain is not None:
        tl.store(d_norm_gain + tl.cast(run, tl.int64) * WIDTH + column, d_gain, mask=inside)


class _Call(NamedTuple):
    """What the launches of one call share: the shape, strides, and how to cut it."""

    like: Tensor
    tokens: int
    config: Config
    arguments: dict[str, Any]

    def launch(self, kernel: Any, programs: int, arguments: dict[str, Any]) -> None:
        """Run one kernel; `arguments` holds the states it visits, if any."""
        _triton.launch(
            "depth_attention", kernel, programs, self.arguments | arguments | self.grouped(kernel, arguments),
            device=self.like.device, warps=self.warps(kernel),
        )  # fmt: skip

    def warps(self, kernel: Any) -> int:
        """A program of `backward_asks` owns some channels, all others own a whole token."""
        if kernel is backward_asks:
            return max(1, self.config.columns // 64)
        # It holds the fewest rows.
        few: int = max(1, self.arguments["PADDED"] // 256)
        return min(self.config.warps, few) if kernel is backward_norm else self.config.warps

    def grouped(self, kernel: Any, arguments: dict[str, Any]) -> dict[str, int]:
        """How many states a kernel unrolls of those it visits."""
        most = group(self.arguments["PADDED"], kernel=kernel.__name__)
        return {"GROUP": max(1, min(most, arguments.get("STATES", 0)))}

    def states(self, states: list[Tensor], first: int) -> dict[str, Any]:
        """The arguments for the states of one launch, those from number `first` on."""
        some = slice(first, first + MOST_STATES)
        strides = self.arguments["state_strides"]
        if not self.arguments["SAME"]:
            strides = tuple(level[some] for level in strides)
        return {"states": tuple(states[some]) or None, "STATES": len(states[some]), "state_strides": strides}


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
        # By level, then by state: one of them is picked at run time.
        "state_strides": tuple(zip(*(states[:1] if same else states or none), strict=True)),
        "part_strides": each.get("parts") or none, "lse_strides": each.get("lses") or none,
        **{f"{name}_strides": (each.get(name) or none)[0]
           for name in ("own", "grad", "grad_lse", "grad_normed")},
        "WIDTH": width, "PADDED": padded, "tokens": tokens, "queries": queries, "QUERIES": config.queries,
        "SUMS": triton.cdiv(queries, triton.cdiv(queries, MOST_SUMS)), "COLUMNS": config.columns,
        "rows": config.rows, "column_rows": config.column_rows,
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
        last = first + MOST_STATES >= len(states)
        # More states than a launch takes: its read is one more part for the next.
        out = (z, lse) if last else (_empty(z, *z.shape, dtype=torch.float32), _empty(lse, *lse.shape))
        given |= {"parts": tuple(parts) or None, "lses": tuple(lses) or None, "PARTS": len(parts)}
        given |= {"z": out[0], "lse": out[1], "norms": norms[first:] if states else norms}
        given |= {"norm_gain": norm_gain, "normed": normed if last and norm_gain is not None else None}
        programs = call.tokens * triton.cdiv(len(z), call.config.queries)
        call.launch(forward, programs, given | call.states(states, first))
        parts, lses, first = [out[0]], [out[1]], first + MOST_STATES
    return z, lse, norms, normed


class Needs(NamedTuple):
    """Of which inputs a gradient is needed."""

    states: bool = True
    asks: bool = True
    own: bool = True
    own_gain: bool = True
    parts: bool = True
    lses: bool = True

    def visit(self) -> bool:
        """Whether any of them takes a walk through the states."""
        return self.states or self.asks or self.own or self.own_gain


@torch.library.custom_op("t2lib::depth_attention_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    grad: Tensor, grad_lse: Tensor | None, z: Tensor, lse: Tensor, norms: Tensor,
    states: list[Tensor], asks: Tensor | None, own: Tensor | None, own_gain: Tensor | None,
    parts: list[Tensor], lses: list[Tensor], needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients of states, asks, own, own_gain, parts and lses that `Needs(*needs)` names, in order."""
    need, queries, width = Needs(*needs), len(z), z.shape[-1]
    # Vectors that all tokens share are read as they are folded, side by side.
    asks, own_gain = (None if x is None else x.contiguous() for x in (asks, own_gain))
    groups = {"grad": [grad], "grad_lse": _listed(grad_lse), "states": states}
    groups |= {"own": _listed(own), "parts": parts, "lses": lses}
    call = _prepare(groups, queries)
    d_states = [_empty(x, *x.shape) for x in states] if need.states else []
    d_parts = [_empty(x, *x.shape) for x in parts] if need.parts else []
    d_lses = [_empty(x, *x.shape) for x in lses] if need.lses else []
    d_own = _empty(own, *own.shape) if own is not None and need.own else None
    visited = states if need.visit() else []
    launches = max(1, triton.cdiv(len(visited), MOST_STATES))
    runs = triton.cdiv(call.tokens, call.config.rows if queries == 1 else call.config.column_rows)
    # A sum for each launch and run of tokens. Where tokens have queries of their own the kernel adds to it.
    make = torch.empty if own is None else torch.zeros
    d_asks, d_gain = (
        make(launches, runs, x.numel(), device=z.device) if x is not None and needed else None
        for x, needed in ((asks, need.asks), (own_gain, need.own_gain))
    )
    given: dict[str, Any] = {
        "asks": asks, "own": own, "own_gain": own_gain,
        "grad": grad, "grad_lse": grad_lse, "z": z, "lse": lse,
        "parts": tuple(parts) or None, "lses": tuple(lses) or None,
        "PARTS": len(parts) if d_parts or d_lses else 0,
        "d_parts": tuple(d_parts) or None, "d_lses": tuple(d_lses) or None, "d_own": None, "carried": None,
    }  # fmt: skip
    slopes = _empty(lse, len(states), call.tokens, queries) if queries > 1 and need.asks else None
    if queries > 1:
        given["deltas"] = _empty(lse, *lse.shape)
    elif d_own is not None and launches > 1:
        given["d_own"] = _empty(z, *d_own.shape, dtype=torch.float32)
    for launch in range(launches) if z.numel() else ():
        first = launch * MOST_STATES
        given |= call.states(visited, first) | {"norms": norms[first:] if visited else norms}
        given |= {"d_states": tuple(d_states[first : first + MOST_STATES]) or None}
        given |= {
            name: None if x is None else x[launch] for name, x in (("d_asks", d_asks), ("d_gain", d_gain))
        }
        if queries == 1:
            if launch == launches - 1:
                given["d_own"] = d_own
            call.launch(backward, runs, given)
            given |= {"PARTS": 0, "d_parts": None, "d_lses": None, "carried": given["d_own"]}
        else:
            given["slopes"] = None if slopes is None else slopes[first:]
            call.launch(backward_states, call.tokens, given)
            if d_asks is not None:
                shares = triton.cdiv(queries, call.arguments["SUMS"])
                call.launch(backward_asks, runs * triton.cdiv(width, call.config.columns) * shares, given)
    found = [*d_states]
    found += [] if d_asks is None else [d_asks.sum((0, 1)).view(queries, width)]
    found += _listed(d_own)
    found += [] if d_gain is None else [d_gain.sum((0, 1))]
    return [*found, *d_parts, *d_lses]


@torch.library.custom_op("t2lib::depth_attention_norm_backward", mutates_args=(), device_types=DEVICES)
def _backward_norm(
    grad_normed: Tensor, grad: Tensor | None, z: Tensor, norm_gain: Tensor, norm_eps: float,
    need_read: bool, need_gain: bool,
) -> list[Tensor]:  # fmt: skip
    """Of the gradients of the read and of the gain of its norm those that are needed, for one query."""
    call = _prepare({"grad_normed": [grad_normed], "grad": _listed(grad)}, 1)
    runs = triton.cdiv(call.tokens, call.config.rows)
    d_read = _empty(z, *z.shape) if need_read else None
    d_gain = _empty(z, runs, z.shape[-1], dtype=torch.float32) if need_gain else None
    if z.numel():
        call.launch(backward_norm, runs, {
            "grad_normed": grad_normed, "grad": grad, "z": z,
            "norm_gain": norm_gain.contiguous(),
            "d_read": d_read, "d_norm_gain": d_gain, "norm_eps": norm_eps,
        })  # fmt: skip
    return [*_listed(d_read), *([] if d_gain is None else [d_gain.sum(0).to(norm_gain.dtype)])]


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
    parts: list[Tensor], lses: list[Tensor], needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    inputs = (states, _listed(asks), _listed(own), _listed(own_gain), parts, lses)
    return [_empty(x, *x.shape) for some, needed in zip(inputs, needs, strict=True) if needed for x in some]


@_backward_norm.register_fake
def _(
    grad_normed: Tensor, grad: Tensor | None, z: Tensor, norm_gain: Tensor, norm_eps: float,
    need_read: bool, need_gain: bool,
) -> list[Tensor]:  # fmt: skip
    return [_empty(x, *x.shape) for x, needed in ((z, need_read), (norm_gain, need_gain)) if needed]


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
    in_states, in_asks, in_own, in_gain, _, in_parts, in_lses, in_norm, _ = ctx.needs_input_grad
    needs = [any(in_states), in_asks, in_own, in_gain, any(in_parts), any(in_lses)]
    d_norm_gain = None
    if norm_gain is not None and grad_normed is not None:
        below = iter(_backward_norm(grad_normed, grad, z, norm_gain, ctx.norm_eps, any(needs), in_norm))
        grad = next(below) if any(needs) else None
        d_norm_gain = next(below) if in_norm else None
    found = iter(())
    if any(needs):
        if grad is None:
            # No memory: one zero, for every place.
            grad = z.new_zeros(()).expand(z.shape)
        found = iter(
            _backward(grad, grad_lse, z, lse, norms, states, asks, own, own_gain, parts, lses, needs)
        )
    d_states, d_parts, d_lses = [None] * n, [None] * p, [None] * p
    if needs[0]:
        d_states = [next(found) for _ in states]
    d_asks, d_own, d_gain = (next(found) if needed else None for needed in needs[1:4])
    if needs[4]:
        d_parts = [next(found) for _ in parts]
    if needs[5]:
        d_lses = [next(found) for _ in lses]
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
    own, own_gain = _own(query, gain)
    z, lse, _, _ = _forward(list(states), folded(pseudo_query, gain), own, own_gain, eps, [], [], None, 0.0)
    return z, lse


def _own(query: Tensor | None, gain: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The query of each token by itself and its gain: only a query that all tokens share is folded."""
    if query is None:
        return None, None
    return query[0], None if gain is None else gain[0].float()


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
    own, own_gain = _own(query, gain)
    parts, sums = [x[None] for x in reads], [x[None] for x in lses]
    z, lse, _, normed = _forward(
        list(states), folded(pseudo_query, gain), own, own_gain, eps, parts, sums, norm_gain, norm_eps
    )
    return (z, lse) if norm_gain is None else (z, lse, normed)
