# Triton has no types for the functions it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, var-annotated"
# Triton adds tuples; it does not unpack them.
# ruff: noqa: RUF005
"""Triton, forward and backward: a block of entries times a block of channels a program, one load a tap.

All entries of all sequences are numbered through, and a row decodes its number: any axis, any layout, and
short sequences fill a block as well as long ones. A shifted entry is loaded again; the cache has it, so x
moves from memory once.

Backward is one kernel: it takes the gradient of the results and x once, computes what goes into the SiLU
anew, writes the gradient of x and of the initial state, and sums the gradients of weight and bias over its
block alone, into a place of its own. PyTorch adds the blocks up: no atomics, the same bits in every run.
What nobody asked for is not computed, and what only that would need is not read.
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

# Triton compiles a variant for an argument that is 1 or divisible by 16; a length must not make a variant.
LENGTHS = ["rows", "span", "before", "length", "steps"]


class Config(NamedTuple):
    """Entries and channels of a block, warps; the backward pass makes up to `steps` blocks a program."""

    rows: int
    columns: int
    warps: int
    steps: int


@tabled("short_conv")
def pick_config(
    capability: tuple[int, int], dtype: torch.dtype, width: int, taps: int, *, aligned: bool, backward: bool
) -> Config:
    """The block for a width and a number of taps; `aligned` says that vectors can be loaded.

    The backward pass holds several entries for each tap, so float32 gives a thread half as many numbers.
    Each entry compiles (Triton 3.7) without a spill from compute capability 7.5 on (tests/kernels/build);
    none is tuned for speed; those that were are in the table of `_configs`. Capability (0, 0) is the
    interpreter, where few large programs are fastest.
    """
    if capability == (0, 0):
        return Config(32, 64, 4, 2)
    columns = min(128, max(16, triton.next_power_of_2(width)))
    block = (1024 if taps <= 4 else 512) if backward else 2048
    block = block if aligned else block // 2
    half = dtype != torch.float32
    return Config(block // columns, columns, 4 if (half if backward else aligned) else 8, 16)


@triton.jit
def _channels(WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.program_id(0) % tl.cdiv(WIDTH, COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def _rows(rows, span, before, first, ROWS: tl.constexpr):
    """The sequence and position of each row of block number `first`, and which of them exist."""
    number = first * ROWS + tl.arange(0, ROWS)
    inside = number < rows
    return tl.where(inside, number // span, 0), number % span - before, inside


@triton.jit
def _address(view, position, column):
    """A view is (pointer, offset of each row's sequence, strides of the ordered axis and of the width)."""
    row = view[1] + position.to(tl.int64) * view[2][0]
    return view[0] + row[:, None] + column.to(tl.int64)[None, :] * view[2][1]


@triton.jit
def _entries(xs, states, position, wanted, column, TAPS: tl.constexpr, WIDTH: tl.constexpr):
    """The entries at `position`, those before the first from the state; zero where there is none."""
    channels = (column < WIDTH)[None, :]
    mask = (wanted & (position >= 0))[:, None] & channels
    entries = tl.load(_address(xs, position, column), mask=mask, other=0.0)
    if states[0] is not None:
        mask = (wanted & (position < 0))[:, None] & channels
        # One of the two is nothing but zeros in every row.
        entries += tl.load(_address(states, position + (TAPS - 1), column), mask=mask, other=0.0)
    return entries.to(tl.float32)


@triton.jit
def _kin(kinship, position, wanted):
    """For each position as bits: whether the entry j before it is of its document, j = 0 ... K − 1."""
    where = kinship[0] + kinship[1] + position.to(tl.int64) * kinship[2][0]
    return tl.load(where, mask=wanted, other=0).to(tl.int32)


@triton.jit
def _only_kin(entries, kin, distance):
    """Zero in the rows whose entry, so far before the reader, is of another document."""
    return tl.where(((kin >> distance) & 1 != 0)[:, None], entries, 0.0)


@triton.jit
def _filter(tap, weight, strides, column, WIDTH: tl.constexpr):
    where = column.to(tl.int64) * strides[0] + tap * strides[1]
    return tl.load(weight + where, mask=column < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _constant(bias, stride, column, WIDTH: tl.constexpr):
    constant = tl.zeros(column.shape, tl.float32)
    if bias is not None:
        where = column.to(tl.int64) * stride
        constant = tl.load(bias + where, mask=column < WIDTH, other=0.0).to(tl.float32)
    return constant


@triton.jit(do_not_specialize=LENGTHS)
def forward(
    x, weight, bias, state, kinship, y, after,
    x_strides, weight_strides, bias_stride, state_strides, kinship_strides, y_strides, after_strides, sizes,
    rows, span, before, length, steps,
    LEVELS: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr, SILU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y, and the last K − 1 entries if `after` is not None; then there may be rows `before` the first."""
    column = _channels(WIDTH, COLUMNS)
    block = tl.program_id(0) // tl.cdiv(WIDTH, COLUMNS)
    group, position, inside = _rows(rows, span, before, block, ROWS)
    xs = (x, offset(group, sizes, x_strides, LEVELS, 2), x_strides)
    states = (state, offset(group, sizes, state_strides, LEVELS, 2), state_strides)
    channels = column < WIDTH
    reads = inside & (position >= 0)
    kins = (kinship, offset(group, sizes, kinship_strides, LEVELS, 2), kinship_strides)

    total = tl.zeros([ROWS, COLUMNS], tl.float32) + _constant(bias, bias_stride, column, WIDTH)[None, :]
    if kinship is not None:
        kin = _kin(kins, position, reads)
    for tap in tl.static_range(TAPS):
        entries = _entries(xs, states, position - (TAPS - 1 - tap), reads, column, TAPS, WIDTH)
        if kinship is not None:
            entries = _only_kin(entries, kin, TAPS - 1 - tap)
        total += entries * _filter(tap, weight, weight_strides, column, WIDTH)[None, :]
    if SILU:
        # exp(-y) overflows to infinity for a very negative y, and y / infinity is the right 0.
        total = total / (1.0 + tl.exp(-total))
    ys = (y, offset(group, sizes, y_strides, LEVELS, 2), y_strides)
    mask = reads[:, None] & channels[None, :]
    tl.store(_address(ys, position, column), total.to(y.dtype.element_ty), mask=mask)

    if after is not None:
        last = inside & (position >= length - (TAPS - 1))
        entries = _entries(xs, states, position, last, column, TAPS, WIDTH)
        if kinship is not None:
            end = position * 0 + (length - 1)
            entries = _only_kin(entries, _kin(kins, end, last), tl.maximum(end - position, 0))
        afters = (after, offset(group, sizes, after_strides, LEVELS, 2), after_strides)
        place = _address(afters, position - (length - (TAPS - 1)), column)
        tl.store(place, entries.to(after.dtype.element_ty), mask=last[:, None] & channels[None, :])


@triton.jit
def _slope(total):
    """The derivative of SiLU."""
    sigmoid = 1.0 / (1.0 + tl.exp(-total))
    return sigmoid * (1.0 + total * (1.0 - sigmoid))


@triton.jit
def _total_of_held(held, shift, kins, reader, reads, filters, constant, TAPS: tl.constexpr):
    """What the readers `shift` entries on add up, from blocks of entries that are held."""
    total = tl.zeros(held[0].shape, tl.float32) + constant[None, :]
    if kins[0] is not None:
        kin = _kin(kins, reader, reads)
    for tap in tl.static_range(TAPS):
        entries = held[shift + tap]
        if kins[0] is not None:
            entries = _only_kin(entries, kin, TAPS - 1 - tap)
        total += entries * filters[tap][None, :]
    return total


@triton.jit
def _total_anew(
    xs, states, kins, reader, reads, weights, constant, column, TAPS: tl.constexpr, WIDTH: tl.constexpr
):
    """The same from entries loaded again; not unrolled, as K² loads would take long to compile."""
    total = tl.zeros([reader.shape[0], column.shape[0]], tl.float32) + constant[None, :]
    if kins[0] is not None:
        kin = _kin(kins, reader, reads)
    for tap in range(TAPS):
        entries = _entries(xs, states, reader - (TAPS - 1 - tap), reads, column, TAPS, WIDTH)
        if kins[0] is not None:
            entries = _only_kin(entries, kin, TAPS - 1 - tap)
        total += entries * _filter(tap, weights[0], weights[1], column, WIDTH)[None, :]
    return total


@triton.jit
def _arrives(grads, reader, reads, column, WIDTH: tl.constexpr):
    mask = reads[:, None] & (column < WIDTH)[None, :]
    return tl.load(_address(grads, reader, column), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _sees(kins, reader, reads, shift):
    """Which of the readers see the entry so far before."""
    if kins[0] is not None:
        reads = (_kin(kins, reader, reads) >> shift) & 1 != 0
    return reads[:, None]


@triton.jit(do_not_specialize=LENGTHS)
def backward(
    x, weight, bias, state, kinship, grad, grad_after, dx, dstate, partial,
    x_strides, weight_strides, bias_stride, state_strides, kinship_strides, grad_strides,
    grad_after_strides, dx_strides, dstate_strides, sizes, rows, span, before, length, steps,
    LEVELS: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr, SILU: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of x and of the initial state (the rows `before` the first); sums for weight and bias.

    Any of them may be left out: dx and dstate are None then, WEIGHT and BIAS False.
    """
    SENT: tl.constexpr = dx is not None or dstate is not None
    # For SiLU the readers of a row, up to K − 1 behind it, add up anew what they read, from K − 1 before it.
    # Few taps hold all these blocks; many load them again for each reader.
    HELD: tl.constexpr = SENT and SILU and TAPS <= 4
    column = _channels(WIDTH, COLUMNS)
    channels = column < WIDTH
    block = tl.program_id(0) // tl.cdiv(WIDTH, COLUMNS)
    filters = ()
    sums = ()
    for tap in tl.static_range(TAPS):
        if SILU or SENT:
            filters = filters + (_filter(tap, weight, weight_strides, column, WIDTH),)
        sums = sums + (tl.zeros([COLUMNS], tl.float32),)
    bias_sum = tl.zeros([COLUMNS], tl.float32)
    constant = tl.zeros([COLUMNS], tl.float32)
    if SILU:
        constant = _constant(bias, bias_stride, column, WIDTH)

    for step in range(steps):
        group, position, inside = _rows(rows, span, before, block * steps + step, ROWS)
        xs = (x, offset(group, sizes, x_strides, LEVELS, 2), x_strides)
        states = (state, offset(group, sizes, state_strides, LEVELS, 2), state_strides)
        kins = (kinship, offset(group, sizes, kinship_strides, LEVELS, 2), kinship_strides)
        grads = (grad, offset(group, sizes, grad_strides, LEVELS, 2), grad_strides)
        held = ()
        for place in tl.static_range(2 * TAPS - 1 if HELD else 0):
            seen = position + (place - (TAPS - 1))
            there = inside & (seen > -TAPS) & (seen < length)
            held = held + (_entries(xs, states, seen, there, column, TAPS, WIDTH),)

        # What a row itself has read, and what that gives to the weights.
        reads = inside & (position >= 0)
        own = ()
        total = tl.zeros([ROWS, COLUMNS], tl.float32) + constant[None, :]
        if SILU or WEIGHT:
            if kinship is not None:
                kin = _kin(kins, position, reads)
            for tap in tl.static_range(TAPS):
                if HELD:
                    entries = tl.where(reads[:, None], held[tap], 0.0)
                else:
                    entries = _entries(xs, states, position - (TAPS - 1 - tap), reads, column, TAPS, WIDTH)
                if kinship is not None:
                    entries = _only_kin(entries, kin, TAPS - 1 - tap)
                own = own + (entries,)
                if SILU:
                    total += entries * filters[tap][None, :]
        sent = _arrives(grads, position, reads, column, WIDTH)
        if SILU:
            sent = tl.where(reads[:, None], sent * _slope(total), 0.0)
        if WEIGHT:
            added = ()
            for tap in tl.static_range(TAPS):
                added = added + (sums[tap] + tl.sum(sent * own[tap], 0),)
            sums = added
        if BIAS:
            bias_sum += tl.sum(sent, 0)

        # What all that have read a row, itself and up to K − 1 behind it, send back.
        if SENT:
            asked = inside
            if dx is None:
                asked = inside & (position < 0)
            dentry = tl.where(reads[:, None], sent * filters[TAPS - 1][None, :], 0.0)
            if HELD:
                for shift in tl.static_range(1, TAPS):
                    reads = asked & (position >= -shift) & (position + shift < length)
                    sent = _arrives(grads, position + shift, reads, column, WIDTH)
                    sent *= _slope(
                        _total_of_held(held, shift, kins, position + shift, reads, filters, constant, TAPS)
                    )
                    sees = _sees(kins, position + shift, reads, shift)
                    dentry += tl.where(sees, sent * filters[TAPS - 1 - shift][None, :], 0.0)
            else:
                for shift in range(1, TAPS):
                    reads = asked & (position >= -shift) & (position + shift < length)
                    sent = _arrives(grads, position + shift, reads, column, WIDTH)
                    if SILU:
                        given, reader = (weight, weight_strides), position + shift
                        sent *= _slope(
                            _total_anew(xs, states, kins, reader, reads, given, constant, column, TAPS, WIDTH)
                        )
                    tap_of_it = _filter(TAPS - 1 - shift, weight, weight_strides, column, WIDTH)
                    sees = _sees(kins, position + shift, reads, shift)
                    dentry += tl.where(sees, sent * tap_of_it[None, :], 0.0)
            if grad_after is not None:
                last = asked & (position >= length - (TAPS - 1))
                if kinship is not None:
                    end = position * 0 + (length - 1)
                    last = last & ((_kin(kins, end, last) >> tl.maximum(end - position, 0)) & 1 != 0)
                afters = (
                    grad_after, offset(group, sizes, grad_after_strides, LEVELS, 2), grad_after_strides
                )  # fmt: skip
                behind = _address(afters, position - (length - (TAPS - 1)), column)
                mask = last[:, None] & channels[None, :]
                dentry += tl.load(behind, mask=mask, other=0.0).to(tl.float32)
            if dx is not None:
                dxs = (dx, offset(group, sizes, dx_strides, LEVELS, 2), dx_strides)
                mask = (inside & (position >= 0))[:, None] & channels[None, :]
                tl.store(_address(dxs, position, column), dentry.to(dx.dtype.element_ty), mask=mask)
            if dstate is not None:
                dstates = (dstate, offset(group, sizes, dstate_strides, LEVELS, 2), dstate_strides)
                mask = (inside & (position < 0))[:, None] & channels[None, :]
                ahead = _address(dstates, position + (TAPS - 1), column)
                tl.store(ahead, dentry.to(dstate.dtype.element_ty), mask=mask)

    if partial is not None:
        mine = partial + block.to(tl.int64) * ((TAPS * WEIGHT + BIAS) * WIDTH) + column
        if WEIGHT:
            for tap in tl.static_range(TAPS):
                tl.store(mine + tap * WIDTH, sums[tap], mask=channels)
        if BIAS:
            tl.store(mine + TAPS * WEIGHT * WIDTH, bias_sum, mask=channels)


class _Call(NamedTuple):
    """Blocks of rows (each of all channels), the configuration, and what the kernel gets beside tensors."""

    blocks: int
    config: Config
    arguments: dict[str, Any]


def _prepare(
    tensors: dict[str, Tensor | None], axis: int, silu: bool, capability: tuple[int, int], *, backward: bool,
    sums: tuple[bool, bool] = (False, False),
) -> _Call:  # fmt: skip
    """Turn shapes and strides into arguments; nothing is copied. `tensors` has the arrays along the axis.

    `sums` says whether the gradients of weight and bias are needed.
    """
    x, weight = tensors["x"], tensors["weight"]
    assert x is not None
    assert weight is not None
    length, width, taps = x.shape[axis], x.shape[-1], weight.shape[1]
    along = {name: y for name, y in tensors.items() if name not in ("weight", "bias")}
    kinship = along["kinship"]
    if kinship is not None:
        along["kinship"] = kinship.expand(x.shape[:-1]).unsqueeze(-1)
    present = {name: y for name, y in along.items() if y is not None}
    places = [place for place in range(x.ndim - 1) if place != axis]
    levels = _triton.levels(list(present.values()), places)
    arguments: dict[str, Any] = {}
    for name in along:
        arguments[f"{name}_strides"] = (0,) * (2 + len(levels))
    for index, (name, y) in enumerate(present.items()):
        strides = (y.stride(axis), y.stride(-1), *(steps[index] for _, steps in levels))
        arguments[f"{name}_strides"] = strides

    if backward:
        before = taps - 1 if along["dstate"] is not None else 0
    else:
        before = max(0, taps - 1 - length) if along["after"] is not None else 0
    span, groups = length + before, x.numel() // (length * width)
    if backward and along["dx"] is None and not any(sums):
        # Nothing but the gradient of the state is wanted: only what comes before the first has rows.
        span = before
    rows = groups * span
    if rows >= 2**31 - 2**16:
        raise ValueError(f"rung='kernels' takes fewer than 2^31 entries of all sequences; got {rows}.")
    aligned = all(
        _triton.aligned(y, axis) for y in present.values() if y.ndim == x.ndim and y.dtype == x.dtype
    )
    config = pick_config(capability, x.dtype, width, taps, aligned=aligned, backward=backward)
    # More blocks a program are fewer sums to add up, but a chip wants a thousand programs.
    tiles, enough = triton.cdiv(rows, config.rows), 1 if capability == (0, 0) else 1024
    steps = max(1, min(config.steps if backward else 1, tiles * triton.cdiv(width, config.columns) // enough))
    arguments |= {
        "sizes": (1, *(size for size, _ in levels[1:])),
        "weight_strides": weight.stride(), "bias_stride": 0, "rows": rows, "span": span, "before": before,
        "length": length, "steps": steps, "LEVELS": len(levels), "TAPS": taps, "WIDTH": width, "SILU": silu,
        "WEIGHT": sums[0], "BIAS": sums[1], "ROWS": config.rows, "COLUMNS": config.columns,
    }  # fmt: skip
    bias = tensors["bias"]
    if bias is not None:
        arguments["bias_stride"] = bias.stride(0)
    return _Call(triton.cdiv(tiles, steps), config, arguments)


def _launch(kernel: Any, call: _Call, tensors: dict[str, Tensor | None]) -> None:
    x = tensors["x"]
    assert x is not None
    programs = call.blocks * triton.cdiv(x.shape[-1], call.config.columns)
    _triton.launch(
        "short_conv", kernel, programs, call.arguments | tensors, device=x.device, warps=call.config.warps
    )


def _kinship(documents: Tensor | None, taps: int, axis: int) -> Tensor | None:
    """Bit j of each entry: whether the one j before is of its document; before the first are the first's."""
    if documents is None:
        return None
    bits = torch.ones(documents.shape, dtype=torch.uint8, device=documents.device)
    # Cut and joined: torch does not index the wide unsigned dtypes.
    before = torch.cat([documents.narrow(axis, 0, 1)] * (taps - 1) + [documents], axis)
    for distance in range(1, taps):
        earlier = before.narrow(axis, taps - 1 - distance, documents.shape[axis])
        bits |= (earlier == documents).to(torch.uint8) << distance
    return bits


def _empty_results(x: Tensor, taps: int, axis: int, keep: bool) -> tuple[Tensor, Tensor]:
    shape = list(x.shape) if keep else [0]
    if keep:
        shape[axis] = taps - 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return y, torch.empty(shape, dtype=x.dtype, device=x.device)


def _empty_like(y: Tensor | None, x: Tensor) -> Tensor:
    """Room for the gradient of y; something empty if there is none, as an operator cannot return None."""
    return torch.empty([0] if y is None else y.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("t2lib::short_conv", mutates_args=(), device_types=DEVICES)
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, documents: Tensor | None,
    axis: int, silu: bool, keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The result and, if `keep`, the state behind it."""
    y, after = _empty_results(x, weight.shape[1], axis, keep)
    kinship = _kinship(documents, weight.shape[1], axis)
    tensors: dict[str, Tensor | None] = {
        "x": x, "weight": weight, "bias": bias, "state": state, "kinship": kinship, "y": y,
        "after": after if keep else None,
    }  # fmt: skip
    if x.numel():
        _launch(forward, _prepare(tensors, axis, silu, _triton.capability(x), backward=False), tensors)
    return y, after


@torch.library.custom_op("t2lib::short_conv_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    grad: Tensor, grad_after: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None,
    documents: Tensor | None, axis: int, silu: bool, keep: bool,
    need_x: bool, need_weight: bool, need_bias: bool, need_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight, bias and state; something empty for each that is not needed."""
    kinship = _kinship(documents, weight.shape[1], axis)
    dx = _empty_like(x if need_x else None, x)
    dstate = _empty_like(state if need_state else None, x)
    tensors: dict[str, Tensor | None] = {
        "x": x, "weight": weight, "bias": bias, "state": state, "kinship": kinship, "grad": grad,
        "grad_after": grad_after if keep else None, "dx": dx if need_x else None,
        "dstate": dstate if need_state else None,
    }  # fmt: skip
    width, taps = weight.shape
    sums, blocks = (need_weight, need_bias), 0
    if x.numel():
        call = _prepare(tensors, axis, silu, _triton.capability(x), backward=True, sums=sums)
        blocks = call.blocks
    partial = torch.empty(
        (blocks, taps * need_weight + need_bias, width), dtype=torch.float32, device=x.device
    )
    if x.numel():
        _launch(backward, call, tensors | {"partial": partial if any(sums) else None})
    added = partial.sum(0)
    dweight, dbias = _empty_like(None, x), _empty_like(None, x)
    if need_weight:
        dweight = added[:taps].t().to(weight.dtype).contiguous()
    if need_bias:
        dbias = added[-1].to(weight.dtype, copy=True)
    return dx, dweight, dbias, dstate


@_forward.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Any, state: Any, documents: Any, axis: int, silu: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    return _empty_results(x, weight.shape[1], axis, keep)


@_backward.register_fake
def _(
    grad: Tensor, grad_after: Tensor, x: Tensor, weight: Tensor, bias: Any, state: Any, documents: Any,
    axis: int, silu: bool, keep: bool, need_x: bool, need_weight: bool, need_bias: bool, need_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        _empty_like(x if need_x else None, x), _empty_like(weight if need_weight else None, x),
        _empty_like(bias if need_bias else None, x), _empty_like(state if need_state else None, x),
    )  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, state, documents, *ctx.rest = inputs
    ctx.save_for_backward(x, weight, bias, state, documents)


def _differentiate(ctx: Any, grad: Tensor, grad_after: Tensor) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad[:4]
    found = _backward(grad, grad_after, *ctx.saved_tensors, *ctx.rest, *needs)
    return *(y if need else None for y, need in zip(found, needs, strict=True)), *[None] * 4


_forward.register_autograd(_differentiate, setup_context=_save)


def refuses(x: Tensor) -> str | None:
    """Why the kernels do not take a tensor like x, as the end of a sentence; None if they do."""
    return _triton.refuses(x, "x")


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    axis: int,
    silu: bool,
    documents: Tensor | None,
    state: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """The same as in `loops`, one kernel forward, one backward; arguments as the contract passes them.

    float32, float16, and bfloat16 from compute capability 8.0; sums and SiLU in float32. Differentiable once:
    the backward pass has no derivative of its own.

    Bytes: forward reads x and writes y, 2 d elements an entry; backward reads x and the gradient of y and
    writes that of x, 3 d elements an entry, or less if less is needed; the taps and the state are small
    beside them. Exact counts are those of `cost.kernel_bytes`, which tests compare with what the kernels
    touch; it also says what PyTorch adds.
    """
    _triton.check("short_conv", refuses(x))
    y, after = _forward(x, weight, bias, state, documents, axis, silu, keep)
    return y, after if keep else None
