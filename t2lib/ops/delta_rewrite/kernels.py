# Triton has no types for the functions it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, assignment"
# Triton appends to a tuple with +.
# ruff: noqa: RUF005
"""Triton, forward and backward. A program owns a token and passes over its state once.

The reading sums over the whole state before the first entry of the new one is known. So the state, or going
backward the gradient that arrives, stays in registers, a tuple of blocks of rows, between the sum and the
write; only a state too large for that is loaded twice.

Backward, the direction's guard asks for k̂·∂k̂, a second sum over the state. With a = Gᵀk̂ it is a·ρ + r·q,
which the first sum gives, and the state is needed only as it passes by.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from t2lib.ops import _triton
from t2lib.ops._configs import tabled
from t2lib.ops._triton import DEVICES, offset
from t2lib.ops.delta_rewrite import Rule, Tape
from t2lib.ops.delta_rewrite.eager import rewritten

MOST_CHANNELS = 8
# A state of more numbers than this does not stay in registers: with known steps, and with others.
HELD_NUMBERS = (16384, 12288)
# Tokens whose share of a compressor's gradient one program sums; their sums are added up afterwards.
CHUNK = 64
# The last axes of every tensor that are its own; those before them are the leading axes of the state.
OWN = {"X": 2, "k": 1, "v": 1, "beta": 0, "d_after": 2, "d_reading": 1, "d_correction": 1, "d_read": 1}
LENGTHS = ["tokens"]
# How a state may be dense; SPREAD is any other layout.
SPREAD = tl.constexpr(0)
CHANNELS_INNERMOST = tl.constexpr(1)
ROWS_INNERMOST = tl.constexpr(2)


class Config(NamedTuple):
    """Rows of a block, whether all blocks stay in registers, warps."""

    rows: int
    held: bool
    warps: int


@tabled("delta_rewrite")
def pick_config(capability: tuple[int, int], d: int, d_v: int, *, dense: bool) -> Config:
    """The configuration for a state (d, d_v).

    The same for all chips, since no kernel here has a dot: a lane holds up to 32 numbers of the state, and a
    block gives it 8 of them; the addresses of a state that is not `dense` take more registers. A number of
    rows that is no power of two costs no more than its last block. Each entry compiles (Triton 3.7) without a
    spill (tests/kernels/build); none is tuned for speed; those that were are in the table of `_configs`.
    Capability (0, 0) is the interpreter, where few large blocks are fastest.
    """
    channels = triton.next_power_of_2(d_v)
    numbers = d * channels
    if capability == (0, 0):
        return Config(min(512, triton.next_power_of_2(d)), True, 1)
    warps = min(16, triton.next_power_of_2(triton.cdiv(numbers, 1024)))
    rows = min(256 * warps // channels, triton.next_power_of_2(d))
    return Config(rows, numbers <= HELD_NUMBERS[0 if dense else 1], warps)


@triton.jit
def _places(pointer, steps, row, D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr):
    """Where rows of a state are as [ROWS, CHANNELS], and which of these exist.

    Steps are (how it is dense, the steps of rows and of channels). The addresses of a dense state differ by
    constants of 32 bits: that takes half the registers of a kernel.
    """
    channel = tl.arange(0, CHANNELS)
    if steps[0] == CHANNELS_INNERMOST:
        where = pointer + (row * D_V)[:, None] + channel[None, :]
    elif steps[0] == ROWS_INNERMOST:
        where = pointer + row[:, None] + (channel * D)[None, :]
    else:
        where = pointer + (row.to(tl.int64) * steps[1])[:, None] + (channel.to(tl.int64) * steps[2])[None, :]
    return where, (row < D)[:, None] & (channel < D_V)[None, :]


@triton.jit
def _block(pointer, steps, row, D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr):
    """Rows of a state in its own dtype: half precision is narrower to hold."""
    where, wanted = _places(pointer, steps, row, D, D_V, CHANNELS)
    return tl.load(where, mask=wanted, other=0.0)


@triton.jit
def _store_block(pointer, steps, row, x, D: tl.constexpr, D_V: tl.constexpr):
    where, wanted = _places(pointer, steps, row, D, D_V, x.shape[1])
    tl.store(where, x.to(pointer.dtype.element_ty), mask=wanted)


@triton.jit
def _rows(pointer, step, row, D: tl.constexpr):
    return tl.load(pointer + row.to(tl.int64) * step, mask=row < D, other=0.0)


@triton.jit
def _small(pointer, step, D_V: tl.constexpr, CHANNELS: tl.constexpr):
    """One number a channel."""
    channel = tl.arange(0, CHANNELS)
    return tl.load(pointer + channel.to(tl.int64) * step, mask=channel < D_V, other=0.0).to(tl.float32)


@triton.jit
def _store_small(pointer, x, D_V: tl.constexpr):
    channel = tl.arange(0, x.shape[0])
    tl.store(pointer + channel, x.to(pointer.dtype.element_ty), mask=channel < D_V)


@triton.jit
def _arriving(state, compress, view, row, D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr):
    """A block of the state; or, going backward, of what arrives at it, also through a compressor.

    A view is (strides of the state, of the compressor, gradient of what was read and its stride).
    """
    if state is not None:
        x = _block(state, view[0], row, D, D_V, CHANNELS)
    else:
        x = tl.zeros([row.shape[0], CHANNELS], tl.float32)
    if view[2] is not None:
        weights = _block(compress, view[1], row, D, D_V, CHANNELS).to(tl.float32)
        x = x.to(tl.float32) + weights * _rows(view[2], view[3], row, D).to(tl.float32)[:, None]
    return x


@triton.jit
def _summed(
    state, compress, view, k, k_step, floor,
    D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, NORMED: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """The first pass: kᵀX over the guarded length, that length, the blocks of X and k if they are held."""
    product = tl.zeros([ROWS, CHANNELS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    blocks = ()
    directions = ()
    if HELD:
        for part in tl.static_range((D + ROWS - 1) // ROWS):
            row = part * ROWS + tl.arange(0, ROWS)
            x = _arriving(state, compress, view, row, D, D_V, CHANNELS)
            direction = _rows(k, k_step, row, D)
            wide = direction.to(tl.float32)
            product += wide[:, None] * x.to(tl.float32)
            squares += wide * wide
            blocks = blocks + (x,)
            directions = directions + (direction,)
    else:
        for begin in range(0, D, ROWS):
            row = begin + tl.arange(0, ROWS)
            wide = _rows(k, k_step, row, D).to(tl.float32)
            if READS:
                x = _arriving(state, compress, view, row, D, D_V, CHANNELS)
                product += wide[:, None] * x.to(tl.float32)
            squares += wide * wide
    length = tl.sqrt(tl.sum(squares, 0) + floor) if NORMED else 1.0
    return tl.sum(product, 0) / length, length, blocks, directions


@triton.jit
def _rewrite(
    x, direction, length, correction, row, compress, compress_steps, after, after_steps, read,
    D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The second pass over one block: write it, and read it for the next sublayer."""
    unit = direction.to(tl.float32) / length
    new = (x.to(tl.float32) + unit[:, None] * correction[None, :]).to(after.dtype.element_ty)
    _store_block(after, after_steps, row, new, D, D_V)
    if read is not None:
        weights = _block(compress, compress_steps, row, D, D_V, CHANNELS).to(tl.float32)
        tl.store(read + row, tl.sum(weights * new.to(tl.float32), 1).to(read.dtype.element_ty), mask=row < D)


@triton.jit
def forward(
    X, k, v, beta, compress, after, reading, correction, read,
    X_strides, k_strides, v_strides, beta_strides, compress_strides, sizes, floor,
    X_DENSE: tl.constexpr, COMPRESS_DENSE: tl.constexpr, RESULT_DENSE: tl.constexpr,
    LEVELS: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, NORMED: tl.constexpr, ERASE: tl.constexpr,
):  # fmt: skip
    """The new state, the reading and the correction, and what a compressor reads of the new state."""
    token = tl.program_id(0).to(tl.int64)
    X += offset(token, sizes, X_strides, LEVELS, 2)
    k += offset(token, sizes, k_strides, LEVELS, 1)
    gate = tl.load(beta + offset(token, sizes, beta_strides, LEVELS)).to(tl.float32)
    target = _small(v + offset(token, sizes, v_strides, LEVELS, 1), v_strides[0], D_V, CHANNELS)
    X_steps = (X_DENSE, X_strides[0], X_strides[1])
    compress_steps = (COMPRESS_DENSE, compress_strides[0], compress_strides[1])
    after += token * (D * D_V)
    if read is not None:
        read += token * D
    view = (X_steps, compress_steps, None, 0)
    found, length, blocks, directions = _summed(
        X, compress, view, k, k_strides[0], floor,
        D, D_V, CHANNELS, ROWS, HELD, NORMED, ERASE or reading is not None,
    )  # fmt: skip
    if ERASE:
        target -= found
    written = gate * target
    if reading is not None:
        _store_small(reading + token * D_V, found, D_V)
    _store_small(correction + token * D_V, written, D_V)
    if HELD:
        for part in tl.static_range((D + ROWS - 1) // ROWS):
            row = part * ROWS + tl.arange(0, ROWS)
            _rewrite(
                blocks[part], directions[part], length, written, row,
                compress, compress_steps, after, (RESULT_DENSE, 0, 0), read, D, D_V, CHANNELS,
            )  # fmt: skip
    else:
        for begin in range(0, D, ROWS):
            row = begin + tl.arange(0, ROWS)
            x = _block(X, X_steps, row, D, D_V, CHANNELS)
            _rewrite(
                x, _rows(k, k_strides[0], row, D), length, written, row,
                compress, compress_steps, after, (RESULT_DENSE, 0, 0), read, D, D_V, CHANNELS,
            )  # fmt: skip


@triton.jit
def _send_back(
    g, direction, length, written, asked, along, row, X, X_steps, dX, dX_steps, dk,
    D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """The second pass over one block: ∂X = G + k̂ qᵀ, and ∂k from ∂k̂ = G ρ + X q, whose part along k̂ goes."""
    g = g.to(tl.float32)
    unit = direction.to(tl.float32) / length
    if dk is not None:
        products = g * written[None, :]
        if X is not None:
            products += _block(X, X_steps, row, D, D_V, CHANNELS).to(tl.float32) * asked[None, :]
        d_unit = tl.sum(products, 1)
        if NORMED:
            d_unit = (d_unit - unit * along) / length
        tl.store(dk + row, d_unit.to(dk.dtype.element_ty), mask=row < D)
    if dX is not None:
        _store_block(dX, dX_steps, row, g + unit[:, None] * asked[None, :], D, D_V)


@triton.jit
def backward(
    X, k, v, beta, compress, reading, correction, d_after, d_reading, d_correction, d_read,
    dX, dk, dv, dbeta, lengths,
    X_strides, k_strides, v_strides, beta_strides, compress_strides,
    d_after_strides, d_reading_strides, d_correction_strides, d_read_strides, sizes, floor,
    X_DENSE: tl.constexpr, d_after_DENSE: tl.constexpr, COMPRESS_DENSE: tl.constexpr,
    RESULT_DENSE: tl.constexpr,
    LEVELS: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, NORMED: tl.constexpr, ERASE: tl.constexpr,
):  # fmt: skip
    """All gradients but that of the compressor, by the closed form at the head of `eager`.

    A gradient that is None is not wanted, and an input that no other asks for is None too. Without an erase,
    and with nothing that arrives at the reading, X and dX are None: the gradient of the state is then the one
    that arrives.
    """
    token = tl.program_id(0).to(tl.int64)
    k += offset(token, sizes, k_strides, LEVELS, 1)
    if d_after is not None:
        d_after += offset(token, sizes, d_after_strides, LEVELS, 2)
    if d_read is not None:
        d_read += offset(token, sizes, d_read_strides, LEVELS, 1)
    X_steps = (X_DENSE, X_strides[0], X_strides[1])
    d_after_steps = (d_after_DENSE, d_after_strides[0], d_after_strides[1])
    compress_steps = (COMPRESS_DENSE, compress_strides[0], compress_strides[1])
    view = (d_after_steps, compress_steps, d_read, d_read_strides[0])
    found, length, blocks, directions = _summed(
        d_after, compress, view, k, k_strides[0], floor, D, D_V, CHANNELS, ROWS, HELD, NORMED, True
    )
    if lengths is not None:
        tl.store(lengths + token, length)
    written = tl.zeros([CHANNELS], tl.float32)
    if correction is not None:
        written += _small(correction + token * D_V, 1, D_V, CHANNELS)
    along = tl.sum(found * written, 0)
    if d_correction is not None:
        where = d_correction + offset(token, sizes, d_correction_strides, LEVELS, 1)
        found += _small(where, d_correction_strides[0], D_V, CHANNELS)
    asked = tl.zeros([CHANNELS], tl.float32)
    if d_reading is not None:
        where = d_reading + offset(token, sizes, d_reading_strides, LEVELS, 1)
        asked += _small(where, d_reading_strides[0], D_V, CHANNELS)
    if beta is not None:
        gated = tl.load(beta + offset(token, sizes, beta_strides, LEVELS)).to(tl.float32) * found
        if ERASE:
            asked -= gated
        if dv is not None:
            _store_small(dv + token * D_V, gated, D_V)
    there = tl.zeros([CHANNELS], tl.float32)
    if reading is not None:
        there += _small(reading + token * D_V, 1, D_V, CHANNELS)
        along += tl.sum(there * asked, 0)
    if dbeta is not None:
        target = _small(v + offset(token, sizes, v_strides, LEVELS, 1), v_strides[0], D_V, CHANNELS)
        if ERASE:
            target -= there
        tl.store(dbeta + token, tl.sum(found * target, 0).to(dbeta.dtype.element_ty))
    if X is not None:
        X += offset(token, sizes, X_strides, LEVELS, 2)
    if dX is not None:
        dX += token * (D * D_V)
    if dk is not None:
        dk += token * D
    if (dX is None) and (dk is None):
        return
    if HELD:
        for part in tl.static_range((D + ROWS - 1) // ROWS):
            row = part * ROWS + tl.arange(0, ROWS)
            _send_back(
                blocks[part], directions[part], length, written, asked, along, row,
                X, X_steps, dX, (RESULT_DENSE, 0, 0), dk, D, D_V, CHANNELS, NORMED,
            )  # fmt: skip
    else:
        for begin in range(0, D, ROWS):
            row = begin + tl.arange(0, ROWS)
            g = _arriving(d_after, compress, view, row, D, D_V, CHANNELS)
            _send_back(
                g, _rows(k, k_strides[0], row, D), length, written, asked, along, row,
                X, X_steps, dX, (RESULT_DENSE, 0, 0), dk, D, D_V, CHANNELS, NORMED,
            )  # fmt: skip


@triton.jit(do_not_specialize=LENGTHS)
def backward_compress(
    X, k, correction, d_read, lengths, parts, X_strides, k_strides, d_read_strides, sizes, tokens,
    X_DENSE: tl.constexpr,
    LEVELS: tl.constexpr, D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """What a chunk of tokens adds to the gradient of the compressor: Σ ∂u_i X'_ij, X' computed again.

    A program owns a block of rows, so that its sum stays in registers from token to token. Its number is
    that of the chunk, then that of the block.
    """
    blocks: tl.constexpr = (D + ROWS - 1) // ROWS
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    chunk = (tl.program_id(0) // blocks).to(tl.int64)
    X_steps = (X_DENSE, X_strides[0], X_strides[1])
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for step in range(tl.minimum(CHUNK, tokens - chunk * CHUNK)):
        token = chunk * CHUNK + step
        x = _block(X + offset(token, sizes, X_strides, LEVELS, 2), X_steps, row, D, D_V, CHANNELS)
        unit = _rows(k + offset(token, sizes, k_strides, LEVELS, 1), k_strides[0], row, D)
        unit = unit.to(tl.float32) / tl.load(lengths + token)
        written = _small(correction + token * D_V, 1, D_V, CHANNELS)
        # Rounded as it was stored, since that is what the compressor has read.
        new = (x.to(tl.float32) + unit[:, None] * written[None, :]).to(X.dtype.element_ty)
        upstream = d_read + offset(token, sizes, d_read_strides, LEVELS, 1)
        total += _rows(upstream, d_read_strides[0], row, D).to(tl.float32)[:, None] * new.to(tl.float32)
    _store_block(parts + chunk * (D * D_V), (CHANNELS_INNERMOST, 0, 0), row, total, D, D_V)


def _dense(x: Tensor | None) -> int:
    """How the two last axes of a state are dense."""
    found = SPREAD
    if x is not None and math.prod(x.shape[-2:]) < 2**31:
        if x.stride()[-2:] == (x.shape[-1], 1):
            found = CHANNELS_INNERMOST
        elif x.stride()[-2:] == (1, x.shape[-2]):
            found = ROWS_INNERMOST
    return int(found.value)


def _arguments(
    tensors: dict[str, Tensor | None], compress: Tensor | None, rule: Rule, d_v: int
) -> tuple[dict[str, Any], Config]:
    """The arguments of all kernels but their results, in the configuration of the chip where k is.

    The strides of a tensor are those of its own axes, then one a level of leading axes.
    """
    k = tensors["k"]
    assert k is not None
    leading, d = k.shape[:-1], k.shape[-1]
    tokens = math.prod(leading)
    if tokens >= 2**31:
        raise ValueError(f"rung='kernels' takes fewer than 2^31 tokens; got {tokens}.")
    given = {name: x for name, x in tensors.items() if x is not None}
    levels = _triton.levels([k, *given.values()], list(range(len(leading))))
    found: dict[str, Any] = {name: tensors.get(name) for name in OWN}
    for name, own in OWN.items():
        strides = (0,) * (own + len(levels))
        if name in given:
            place = 1 + list(given).index(name)
            strides = (*given[name].stride()[len(leading) :], *(steps[place] for _, steps in levels))
        found[f"{name}_strides"] = strides
    dense = {name: _dense(given[name]) for name in ("X", "d_after") if name in given}
    config = pick_config(_triton.capability(k), d, d_v, dense=SPREAD.value not in dense.values())
    return found | {
        # Decoding does not need the outermost size, and it would make variants for nothing.
        "sizes": (1, *(size for size, _ in levels[1:])), "LEVELS": len(levels), "tokens": tokens,
        "compress": compress, "compress_strides": (0, 0) if compress is None else compress.stride(),
        "floor": 0.0 if rule.floor is None else rule.floor, "NORMED": rule.floor is not None,
        "ERASE": rule.erase, "D": d, "D_V": d_v, "CHANNELS": triton.next_power_of_2(d_v),
        "X_DENSE": dense.get("X", SPREAD.value), "d_after_DENSE": dense.get("d_after", SPREAD.value),
        "COMPRESS_DENSE": _dense(compress),
        "ROWS": config.rows, "HELD": config.held, "CHUNK": CHUNK,
    }, config  # fmt: skip


def _launch(kernel: Any, arguments: dict[str, Any], config: Config) -> None:
    tokens, device = arguments["tokens"], arguments["k"].device
    programs = tokens
    if kernel is backward_compress:
        programs = triton.cdiv(tokens, CHUNK) * triton.cdiv(arguments["D"], config.rows)
    if tokens:
        _triton.launch("delta_rewrite", kernel, programs, arguments, device=device, warps=config.warps)


def _like_state(k: Tensor, d_v: int, X: Tensor | None) -> Tensor:
    """Room for a state: contiguous, or with d innermost where X has it so."""
    turned = X is not None and d_v > 1 and X.stride(-2) == 1
    shape = (*k.shape[:-1], d_v, k.shape[-1]) if turned else (*k.shape, d_v)
    room = torch.empty(shape, dtype=k.dtype, device=k.device)
    return room.mT if turned else room


def _room(k: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype | None = None) -> Tensor:
    """Room for a result; nothing for one that is not asked for, since an operator cannot return None."""
    return torch.empty(0 if shape is None else shape, dtype=dtype or k.dtype, device=k.device)


def _results(
    X: Tensor, k: Tensor, v: Tensor, compress: Tensor | None, reads: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    small = tuple(v.shape)
    return (
        _like_state(k, small[-1], X),
        _room(k, small if reads else None, torch.float32),
        _room(k, small, torch.float32),
        _room(k, None if compress is None else tuple(k.shape)),
    )


def _gradients(
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, compress: Tensor | None, needs: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    need_X, need_k, need_v, need_beta, need_compress = needs
    return (
        _like_state(k, v.shape[-1], X) if need_X else _room(k, None),
        _room(k, tuple(k.shape) if need_k else None),
        _room(k, tuple(v.shape) if need_v else None, v.dtype),
        _room(k, tuple(beta.shape) if need_beta else None, beta.dtype),
        _room(k, None)
        if compress is None or not need_compress
        else _room(k, tuple(compress.shape), compress.dtype),
    )


@torch.library.custom_op("t2lib::delta_rewrite", mutates_args=(), device_types=DEVICES)
def _forward(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, compress: Tensor | None,
    floor: float | None, erase: bool, parts: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The new state, the reading, the correction, the read; empty what is not asked for."""
    rule = Rule(floor, erase, parts)
    after, reading, correction, read = _results(X, k, v, compress, erase or parts)
    tensors: dict[str, Tensor | None] = {"X": X, "k": k, "v": v, "beta": beta}
    arguments, config = _arguments(tensors, compress, rule, v.shape[-1])
    arguments |= {
        "after": after, "RESULT_DENSE": _dense(after), "correction": correction,
        "reading": reading if erase or parts else None, "read": None if compress is None else read,
    }  # fmt: skip
    _launch(forward, arguments, config)
    return after, reading, correction, read


@torch.library.custom_op("t2lib::delta_rewrite_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, compress: Tensor | None,
    reading: Tensor | None, correction: Tensor,
    d_after: Tensor | None, d_reading: Tensor | None, d_correction: Tensor | None, d_read: Tensor | None,
    floor: float | None, erase: bool, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of X, k, v, beta and the compressor, each empty if it is not needed."""
    need_X, need_k, need_v, need_beta, need_compress = needs
    rule, d_v = Rule(floor, erase, False), v.shape[-1]
    found = _gradients(X, k, v, beta, compress, needs)
    tensors = {
        "X": X, "k": k, "v": v, "beta": beta,
        "d_after": d_after, "d_reading": d_reading, "d_correction": d_correction, "d_read": d_read,
    }  # fmt: skip
    # Without a gradient of what it read, the compressor has nothing to do.
    arguments, config = _arguments(tensors, None if d_read is None else compress, rule, d_v)
    if any(needs):
        state, asked, small = need_X or need_k, erase or d_reading is not None, need_v or need_beta
        wanted = {
            "X": need_k and asked, "v": need_beta, "beta": need_v or (erase and state),
            "reading": (need_k and asked) or (erase and need_beta), "correction": need_k,
            "d_after": state or small, "d_read": state or small, "compress": state or small,
            "d_correction": small or (erase and state), "d_reading": state,
            "dX": need_X, "dk": need_k, "dv": need_v, "dbeta": need_beta, "lengths": need_compress,
        }  # fmt: skip
        lengths = _room(k, (arguments["tokens"],) if need_compress else None, torch.float32)
        given = arguments | dict(zip(("dX", "dk", "dv", "dbeta"), found[:4], strict=True))
        given |= {"reading": reading, "correction": correction, "lengths": lengths}
        given |= {name: None for name, want in wanted.items() if not want}
        _launch(backward, given | {"RESULT_DENSE": _dense(found[0] if need_X else None)}, config)
    if compress is None or not need_compress:
        return found
    parts = _room(k, (-(-arguments["tokens"] // CHUNK), *compress.shape), torch.float32)
    given = arguments | {"correction": correction, "lengths": lengths, "parts": parts}
    _launch(backward_compress, given, config)
    return *found[:4], parts.sum(0).to(compress.dtype)


@_forward.register_fake
def _(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, compress: Tensor | None,
    floor: float | None, erase: bool, parts: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _results(X, k, v, compress, erase or parts)


@_backward.register_fake
def _(
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, compress: Tensor | None,
    reading: Tensor | None, correction: Tensor,
    d_after: Tensor | None, d_reading: Tensor | None, d_correction: Tensor | None, d_read: Tensor | None,
    floor: float | None, erase: bool, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _gradients(X, k, v, beta, compress, needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    X, k, v, beta, compress, ctx.floor, ctx.erase, ctx.parts = inputs
    _, reading, correction, _ = output
    reads = ctx.erase or ctx.parts
    # Without an erase and without a reading to answer for, the gradients do not ask for the state.
    kept = X if reads or compress is not None else None
    ctx.save_for_backward(kept, k, v, beta, compress, reading if reads else None, correction)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any,
    d_after: Tensor | None, d_reading: Tensor | None, d_correction: Tensor | None, d_read: Tensor | None,
) -> tuple[Any, ...]:  # fmt: skip
    X, k, v, beta, compress, reading, correction = ctx.saved_tensors
    # A result that was not asked for is empty, and so is its gradient.
    d_reading, d_read = d_reading if ctx.parts else None, None if compress is None else d_read
    # What nobody reads of a state arrives at the one before as it is.
    answered = ctx.erase or d_reading is not None or d_read is not None
    need_X, *needs, need_compress = ctx.needs_input_grad[:5]
    needs = [need_X and answered, *needs, need_compress and d_read is not None]
    found = _backward(
        X, k, v, beta, compress, reading, correction, d_after, d_reading, d_correction, d_read,
        ctx.floor, ctx.erase, needs,
    )  # fmt: skip
    gradients = [x if need else None for x, need in zip(found, needs, strict=True)]
    if need_X and not answered:
        gradients[0] = d_after
    return *gradients, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)


def _forward_on_tape(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule
) -> tuple[Tensor, Tensor | None, Tensor]:
    after, reading, correction, _ = _forward(X, k, v, beta, None, *rule)
    return after, reading if rule.erase or rule.parts else None, correction


def _backward_on_tape(
    d_after: Tensor, d_reading: Tensor | None, d_correction: Tensor | None,
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, reading: Tensor | None, correction: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    answered = rule.erase or d_reading is not None
    dX, dk, dv, dbeta, _ = _backward(
        X, k, v, beta, None, reading, correction, d_after, d_reading, d_correction, None,
        rule.floor, rule.erase, [answered, True, True, True, False],
    )  # fmt: skip
    return dX if answered else d_after, dk, dv, dbeta


def refuses(X: Tensor) -> str | None:
    """Why the kernels do not take a state like X, as the end of a sentence; None if they do."""
    if X.shape[-1] > MOST_CHANNELS:
        return f"it takes a d_v of at most {MOST_CHANNELS}, got {X.shape[-1]}, takes rung='eager'"
    return _triton.refuses(X, "X")


def delta_rewrite(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, rule: Rule, tape: Tape | None,
    compress: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same as in `loops`, in one kernel, its gradients in another; arguments as the contract passes them.

    With `compress` (d, d_v), not on a tape, the same kernel also returns, last, what the next sublayer reads,
    u_i = Σ_j C_ij X'_ij; the gradient of C takes a third kernel, which passes over the state once more.

    float32, float16, and bfloat16 from compute capability 8.0; sums in float32. Differentiable once: the
    backward pass has no derivative of its own. d_v up to eight, any d. The state is loaded once and stored
    once, unless d · d_v exceeds 16384, or 12288 if neither axis is innermost without gaps. A gradient that is
    not needed is neither computed nor stored, and what only it would ask for is not loaded; on a tape all
    are. cost.kernel_bytes says what moves. The result has the layout of X if that has d innermost, and is
    contiguous otherwise.
    """
    _triton.check("delta_rewrite", refuses(X))
    if tape is not None:
        return rewritten(X, k, v, beta, rule, tape, _forward_on_tape, _backward_on_tape)
    after, reading, correction, read = _forward(X, k, v, beta, compress, *rule)
    parts = (after, reading if rule.erase or rule.parts else None, correction)
    return parts if compress is None else (*parts, read)
