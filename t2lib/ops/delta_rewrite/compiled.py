"""torch.compile of the rewrite and of its vector-Jacobian product; tape and bookkeeping are those of `eager`.

The layout decides how a loop is vectorised. With d innermost in memory, as in X = Y.mT of a contiguous Y
(..., d_v, d), reading and update run along d. With d_v innermost, as in a contiguous X, a vector of the
processor spans several rows: there a token is d / rows groups of rows·d_v entries, all of them lanes, and an
entry of the direction is spread over the d_v lanes of its row. Results have the layout of X.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops._pages import empty_like
from t2lib.ops.delta_rewrite import Rule, Tape
from t2lib.ops.delta_rewrite.eager import rewritten


def delta_rewrite(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, rule: Rule, tape: Tape | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same as in `loops`, compiled on first use; arguments as the contract passes them."""
    return rewritten(X, k, v, beta, rule, tape, _forward, _backward)


def _forward(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule
) -> tuple[Tensor, Tensor | None, Tensor]:
    *leading, d, d_v = X.shape
    state = X.reshape(-1, d, d_v)
    after, rows = empty_like(state), _rows(state)
    given = _fixed(_lanes(after, rows), _lanes(state, rows), k.reshape(-1, d), v.reshape(-1, d_v))
    reading, correction, _ = run(
        _rewrite, *given, beta.detach().reshape(-1), rule.floor, rule.erase, rule.parts, rows
    )
    reading = None if reading is None else reading.reshape(*leading, d_v)
    return after.reshape(X.shape), reading, correction.reshape(*leading, d_v)


def _backward(
    dX: Tensor, d_reading: Tensor | None, d_correction: Tensor | None,
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, reading: Tensor | None, correction: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    d, d_v = dX.shape[-2:]
    # A broadcast gradient is written out, not compiled for.
    G = (dX.contiguous() if 0 in dX.stride() else dX).reshape(-1, d, d_v)
    below, rows = empty_like(G), _rows(G)
    state = None if X is None else X.reshape(-1, d, d_v)
    small = (d_reading, d_correction, v, reading, correction)
    given = _fixed(
        _lanes(below, rows), _lanes(G, rows), state, k.reshape(-1, d),
        *(None if x is None else x.reshape(-1, d_v) for x in small),
    )  # fmt: skip
    d_k, gated, d_beta, _ = run(_pull, *given, beta.detach().reshape(-1), rule.floor, rule.erase, rows)
    return (
        below.reshape(dX.shape),
        d_k.to(k.dtype).reshape(k.shape),
        gated.to(v.dtype).reshape(v.shape),
        d_beta.to(beta.dtype).reshape(beta.shape),
    )


def _rewrite(
    after: Tensor, state: Tensor, k: Tensor, v: Tensor, beta: Tensor, floor: float | None, erase: bool,
    parts: bool, rows: int,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Writes the new state; both states in lanes."""
    k = _widened(k)
    spread, state = _spread(k, v.shape[1], rows), state.to(k.dtype)
    scale = _scale(spread, rows, floor)
    reading = _read(spread, state, rows) * scale if erase or parts else None
    target = v.to(k.dtype)
    correction = beta.to(k.dtype)[:, None] * (target - reading if erase and reading is not None else target)
    step = torch.cat([correction * scale] * rows, 1)
    after.copy_(state + spread * step[:, None])
    # What is returned is stored: otherwise every entry of the state would take the root again.
    return reading, correction, step


def _pull(
    below: Tensor, G: Tensor, state: Tensor | None, k: Tensor, d_reading: Tensor | None,
    d_correction: Tensor | None, v: Tensor, reading: Tensor | None, correction: Tensor, beta: Tensor,
    floor: float | None, erase: bool, rows: int,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]:  # fmt: skip
    """The vector-Jacobian product of the head of `eager`; writes the gradient of the state, in lanes."""
    k = _widened(k)
    spread, G = _spread(k, v.shape[1], rows), G.to(k.dtype)
    scale = _scale(spread, rows, floor)
    own = _read(spread, G, rows) * scale
    a = own if d_correction is None else own + d_correction
    gated, target, q = beta.to(k.dtype)[:, None] * a, v.to(k.dtype), d_reading
    if erase and reading is not None:
        target, q = target - reading, -gated if q is None else q - gated
    d_k, steps = _weighted(G.reshape(*k.shape, -1), correction), None
    # k̂·∂k̂ from what has been read already: (Gᵀk̂)·ρ + (Xᵀk̂)·q.
    along = (own * correction).sum(1, keepdim=True)
    if q is not None and reading is not None:
        along = along + (q * reading).sum(1, keepdim=True)
        # Stored as in `_rewrite`, and q with it, since the loop over X would take the root as well.
        steps = torch.cat([q, *[q * scale] * rows], 1)
        q, step = steps[:, : v.shape[1]], steps[:, v.shape[1] :]
        G = G + spread * step[:, None]
        d_k = d_k if state is None else d_k + _weighted(state, q)
    below.copy_(G)
    guard = None
    if floor is not None:
        guard = torch.cat([scale, along * scale * scale], 1)
        d_k = d_k * guard[:, :1] - k * guard[:, 1:]
    return d_k, gated, (a * target).sum(1), (steps, guard)


def _widened(k: Tensor) -> Tensor:
    return k if k.dtype == torch.float64 else k.float()


def _scale(spread: Tensor, rows: int, floor: float | None) -> Any:
    """What divides the direction by its guarded length: summed as it is read by, on one lane of each row."""
    if floor is None:
        return 1.0
    squares = (spread * spread).sum(1).reshape(len(spread), rows, -1)
    return torch.rsqrt(squares[:, :, 0].sum(1, keepdim=True) + floor)


def _rows(state: Tensor) -> int:
    """How many rows make up whole vectors; 1 if the rows are not contiguous, or not a multiple of it."""
    d, d_v = state.shape[1:]
    if state.device.type != "cpu" or state.stride()[1:] != (d_v, 1) or d_v == 1:
        return 1
    width = 64 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 32
    rows = width // math.gcd(width, d_v * state.element_size())
    return rows if d % rows == 0 else 1


def _lanes(state: Tensor, rows: int) -> Tensor:
    tokens, d, d_v = state.shape
    return state.reshape(tokens, d // rows, rows * d_v)


def _spread(k: Tensor, d_v: int, rows: int) -> Tensor:
    """Each entry of the direction on the d_v lanes of its row."""
    tokens, d = k.shape
    groups, lane = k.reshape(tokens, d // rows, rows), torch.arange(rows * d_v, device=k.device)
    spread = groups[:, :, :1]
    for row in range(1, rows):
        spread = torch.where(lane < row * d_v, spread, groups[:, :, row : row + 1])
    return spread


def _read(spread: Tensor, lanes: Tensor, rows: int) -> Tensor:
    """kᵀX: down the groups first, then over the rows of a group."""
    return (spread * lanes).sum(1).reshape(len(lanes), rows, -1).sum(1)


def _weighted(state: Tensor, small: Tensor) -> Tensor:
    """X q, the channels one after another."""
    wide = state.to(small.dtype)
    total = wide[:, :, 0] * small[:, :1]
    for channel in range(1, state.shape[2]):
        total = total + wide[:, :, channel] * small[:, channel, None]
    return total


def _fixed(*tensors: Tensor | None) -> list[Tensor | None]:
    """Views whose sizes but the tokens are compiled in: only with them are the groups of lanes known.

    Detached, since whether a tensor requires a gradient would be compiled in as well.
    """
    views = [None if x is None else x.detach() for x in tensors]
    for view in views:
        for axis in range(1, 0 if view is None else view.ndim):
            torch._dynamo.mark_static(view, axis)
    return views
