"""torch.compile of the rewrite and of its vector-Jacobian product; tape and bookkeeping are those of `eager`.

The layout decides how fast it is. With d innermost in memory, as in X = Y.mT of a contiguous Y (..., d_v, d),
reading and update both run along d and fuse into one loop a token. With d_v innermost, as in a contiguous
X, a vector of the processor spans several rows: there the reading is a matrix product, and the update runs
over the d·d_v entries of a token as one axis, with d and d_v compiled in. Results have the layout of X.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.delta_rewrite import Rule, Tape
from t2lib.ops.delta_rewrite.eager import rewritten, through_the_guard, unit_direction


def delta_rewrite(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, rule: Rule, tape: Tape | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same as in `loops`, compiled on first use; arguments as the contract passes them."""
    return rewritten(X, k, v, beta, rule, tape, _forward, _backward)


def _forward(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule
) -> tuple[Tensor, Tensor | None, Tensor]:
    *leading, d, d_v = X.shape
    state, v, beta = X.reshape(-1, d, d_v), v.reshape(-1, d_v), beta.reshape(-1)
    # A call of its own: inside a loop over the state, the root would be taken again for every entry.
    unit, _ = run(unit_direction, k.reshape(-1, d), rule.floor)
    if _flat(state):
        reading = _product(unit, state) if rule.erase or rule.parts else None
        correction = _correction(v, beta, reading, rule.erase, unit.dtype)
        after = run(_add_flat, *_fixed(state, unit, correction), X.dtype)
    else:
        after, reading, correction = run(
            _fused_forward, *_fixed(state, unit, v), beta, rule.erase, rule.parts
        )
    reading = None if reading is None else reading.reshape(*leading, d_v)
    return after.reshape(X.shape), reading, correction.reshape(*leading, d_v)


def _backward(
    dX: Tensor, d_reading: Tensor | None, d_correction: Tensor | None,
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, reading: Tensor | None, correction: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    d, d_v = dX.shape[-2:]
    G, state = dX.reshape(-1, d, d_v), None if X is None else X.reshape(-1, d, d_v)
    given = (d_reading, d_correction, v, reading, correction)
    small: Any = [None if x is None else x.reshape(-1, d_v) for x in given]
    gate = beta.reshape(-1)
    unit, length = run(unit_direction, k.reshape(-1, d), rule.floor)
    if _flat(G):
        q, gated, d_beta = _small_gradients(*(_product(unit, G), *small, gate, rule.erase))
        d_unit = run(_unit_gradient, *_fixed(G, small[4], state, q))
        G = G if q is None else run(_add_flat, *_fixed(G, unit, q), dX.dtype)
    else:
        G, d_unit, gated, d_beta = run(_fused_backward, *_fixed(G, state, unit, *small), gate, rule.erase)
    d_k = run(through_the_guard, d_unit, unit, length)
    return (
        G.reshape(dX.shape),
        d_k.to(k.dtype).reshape(k.shape),
        gated.to(v.dtype).reshape(v.shape),
        d_beta.to(beta.dtype).reshape(beta.shape),
    )


def _fused_forward(
    state: Tensor, unit: Tensor, v: Tensor, beta: Tensor, erase: bool, parts: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    wide = state.to(unit.dtype)
    reading = (unit[:, :, None] * wide).sum(1) if erase or parts else None
    correction = _correction(v, beta, reading, erase, unit.dtype)
    return (wide + unit[:, :, None] * correction[:, None, :]).to(state.dtype), reading, correction


def _fused_backward(
    G: Tensor, state: Tensor | None, unit: Tensor, d_reading: Tensor | None, d_correction: Tensor | None,
    v: Tensor, reading: Tensor | None, correction: Tensor, beta: Tensor, erase: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = G.to(unit.dtype)
    a = (unit[:, :, None] * wide).sum(1)
    q, gated, d_beta = _small_gradients(a, d_reading, d_correction, v, reading, correction, beta, erase)
    d_unit = _unit_gradient(G, correction, state, q)
    if q is not None:
        wide = wide + unit[:, :, None] * q[:, None, :]
    return wide.to(G.dtype), d_unit, gated, d_beta


def _correction(v: Tensor, beta: Tensor, reading: Tensor | None, erase: bool, wide: torch.dtype) -> Tensor:
    target = v.to(wide)
    return beta.to(wide)[:, None] * (target - reading if erase and reading is not None else target)


def _small_gradients(
    a: Tensor, d_reading: Tensor | None, d_correction: Tensor | None, v: Tensor, reading: Tensor | None,
    correction: Tensor, gate: Tensor, erase: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """What arrives at the reading (None: nothing does), and the gradients of v and beta."""
    a = a if d_correction is None else a + d_correction
    gated, target = gate.to(a.dtype)[:, None] * a, v.to(a.dtype)
    if not erase or reading is None:
        return d_reading, gated, (a * target).sum(-1)
    return -gated if d_reading is None else d_reading - gated, gated, (a * (target - reading)).sum(-1)


def _unit_gradient(G: Tensor, correction: Tensor, state: Tensor | None, q: Tensor | None) -> Tensor:
    products = G.to(correction.dtype) * correction[:, None, :]
    if state is not None and q is not None:
        products = products + state.to(q.dtype) * q[:, None, :]
    return products.sum(-1)


def _flat(state: Tensor) -> bool:
    """Whether the channels are innermost, and the entries of a token one axis."""
    return state.shape[-1] > 1 and state.stride()[1:] == (state.shape[-1], 1)


def _product(unit: Tensor, state: Tensor) -> Tensor:
    return (unit[:, None, :] @ state.to(unit.dtype))[:, 0]


def _add_flat(state: Tensor, unit: Tensor, small: Tensor, dtype: torch.dtype) -> Tensor:
    """state + unit smallᵀ over the d·d_v entries of a token."""
    tokens, d, d_v = state.shape
    columns = unit[:, :, None].expand(tokens, d, d_v).reshape(tokens, d * d_v)
    rows = small[:, None, :].expand(tokens, d, d_v).reshape(tokens, d * d_v)
    return (state.reshape(tokens, d * d_v) + columns * rows).to(dtype).view(tokens, d, d_v)


def _fixed(*tensors: Tensor | None) -> list[Tensor | None]:
    """Views whose sizes but the tokens are compiled in: to divide an index by 4 is cheap, by n it is not.

    Detached, since whether a tensor requires a gradient would be compiled in as well.
    """
    views = [None if x is None else x.detach() for x in tensors]
    for view in views:
        for axis in range(1, 0 if view is None else view.ndim):
            torch._dynamo.mark_static(view, axis)
    return views
