# Triton has no types for the functions it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, assignment"
# Triton appends to a tuple with +, and has no conditional expression over tuples.
# ruff: noqa: RUF005, SIM108
"""Triton, forward and backward. A program owns a token: it loads the token's coefficients once and, in one
pass over the channels, every stream once, mixes, writes, reads and stores.

The n streams at a block of channels are a tuple of n vectors and a coefficient is a scalar, so a sum over
streams is n multiply-adds in registers. On a GPU a program is a warp: the sums over channels that the
gradients of the coefficients need wait for no other.

Sinkhorn holds a block of matrices in registers; a step divides by sums over one of their axes. Its backward
pass takes the forward steps again, leaves the n numbers that each divided by in a scratch in memory, and
walks back through them: the exact gradient of the iteration as it ran, with 2 · iterations · n float32 a
matrix written and read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from t2lib.ops import _triton
from t2lib.ops._configs import tabled
from t2lib.ops._triton import DEVICES, offset

# Streams a token: each pair of them has a multiply-add of its own in the code.
MOST_STREAMS = 8
# Fewer tokens than this share a chip with more warps each.
FEW = 1024
# The last axes of every tensor that are its own; those before them are the leading axes of the streams.
OWN = {"streams": 2, "mix": 2, "write": 1, "branch": 1, "read": 1, "dnew": 2, "dh": 1}
# What the backward kernel reads, by the gradients that ask for it.
ARRIVING = {"streams", "mix", "write", "branch"}
ASKED_BY = {
    "streams": {"mix", "read"}, "mix": {"streams", "read"}, "write": {"branch", "read"},
    "branch": {"write", "read"}, "read": ARRIVING, "dnew": ARRIVING, "dh": ARRIVING | {"read"},
}  # fmt: skip
# Triton compiles a variant for an argument that is 1 or divisible by 16; a length must not make a variant.
LENGTHS = ["tokens", "iterations"]


class Config(NamedTuple):
    """Matrices that a program of Sinkhorn owns, channels that the others take a step, warps."""

    rows: int
    columns: int
    warps: int


@tabled("stream_mix")
def pick_config(capability: tuple[int, int], kernel: str, streams: int, *, few: bool) -> Config:
    """The configuration of a kernel, by its name, for a number of streams.

    The same for all chips, since no kernel here has a dot. A lane holds columns / 32 numbers of each stream,
    and in `backward` of each coefficient's sum, of which there are n² + 2 n: more than four streams leave
    room for one number only. Sinkhorn holds 8 numbers a lane. `few` tokens do not fill a chip with warps of
    their own, so there a token takes eight. Each entry compiles (Triton 3.7) without a spill
    (tests/kernels/build); none is tuned for speed; those that were are in the table of `_configs`. Capability
    (0, 0) is the interpreter, where long vectors cost no more than short ones.
    """
    if kernel.startswith("project"):
        return Config(1024 // triton.next_power_of_2(streams) ** 2, 1, 4)
    if capability == (0, 0):
        return Config(1, 1024, 1)
    warps = 8 if few else 1
    return Config(1, warps * (128 if streams <= 4 else 32 if kernel == "backward" else 64), warps)


@triton.jit
def _numbers(pointer, step, N: tl.constexpr):
    """N coefficients as scalars. A stride below 2^31 is one of 32 bits: it is multiplied in 64."""
    found = ()
    for i in tl.static_range(N):
        found = found + (tl.load(pointer + tl.cast(i, tl.int64) * step).to(tl.float32),)
    return found


@triton.jit
def _matrix(pointer, steps, N: tl.constexpr):
    """The N² coefficients of a mix, row by row."""
    found = ()
    for out in tl.static_range(N):
        found = found + _numbers(pointer + tl.cast(out, tl.int64) * steps[0], steps[1], N)
    return found


@triton.jit
def _vector(pointer, step, column, wanted):
    return tl.load(pointer + column.to(tl.int64) * step, mask=wanted, other=0.0).to(tl.float32)


@triton.jit
def _vectors(pointer, steps, column, wanted, N: tl.constexpr):
    """The N streams at these channels."""
    found = ()
    for i in tl.static_range(N):
        stream = pointer + tl.cast(i, tl.int64) * steps[0]
        found = found + (_vector(stream, steps[1], column, wanted),)
    return found


@triton.jit
def _mixed(mix, X, N: tl.constexpr, TRANSPOSED: tl.constexpr = False):
    """Σ_i M_oi X_i for every o; with M transposed, what goes back."""
    found = ()
    for out in tl.static_range(N):
        total = mix[out if TRANSPOSED else out * N] * X[0]
        for i in tl.static_range(1, N):
            total += mix[i * N + out if TRANSPOSED else out * N + i] * X[i]
        found = found + (total,)
    return found


@triton.jit
def _plus(X, numbers, y, N: tl.constexpr):
    """X_o + c_o y for every o."""
    found = ()
    for out in tl.static_range(N):
        found = found + (X[out] + numbers[out] * y,)
    return found


@triton.jit
def _weighted(numbers, X, N: tl.constexpr):
    total = numbers[0] * X[0]
    for i in tl.static_range(1, N):
        total += numbers[i] * X[i]
    return total


@triton.jit
def _zeros(COUNT: tl.constexpr, COLUMNS: tl.constexpr):
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros([COLUMNS], tl.float32),)
    return found


@triton.jit
def _plus_products(sums, X, y, N: tl.constexpr):
    found = ()
    for i in tl.static_range(N):
        found = found + (sums[i] + X[i] * y,)
    return found


@triton.jit
def _plus_pairs(sums, G, X, N: tl.constexpr):
    found = ()
    for out in tl.static_range(N):
        for i in tl.static_range(N):
            found = found + (sums[out * N + i] + G[out] * X[i],)
    return found


@triton.jit
def _store(pointer, x, column, wanted):
    tl.store(pointer + column, x.to(pointer.dtype.element_ty), mask=wanted)


@triton.jit
def _store_streams(pointer, X, column, wanted, N: tl.constexpr, WIDTH: tl.constexpr):
    for i in tl.static_range(N):
        _store(pointer + i * WIDTH, X[i], column, wanted)


@triton.jit
def _store_sums(pointer, sums, COUNT: tl.constexpr):
    for place in tl.static_range(COUNT):
        tl.store(pointer + place, tl.sum(sums[place], 0).to(pointer.dtype.element_ty))


@triton.jit
def forward(
    streams, mix, write, branch, read, new, h,
    streams_strides, mix_strides, write_strides, branch_strides, read_strides, sizes,
    LEVELS: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The new streams and what is read of them; whatever is None is left out. Results are contiguous."""
    token = tl.program_id(0).to(tl.int64)
    streams += offset(token, sizes, streams_strides, LEVELS, 2)
    if mix is not None:
        M = _matrix(mix + offset(token, sizes, mix_strides, LEVELS, 2), mix_strides, N)
    if write is not None:
        b = _numbers(write + offset(token, sizes, write_strides, LEVELS, 1), write_strides[0], N)
        branch += offset(token, sizes, branch_strides, LEVELS, 1)
    if read is not None:
        a = _numbers(read + offset(token, sizes, read_strides, LEVELS, 1), read_strides[0], N)
    for begin in range(0, WIDTH, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        wanted = column < WIDTH
        X = _vectors(streams, streams_strides, column, wanted, N)
        if mix is not None:
            X = _mixed(M, X, N)
        if write is not None:
            X = _plus(X, b, _vector(branch, branch_strides[0], column, wanted), N)
        if new is not None:
            _store_streams(new + token * (N * WIDTH), X, column, wanted, N, WIDTH)
        if read is not None:
            _store(h + token * WIDTH, _weighted(a, X, N), column, wanted)


@triton.jit
def backward(
    streams, mix, write, branch, read, dnew, dh, dstreams, dmix, dwrite, dbranch, dread,
    streams_strides, mix_strides, write_strides, branch_strides, read_strides, dnew_strides, dh_strides,
    sizes, LEVELS: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """With G_o = ∂X'_o + a_o ∂h, what arrives at stream o in all, and sums over the channels:

    ∂X_i = Σ_o M_oi G_o    ∂M_oi = G_o · X_i    ∂b_o = G_o · y    ∂y = Σ_o b_o G_o    ∂a_o = ∂h · X'_o

    A gradient that is None is not wanted, and an input that no other asks for is None too. Coefficients have
    their gradients a token each, also those that all tokens share.
    """
    token = tl.program_id(0).to(tl.int64)
    if streams is not None:
        streams += offset(token, sizes, streams_strides, LEVELS, 2)
    if mix is not None:
        M = _matrix(mix + offset(token, sizes, mix_strides, LEVELS, 2), mix_strides, N)
    if write is not None:
        b = _numbers(write + offset(token, sizes, write_strides, LEVELS, 1), write_strides[0], N)
    if branch is not None:
        branch += offset(token, sizes, branch_strides, LEVELS, 1)
    if read is not None:
        a = _numbers(read + offset(token, sizes, read_strides, LEVELS, 1), read_strides[0], N)
    if dnew is not None:
        dnew += offset(token, sizes, dnew_strides, LEVELS, 2)
    if dh is not None:
        dh += offset(token, sizes, dh_strides, LEVELS, 1)
    if dmix is not None:
        mix_sums = _zeros(N * N, COLUMNS)
    if dwrite is not None:
        write_sums = _zeros(N, COLUMNS)
    if dread is not None:
        read_sums = _zeros(N, COLUMNS)
    for begin in range(0, WIDTH, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        wanted = column < WIDTH
        if dnew is not None:
            G = _vectors(dnew, dnew_strides, column, wanted, N)
        else:
            G = _zeros(N, COLUMNS)
        if streams is not None:
            X = _vectors(streams, streams_strides, column, wanted, N)
        if branch is not None:
            y = _vector(branch, branch_strides[0], column, wanted)
        if dh is not None:
            upstream = _vector(dh, dh_strides[0], column, wanted)
        if dread is not None:
            new = X
            if mix is not None:
                new = _mixed(M, X, N)
            if write is not None:
                new = _plus(new, b, y, N)
            read_sums = _plus_products(read_sums, new, upstream, N)
        if read is not None:
            G = _plus(G, a, upstream, N)
        if dwrite is not None:
            write_sums = _plus_products(write_sums, G, y, N)
        if dbranch is not None:
            _store(dbranch + token * WIDTH, _weighted(b, G, N), column, wanted)
        if dmix is not None:
            mix_sums = _plus_pairs(mix_sums, G, X, N)
        if dstreams is not None:
            if mix is not None:
                G = _mixed(M, G, N, True)
            _store_streams(dstreams + token * (N * WIDTH), G, column, wanted, N, WIDTH)
    if dmix is not None:
        _store_sums(dmix + token * (N * N), mix_sums, N * N)
    if dwrite is not None:
        _store_sums(dwrite + token * N, write_sums, N)
    if dread is not None:
        _store_sums(dread + token * N, read_sums, N)


@triton.jit
def _place(tokens, N: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """The matrices of a program [ROWS, 1, 1], their outputs [1, PADDED, 1], their inputs [1, 1, PADDED]."""
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None, None]
    out = tl.arange(0, PADDED)[None, :, None]
    i = tl.arange(0, PADDED)[None, None, :]
    return token, out, i, (token < tokens) & (out < N) & (i < N)


@triton.jit
def _store_matrices(pointer, M, inside, N: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """The matrices of a program into a contiguous tensor.

    Only the first has an address of 64 bits of its own: the others would hold twice the registers, and spill.
    """
    matrix = tl.arange(0, ROWS)[:, None, None]
    out = tl.arange(0, PADDED)[None, :, None]
    i = tl.arange(0, PADDED)[None, None, :]
    pointer += tl.program_id(0).to(tl.int64) * (ROWS * N * N)
    where = pointer + (matrix * (N * N) + out * N + i)
    tl.store(where, M.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _divide(M, inside, eps, AXIS: tl.constexpr, LOGS: tl.constexpr):
    """One step, and what it divided by: logarithms of both without eps. Outside, M stays a zero."""
    if LOGS:
        peak = tl.max(M, AXIS, keep_dims=True)
        total = peak + tl.log(tl.sum(tl.exp(M - peak), AXIS, keep_dims=True))
        M = tl.where(inside, M - total, -float("inf"))
    else:
        total = tl.sum(M, AXIS, keep_dims=True) + eps
        M = tl.where(inside, M / total, 0.0)
    return M, total


@triton.jit
def _undo(M, gradient, total, AXIS: tl.constexpr, LOGS: tl.constexpr):
    """The matrix before a step, and the gradient there."""
    if LOGS:
        gradient = gradient - tl.exp(M) * tl.sum(gradient, AXIS, keep_dims=True)
        M = M + total
    else:
        gradient = (gradient - tl.sum(gradient * M, AXIS, keep_dims=True)) / total
        M = M * total
    return M, gradient


@triton.jit
def _first(streams, place, strides, sizes, inside, eps, LEVELS: tl.constexpr, LOGS: tl.constexpr):
    """The matrices before the first step; with eps behind it, since a softmax is the first step there."""
    token, out, i = place
    where = streams + offset(token, sizes, strides, LEVELS, 2)
    where += out.to(tl.int64) * strides[0] + i.to(tl.int64) * strides[1]
    M = tl.load(where, mask=inside, other=-float("inf")).to(tl.float32)
    if not LOGS:
        M, _ = _divide(M, inside, eps, 1, True)
        M = tl.where(inside, tl.exp(M) + eps, 0.0)
    return M


@triton.jit
def _keep(scratch, step, number, total, token, tokens, N: tl.constexpr):
    """Leave the N numbers a matrix that a step divided by."""
    where = scratch + (step * N + number).to(tl.int64) * tokens + token
    tl.store(where, total, mask=(token < tokens) & (number < N))


@triton.jit
def _kept(scratch, step, number, token, tokens, N: tl.constexpr):
    where = scratch + (step * N + number).to(tl.int64) * tokens + token
    return tl.load(where, mask=(token < tokens) & (number < N), other=1.0)


@triton.jit
def _iterate(M, scratch, place, inside, tokens, iterations, eps, N: tl.constexpr, LOGS: tl.constexpr):
    """All steps. `scratch`, if it is not None, takes what each divided by."""
    token, out, i = place
    # With eps, the softmax of `_first` was the first column step.
    if not LOGS:
        M, total = _divide(M, inside, eps, 2, LOGS)
        if scratch is not None:
            _keep(scratch, 1, out, total, token, tokens, N)
    for step in range(0 if LOGS else 1, iterations):
        M, column_total = _divide(M, inside, eps, 1, LOGS)
        M, row_total = _divide(M, inside, eps, 2, LOGS)
        if scratch is not None:
            _keep(scratch, 2 * step, i, column_total, token, tokens, N)
            _keep(scratch, 2 * step + 1, out, row_total, token, tokens, N)
    return M


@triton.jit(do_not_specialize=LENGTHS)
def project(
    streams, out, streams_strides, sizes, tokens, iterations, eps,
    LEVELS: tl.constexpr, N: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """Sinkhorn: columns (a sum over the outputs), then rows, `iterations` times. The result is contiguous."""
    token, row, i, inside = _place(tokens, N, PADDED, ROWS)
    M = _first(streams, (token, row, i), streams_strides, sizes, inside, eps, LEVELS, LOGS)
    M = _iterate(M, None, (token, row, i), inside, tokens, iterations, eps, N, LOGS)
    if LOGS:
        M = tl.exp(M)
    _store_matrices(out, M, inside, N, PADDED, ROWS)


@triton.jit(do_not_specialize=LENGTHS)
def project_backward(
    streams, dnew, scratch, dstreams, streams_strides, dnew_strides, sizes, tokens, iterations, eps,
    LEVELS: tl.constexpr, N: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, LOGS: tl.constexpr,
):  # fmt: skip
    """The steps again, then back through them one by one."""
    token, out, i, inside = _place(tokens, N, PADDED, ROWS)
    place = (token, out, i)
    M = _first(streams, place, streams_strides, sizes, inside, eps, LEVELS, LOGS)
    M = _iterate(M, scratch, place, inside, tokens, iterations, eps, N, LOGS)
    # What one thread of the program has left in the scratch, another loads.
    tl.debug_barrier()
    where = dnew + offset(token, sizes, dnew_strides, LEVELS, 2)
    where += out.to(tl.int64) * dnew_strides[0] + i.to(tl.int64) * dnew_strides[1]
    gradient = tl.load(where, mask=inside, other=0.0).to(tl.float32)
    if LOGS:
        gradient = gradient * tl.exp(M)
    begin = 0 if LOGS else 1
    for back in range(begin, iterations):
        step = iterations - 1 + begin - back
        row_total = _kept(scratch, 2 * step + 1, out, token, tokens, N)
        column_total = _kept(scratch, 2 * step, i, token, tokens, N)
        M, gradient = _undo(M, gradient, row_total, 2, LOGS)
        M, gradient = _undo(M, gradient, column_total, 1, LOGS)
    if not LOGS:
        M, gradient = _undo(M, gradient, _kept(scratch, 1, out, token, tokens, N), 2, LOGS)
        unit = tl.where(inside, M - eps, 0.0)
        gradient = unit * (gradient - tl.sum(gradient * unit, 1, keep_dims=True))
    _store_matrices(dstreams, gradient, inside, N, PADDED, ROWS)


def _arguments(tensors: dict[str, Tensor | None], iterations: int = 0, eps: float = 0.0) -> dict[str, Any]:
    """The arguments of all kernels but their results: pointers, strides, sizes.

    The strides of a tensor are those of its own axes, then one a level of leading axes. A coefficient that
    all tokens share has stride 0 there.
    """
    like = tensors["streams"]
    assert like is not None
    leading = like.shape[:-2]
    tokens = math.prod(leading)
    if tokens >= 2**31:
        raise ValueError(f"rung='kernels' takes fewer than 2^31 tokens; got {tokens}.")
    given = {
        name: x.expand(*leading, *x.shape[x.ndim - OWN[name] :])
        for name, x in tensors.items()
        if x is not None
    }
    levels = _triton.levels(list(given.values()), list(range(like.ndim - 2)))
    found: dict[str, Any] = dict(tensors)
    for name, own in OWN.items():
        strides = (0,) * (own + len(levels))
        if name in given:
            place = list(given).index(name)
            strides = (*given[name].stride()[-own:], *(steps[place] for _, steps in levels))
        found[f"{name}_strides"] = strides
    return found | {
        # Decoding does not need the outermost size, and it would make variants for nothing.
        "sizes": (1, *(size for size, _ in levels[1:])), "LEVELS": len(levels), "tokens": tokens,
        "N": like.shape[-2], "WIDTH": like.shape[-1], "PADDED": triton.next_power_of_2(like.shape[-2]),
        "iterations": iterations, "eps": eps, "LOGS": eps == 0, "like": like,
    }  # fmt: skip


def _configured(
    kernel: Any, arguments: dict[str, Any], capability: tuple[int, int]
) -> tuple[dict[str, Any], Config]:
    """The arguments with those that the configuration on a chip of this capability adds, and that."""
    few = arguments["tokens"] < FEW
    config = pick_config(capability, kernel.__name__, arguments["N"], few=few)
    return arguments | {"ROWS": config.rows, "COLUMNS": config.columns}, config


def _launch(kernel: Any, arguments: dict[str, Any]) -> None:
    like, tokens = arguments["like"], arguments["tokens"]
    if not tokens:
        return
    arguments, (rows, _, warps) = _configured(kernel, arguments, _triton.capability(like))
    programs = triton.cdiv(tokens, rows)
    operator = "sinkhorn" if kernel in (project, project_backward) else "stream_mix"
    _triton.launch(operator, kernel, programs, arguments, device=like.device, warps=warps)


def _empty(streams: Tensor, shape: Sequence[int] | None, dtype: torch.dtype | None = None) -> Tensor:
    """Room for a result; nothing for one that is not asked for, since an operator cannot return None."""
    return torch.empty(0 if shape is None else shape, dtype=dtype or streams.dtype, device=streams.device)


def _results(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, read: Tensor | None
) -> tuple[Tensor, Tensor]:
    changes = mix is not None or write is not None
    new = _empty(streams, streams.shape if changes else None)
    return new, _empty(streams, None if read is None else (*streams.shape[:-2], streams.shape[-1]))


@torch.library.custom_op("t2lib::stream_mix", mutates_args=(), device_types=DEVICES)
def _forward(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The new streams and what is read of them, each empty if it is not asked for."""
    new, h = _results(streams, mix, write, read)
    given = {"streams": streams, "mix": mix, "write": write, "branch": branch, "read": read}
    changes = mix is not None or write is not None
    results = {"new": new if changes else None, "h": None if read is None else h}
    _launch(forward, _arguments(given) | results)
    return new, h


@torch.library.custom_op("t2lib::stream_mix_backward", mutates_args=(), device_types=DEVICES)
def _backward(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None,
    dnew: Tensor | None, dh: Tensor | None, needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the five inputs, each empty if it is not needed."""
    given = {"streams": streams, "mix": mix, "write": write, "branch": branch, "read": read}
    needed = {name: x for (name, x), need in zip(given.items(), needs, strict=True) if need and x is not None}
    arguments = _arguments(given | {"dnew": dnew, "dh": dh})
    for name, by in ASKED_BY.items():
        if not by & needed.keys() or (name == "read" and dh is None):
            arguments[name] = None
    gradients = {name: _empty(streams, None) for name in given}
    for name, x in needed.items():
        # A number a token, also where all tokens share one: those are summed below.
        shape = (*streams.shape[:-2], *x.shape[x.ndim - OWN[name] :])
        gradients[name] = _empty(streams, shape, x.dtype if len(shape) == x.ndim else torch.float32)
    results = {f"d{name}": gradients[name] if name in needed else None for name in given}
    _launch(backward, arguments | results)
    for name, x in needed.items():
        if x.ndim < gradients[name].ndim:
            gradients[name] = gradients[name].reshape(-1, *x.shape).sum(0).to(x.dtype)
    return (
        gradients["streams"], gradients["mix"], gradients["write"], gradients["branch"], gradients["read"]
    )  # fmt: skip


@torch.library.custom_op("t2lib::stream_mix_sinkhorn", mutates_args=(), device_types=DEVICES)
def _sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    out = _empty(logits, logits.shape)
    _launch(project, _arguments({"streams": logits}, iterations, eps) | {"out": out})
    return out


@torch.library.custom_op("t2lib::stream_mix_sinkhorn_backward", mutates_args=(), device_types=DEVICES)
def _sinkhorn_backward(logits: Tensor, upstream: Tensor, iterations: int, eps: float) -> Tensor:
    arguments = _arguments({"streams": logits, "dnew": upstream}, iterations, eps)
    gradient = _empty(logits, logits.shape)
    scratch = _empty(logits, (2 * iterations, logits.shape[-1], arguments["tokens"]), torch.float32)
    _launch(project_backward, arguments | {"dstreams": gradient, "scratch": scratch})
    return gradient


@_forward.register_fake
def _(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _results(streams, mix, write, read)


@_backward.register_fake
def _(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None,
    dnew: Tensor | None, dh: Tensor | None, needs: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (streams, mix, write, branch, read)
    return tuple(
        _empty(streams, x.shape, x.dtype) if need and x is not None else _empty(streams, None)
        for x, need in zip(given, needs, strict=True)
    )


_sinkhorn.register_fake(lambda logits, iterations, eps: _empty(logits, logits.shape))
_sinkhorn_backward.register_fake(lambda logits, upstream, iterations, eps: _empty(logits, logits.shape))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dnew: Tensor | None, dh: Tensor | None) -> tuple[Any, ...]:
    streams, mix, write, branch, read = ctx.saved_tensors
    # A result that was not asked for is empty, and so is its gradient.
    dnew = None if mix is None and write is None else dnew
    dh = None if read is None else dh
    needs = list(ctx.needs_input_grad)
    needs[4] = needs[4] and dh is not None
    gradients = _backward(streams, mix, write, branch, read, dnew, dh, needs)
    return tuple(gradient if need else None for gradient, need in zip(gradients, needs, strict=True))


def _save_logits(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    logits, ctx.iterations, ctx.eps = inputs
    ctx.save_for_backward(logits)


def _differentiate_sinkhorn(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
    return _sinkhorn_backward(*ctx.saved_tensors, upstream, ctx.iterations, ctx.eps), None, None


_forward.register_autograd(_differentiate, setup_context=_save)
_sinkhorn.register_autograd(_differentiate_sinkhorn, setup_context=_save_logits)


def refuses(streams: Tensor) -> str | None:
    """Why the kernels do not take streams, or logits of Sinkhorn, like these; None if they do."""
    if streams.shape[-2] > MOST_STREAMS:
        got = streams.shape[-2]
        return f"it takes at most {MOST_STREAMS} streams, got {got}, takes rung='eager'"
    return _triton.refuses(streams, "streams")


def stream_mix(
    streams: Tensor, mix: Tensor | None, write: Tensor | None, branch: Tensor | None, read: Tensor | None
) -> Any:
    """The same as in `loops`, in one kernel, its gradients in another; arguments as the contract passes them.

    float32, float16, and bfloat16 from compute capability 8.0; sums in float32. Differentiable once: the
    backward pass has no derivative of its own. Up to eight streams. Every stream is loaded once and stored
    once; a gradient that is not needed is neither computed nor stored, and what only it would ask for is not
    loaded; cost.kernel_bytes says what moves.
    """
    _triton.check("stream_mix", refuses(streams))
    new, h = _forward(streams, mix, write, branch, read)
    if read is None:
        return new
    return h if mix is None and write is None else (new, h)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """The same as in `loops`; dtypes and gradients as `stream_mix`.

    Forward, a block of matrices stays in registers from the first step to the last. The gradient is that of
    the iteration as it ran, for any number of iterations: backward keeps what each step divided by in memory,
    2 · iterations · n float32 a matrix; cost.sinkhorn_kernel_bytes says what moves.
    """
    _triton.check("sinkhorn", refuses(logits))
    result: Tensor = _sinkhorn(logits, iterations, eps)
    return result
