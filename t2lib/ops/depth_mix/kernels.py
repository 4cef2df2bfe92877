# Triton has no types for the functions it compiles, and no unpacking of tuples.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005
"""Triton, forward and backward. The states come as a tuple of pointers, each with its own strides.

A program owns a block of channels of one token. It visits the states one after the other, reads each once
and adds it to the sums of all outputs. Backward it holds the gradients of all outputs instead, and while it
visits a state it writes the gradient of that state and the part that this block has in the gradient of its
weights. Weights that all tokens share get one part from each run of tokens, in a place of its own, and
PyTorch adds the parts up: no atomics, the same bits in every run.

A launch has registers for MOST_OUTPUTS. More take further launches, each of which reads the states again,
fills its own slice of the result, and going backward adds to what the states have got so far.
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

# Outputs a launch computes.
MOST_OUTPUTS = 8


class Config(NamedTuple):
    """Channels a program owns, tokens it walks through one after the other, its warps."""

    columns: int
    rows: int
    warps: int


@tabled("depth_mix")
def pick_config(capability: tuple[int, int], width: int, outputs: int, *, summed: bool) -> Config:
    """The block of a program.

    `summed` is for the backward pass of weights that all tokens share: a program holds a sum for each, so its
    block is narrow, and walks through many tokens, so the sums it writes are few. For many outputs, and where
    the width gives no vectors to load, a lane has one channel: the assembler loads the weights of all states
    ahead, number by number, and would spill. Each entry compiles (Triton 3.7) without a spill from compute
    capability 7.5 on (tests/kernels/build); none is tuned for speed; those that were are in the table of
    `_configs`. Capability (0, 0) is the interpreter.
    """
    vectors = outputs <= 4 and width % 16 == 0
    most, rows = (256, 64) if summed else (1024 if vectors else 256, 1)
    if capability == (0, 0):
        most, rows = (128, 16) if summed else (128, 1)
    columns = min(most, max(16, triton.next_power_of_2(width)))
    numbers = 2 if summed else 4 if vectors else 1
    return Config(columns, rows, min(8, max(1, columns // (32 * numbers))))


def states_at_once(outputs: int, *, wide: bool, backward: bool = False, summed: bool = False) -> int:
    """How many states one launch visits: loops over them are unrolled, so more would compile for long.

    Forward, another launch reads the sums so far; loads of weights a channel (`wide`) slow the compiler most.
    Backward, it reads the gradients of the outputs once more; registers are the limit, for the sums of
    weights that all tokens share (`summed`) above all, and sums over channels slow the compiler.
    """
    if backward:
        return min(24, max(1, (8 if summed and wide else 16 if summed else 32) // outputs))
    return min(48, (40 if wide else 160) // (outputs + 1))


@triton.jit
def _along(column, stride, DENSE: tl.constexpr):
    """The offset of each channel; in 64 bits unless neighbours lie side by side."""
    if DENSE:
        return column
    else:
        return column.to(tl.int64) * stride


@triton.jit
def _weight(
    shared, own, way, j, column, WIDTH: tl.constexpr, WIDE: tl.constexpr, DENSE: tl.constexpr
):  # fmt: skip
    """The weight that one output gives one state at this token, a number or a number a channel.

    `shared` is (pointer, strides of outputs, states and channels), `own` is (pointer to the weights of this
    token, strides of outputs and states); either pointer may be None.
    """
    # A stride below 2^31 is a number of 32 bits, and a product of two of those would be one, too.
    way, j = tl.cast(way, tl.int64), tl.cast(j, tl.int64)
    if shared[0] is not None:
        where = shared[0] + way * shared[1][0] + j * shared[1][1]
        if WIDE:
            at = where + _along(column, shared[1][2], DENSE)
            fixed = tl.load(at, mask=column < WIDTH, other=0.0).to(tl.float32)
        else:
            fixed = tl.load(where).to(tl.float32)
    if own[0] is not None:
        mine = tl.load(own[0] + way * own[1][0] + j * own[1][1]).to(tl.float32)
        return mine + fixed if shared[0] is not None else mine
    else:
        return fixed


@triton.jit(do_not_specialize=["tokens", "first"])
def forward(
    states, weights, token_weights, z, sums, state_strides, weight_strides, token_strides, sizes,
    tokens, first,
    STATES: tl.constexpr, OUTPUTS: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, DENSE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums over `states`, which are those from number `first` on, added to `sums`, if there are any."""
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    row = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    shared, own = (weights, weight_strides), (token_weights, token_strides)
    if token_weights is not None:
        own = (token_weights + offset(row, sizes, token_strides, LEVELS, 2), token_strides)
    start = row.to(tl.int64) * WIDTH
    step = tl.cast(tokens, tl.int64) * WIDTH
    totals = ()
    for way in tl.static_range(OUTPUTS):
        if sums is None:
            totals = totals + (tl.zeros([COLUMNS], tl.float32),)
        else:
            totals = totals + (tl.load(sums + way * step + start + column, mask=inside, other=0.0),)
    for j in tl.static_range(STATES):
        strides = state_strides[0 if SAME else j]
        at = states[j] + offset(row, sizes, strides, LEVELS, 1) + _along(column, strides[0], DENSE)
        block = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        added = ()
        for way in tl.static_range(OUTPUTS):
            weight = _weight(shared, own, way, first + j, column, WIDTH, WIDE, DENSE)
            added = added + (totals[way] + weight * block,)
        totals = added
    for way in tl.static_range(OUTPUTS):
        tl.store(z + way * step + start + column, totals[way].to(z.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "first", "states_in_all", "rows"])
def backward(
    states, weights, token_weights, grad, sums, d_states, d_weights, d_token_weights,
    state_strides, weight_strides, token_strides, grad_strides, sizes, tokens, first, states_in_all, rows,
    STATES: tl.constexpr, OUTPUTS: tl.constexpr, SAME: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, DENSE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of `states`, those from number `first` on, and of their weights; None if not wanted.

    `sums`, if there are any, are what other outputs have sent to these states. d_weights is
    [runs of tokens, outputs, states, channels], or [programs, outputs, states] if the weights have no
    channels; d_token_weights is [blocks of channels, tokens, outputs, states].
    """
    blocks: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    run, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    shared = (weights, weight_strides)
    totals = ()
    if d_weights is not None:
        for _ in tl.static_range(STATES * OUTPUTS):
            totals = totals + (tl.zeros([COLUMNS], tl.float32),)
    for number in range(tl.minimum(rows, tokens - run * rows)):
        row = run * rows + number
        own = (token_weights, token_strides)
        if token_weights is not None:
            own = (token_weights + offset(row, sizes, token_strides, LEVELS, 2), token_strides)
        above = ()
        for way in tl.static_range(OUTPUTS):
            at = grad + tl.cast(way, tl.int64) * grad_strides[0] + offset(row, sizes, grad_strides, LEVELS, 2)
            at += _along(column, grad_strides[1], DENSE)
            above = above + (tl.load(at, mask=inside, other=0.0).to(tl.float32),)
        added = ()
        for j in tl.static_range(STATES):
            if d_states is not None:
                place = tl.cast(row, tl.int64) * WIDTH + column
                if sums is None:
                    d_state = tl.zeros([COLUMNS], tl.float32)
                else:
                    d_state = tl.load(sums[j] + place, mask=inside, other=0.0)
                for way in tl.static_range(OUTPUTS):
                    weight = _weight(shared, own, way, first + j, column, WIDTH, WIDE, DENSE)
                    d_state += weight * above[way]
                tl.store(d_states[j] + place, d_state.to(d_states[j].dtype.element_ty), mask=inside)
            if d_weights is not None or d_token_weights is not None:
                strides = state_strides[0 if SAME else j]
                at = states[j] + offset(row, sizes, strides, LEVELS, 1) + _along(column, strides[0], DENSE)
                state = tl.load(at, mask=inside, other=0.0).to(tl.float32)
                for way in tl.static_range(OUTPUTS):
                    product = above[way] * state
                    if d_weights is not None:
                        added = added + (totals[j * OUTPUTS + way] + product,)
                    if d_token_weights is not None:
                        place = (tl.cast(block, tl.int64) * tokens + row) * OUTPUTS + way
                        tl.store(d_token_weights + place * states_in_all + (first + j), tl.sum(product))
        totals = added
    if d_weights is not None:
        for way in tl.static_range(OUTPUTS):
            part = tl.cast(run if WIDE else tl.program_id(0), tl.int64) * OUTPUTS + way
            place = part * states_in_all + first
            for j in tl.static_range(STATES):
                total = totals[j * OUTPUTS + way]
                if WIDE:
                    tl.store(d_weights + (place + j) * WIDTH + column, total, mask=inside)
                else:
                    tl.store(d_weights + place + j, tl.sum(total))


class _Call(NamedTuple):
    """What the launches of one call share: the shape, strides, and how to cut it."""

    tokens: int
    blocks: int
    config: Config
    arguments: dict[str, Any]


def _prepare(
    states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None, grad: Tensor | None,
    outputs: int, summed: bool, capability: tuple[int, int],
) -> _Call:  # fmt: skip
    """Turn shapes and strides into the arguments the kernels share; nothing is copied."""
    like = states[0]
    width = like.shape[-1]
    tokens = like.numel() // width
    everything = [*states, *([] if token_weights is None else [token_weights])]
    everything += [] if grad is None else [grad[0]]
    levels = _triton.levels(everything, list(range(like.ndim - 1)))
    by_level = [tuple(strides[place] for _, strides in levels) for place in range(len(everything))]
    # The stride of an axis of length 1 may be anything and is never used.
    steps = [x.stride(-1) if width > 1 else 1 for x in states]
    state_strides = [(step, *some) for step, some in zip(steps, by_level, strict=False)]
    same = all(strides == state_strides[0] for strides in state_strides)
    token_strides: tuple[int, ...] = (0, 0)
    if token_weights is not None:
        token_strides = (token_weights.stride(-2), token_weights.stride(-1), *by_level[len(states)])
    weight_strides = (0, 0, 0) if weights is None else weights.stride()
    wide = weights is not None and weights.shape[-1] == width
    dense = steps + ([weight_strides[2]] if wide and width > 1 else [])
    grad_strides: tuple[int, ...] = (0, 0)
    if grad is not None:
        dense += [grad.stride(-1)] if width > 1 else []
        grad_strides = (grad.stride(0), grad.stride(-1), *by_level[-1])
    # Weights a channel are loads as those of many outputs.
    config = pick_config(capability, width, MOST_OUTPUTS if wide else outputs, summed=summed)
    blocks = triton.cdiv(width, config.columns)
    if tokens * blocks >= 2**31:
        raise ValueError(
            f"rung='kernels' takes fewer than 2^31 blocks of {config.columns} channels, "
            f"got {tokens * blocks}."
        )
    arguments = {
        "weights": weights, "token_weights": token_weights, "grad": grad,
        "state_strides": tuple(state_strides[:1] if same else state_strides), "SAME": same,
        "weight_strides": weight_strides, "token_strides": token_strides, "grad_strides": grad_strides,
        # Decoding a token does not need the outermost size, and it would make variants for nothing.
        "sizes": (1, *(size for size, _ in levels[1:])), "LEVELS": len(levels),
        "tokens": tokens, "rows": config.rows, "states_in_all": len(states), "OUTPUTS": outputs,
        "WIDTH": width, "WIDE": wide, "DENSE": all(step == 1 for step in dense), "COLUMNS": config.columns,
    }  # fmt: skip
    return _Call(tokens, blocks, config, arguments)


def _launch(kernel: Any, call: _Call, programs: int, arguments: dict[str, Any]) -> None:
    """Run one kernel over some of the states, those from number `first` on."""
    first, states = arguments["first"], arguments["states"]
    rest: dict[str, Any] = {"STATES": len(states)}
    if not call.arguments["SAME"]:
        rest["state_strides"] = call.arguments["state_strides"][first : first + len(states)]
    _triton.launch(
        "depth_mix", kernel, programs, call.arguments | arguments | rest,
        device=states[0].device, warps=call.config.warps,
    )  # fmt: skip


def _empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _some_outputs(outputs: int) -> list[slice]:
    """The outputs of each launch, where there are more than one takes."""
    return [slice(first, min(first + MOST_OUTPUTS, outputs)) for first in range(0, outputs, MOST_OUTPUTS)]


@torch.library.custom_op("t2lib::depth_mix", mutates_args=(), device_types=DEVICES)
def _forward(
    states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None, outputs: int
) -> Tensor:
    like = states[0]
    z = _empty(like, outputs, *like.shape)
    for some in _some_outputs(outputs) if like.numel() else ():
        fixed = None if weights is None else weights[some]
        own = None if token_weights is None else token_weights[..., some, :]
        _sum_up(states, fixed, own, z[some])
    return z


def _sum_up(states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None, z: Tensor) -> None:
    """Fill z with the sums, in as few launches as the states take."""
    outputs = z.shape[0]
    call = _prepare(states, weights, token_weights, None, outputs, False, _triton.capability(z))
    most = states_at_once(outputs, wide=call.arguments["WIDE"])
    sums = None if len(states) <= most else _empty(z, *z.shape, dtype=torch.float32)
    for first in range(0, len(states), most):
        given = {"states": tuple(states[first : first + most]), "first": first}
        given["sums"] = sums if first else None
        given["z"] = z if first + most >= len(states) else sums
        _launch(forward, call, call.tokens * call.blocks, given)


class _Part(NamedTuple):
    """Some of the outputs on the way back: their launch, its runs of tokens, sums for their weights."""

    some: slice
    call: _Call
    runs: int
    weights: Tensor | None
    token_weights: Tensor | None


@torch.library.custom_op("t2lib::depth_mix_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    grad: Tensor, states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None,
    need_states: bool, need_weights: bool, need_token_weights: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients that are needed, in the order of the arguments."""
    like, outputs, n = states[0], grad.shape[0], len(states)
    d_states = [_empty(like, *like.shape) for _ in states] if need_states else []
    parts = [
        _part(some, grad, states, weights, token_weights, need_weights, need_token_weights)
        for some in _some_outputs(outputs)
    ]
    summed, wide = parts[0].weights is not None, parts[0].call.arguments["WIDE"]
    most = states_at_once(min(outputs, MOST_OUTPUTS), wide=wide, backward=True, summed=summed)
    # What the launches of other outputs leave for the last one to store.
    apart = need_states and len(parts) > 1
    sums = [_empty(like, *like.shape, dtype=torch.float32) for _ in states[:most]] if apart else []
    for first in range(0, n, most) if like.numel() else ():
        some = states[first : first + most]
        for part in parts:
            given: dict[str, Any] = {"states": tuple(some), "first": first}
            given |= {"d_weights": part.weights, "d_token_weights": part.token_weights}
            given |= {"sums": None, "d_states": None}
            if need_states:
                so_far = tuple(sums[: len(some)])
                given["sums"] = None if part is parts[0] else so_far
                given["d_states"] = tuple(d_states[first : first + most]) if part is parts[-1] else so_far
            _launch(backward, part.call, part.runs * part.call.blocks, given)
    results = d_states
    if weights is not None and need_weights:
        results.append(_empty(weights, *weights.shape))
        for part in parts:
            assert part.weights is not None
            to = results[-1][part.some]
            to.copy_(part.weights.sum(0).view(to.shape))
    if token_weights is not None and need_token_weights:
        results.append(_empty(token_weights, *token_weights.shape))
        for part in parts:
            assert part.token_weights is not None
            to = results[-1][..., part.some, :]
            to.copy_(part.token_weights.sum(0).view(to.shape))
    return results


def _part(
    some: slice, grad: Tensor, states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None,
    need_weights: bool, need_token_weights: bool,
) -> _Part:  # fmt: skip
    like, n, outputs = states[0], len(states), some.stop - some.start
    fixed = None if weights is None else weights[some]
    own = None if token_weights is None else token_weights[..., some, :]
    summed = fixed is not None and need_weights
    call = _prepare(states, fixed, own, grad[some], outputs, summed, _triton.capability(like))
    runs, shared, mine = triton.cdiv(call.tokens, call.config.rows), None, None
    if summed:
        last = (like.shape[-1],) if call.arguments["WIDE"] else ()
        count = runs if last else runs * call.blocks
        shared = _empty(like, count, outputs, n, *last, dtype=torch.float32)
    if own is not None and need_token_weights:
        mine = _empty(like, call.blocks, call.tokens, outputs, n, dtype=torch.float32)
    return _Part(some, call, runs, shared, mine)


@_forward.register_fake
def _(states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None, outputs: int) -> Tensor:
    return _empty(states[0], outputs, *states[0].shape)


@_backward.register_fake
def _(
    grad: Tensor, states: list[Tensor], weights: Tensor | None, token_weights: Tensor | None,
    need_states: bool, need_weights: bool, need_token_weights: bool,
) -> list[Tensor]:  # fmt: skip
    results = [_empty(x, *x.shape) for x in states] if need_states else []
    for x, needed in ((weights, need_weights), (token_weights, need_token_weights)):
        results += [_empty(x, *x.shape)] if x is not None and needed else []
    return results


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    states, weights, token_weights, _ = inputs
    ctx.save_for_backward(weights, token_weights, *states)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    weights, token_weights, *states = ctx.saved_tensors
    need_states, *needs = ctx.needs_input_grad[:3]
    found = iter(_backward(grad, states, weights, token_weights, any(need_states), *needs))
    d_states = [next(found) for _ in states] if any(need_states) else [None] * len(states)
    return d_states, *(next(found) if need else None for need in needs), None


_forward.register_autograd(_differentiate, setup_context=_save)


def refuses(state: Tensor) -> str | None:
    """Why the kernels do not take a tensor like `state`, as the end of a sentence; None if they do."""
    return _triton.refuses(state, "states[0]")


def depth_mix(
    states: tuple[Tensor, ...], weights: Tensor | None, token_weights: Tensor | None, *, outputs: int
) -> Tensor:
    """The sums of `loops` in one kernel, their gradients in another; arguments as the contract passes them.

    float32, float16, and bfloat16 from compute capability 8.0; sums in float32. Differentiable once: the
    backward pass has no derivative of its own. Bytes moved: `cost.kernel_bytes`.
    """
    _triton.check("depth_mix", refuses(states[0]))
    z: Tensor = _forward(list(states), weights, token_weights, outputs)
    return z
