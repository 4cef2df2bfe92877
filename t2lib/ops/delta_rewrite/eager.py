"""PyTorch: two matrix products with the direction, and a backward pass in closed form, on any device.

With G, q' and a' the gradients that arrive at the new state, the reading and the correction:

    a = Gᵀk̂ + a'          what arrives at the correction in all
    q = q' − β a          what arrives at the reading (q = q' without the erase)
    ∂v = β a              ∂β = a·(v − r)           ∂X = G + k̂ qᵀ
    ∂k̂ = G ρ + X q        ∂k = (∂k̂ − k̂ (k̂·∂k̂)) / sqrt(|k|² + floor)

X appears once, in ∂k̂. A rewrite on a tape does not keep it: there it is X' − k̂ ρᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from t2lib.ops.delta_rewrite import Rule, Tape


def delta_rewrite(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, rule: Rule, tape: Tape | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same as in `loops`, differentiable once; arguments as the contract passes them."""
    return rewritten(X, k, v, beta, rule, tape, forward, backward)


def forward(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The new state, the reading (None if nobody needs it) and the correction."""
    state, unit, target = _widened(X), unit_direction(k, rule.floor)[0], _widened(v)
    reading = None
    if rule.erase or rule.parts:
        reading = (unit[..., None, :] @ state)[..., 0, :]
        target = target - reading if rule.erase else target
    correction = _widened(beta)[..., None] * target
    return torch.addcmul(state, unit[..., :, None], correction[..., None, :]).to(X.dtype), reading, correction


def backward(
    dX: Tensor, d_reading: Tensor | None, d_correction: Tensor | None,
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, reading: Tensor | None, correction: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The vector-Jacobian product of the head of this file: gradients of X, k, v and beta."""
    G, (unit, length) = _widened(dX), unit_direction(k, rule.floor)
    a = (unit[..., None, :] @ G)[..., 0, :]
    a = a if d_correction is None else a + d_correction
    gated, target, q = _widened(beta)[..., None] * a, _widened(v), None
    if rule.erase and reading is not None:
        target, q = target - reading, -gated
    d_beta = (a * target).sum(-1)
    if d_reading is not None:
        q = d_reading if q is None else q + d_reading
    d_unit = (G @ correction[..., None])[..., 0]
    if q is not None and X is not None:
        d_unit = d_unit + (_widened(X) @ q[..., None])[..., 0]
        G = torch.addcmul(G, unit[..., :, None], q[..., None, :])
    d_k = through_the_guard(d_unit, unit, length)
    return G.to(dX.dtype), d_k.to(k.dtype), gated.to(v.dtype), d_beta.to(beta.dtype)


def unit_direction(k: Tensor, floor: float | None) -> tuple[Tensor, Tensor | None]:
    """The direction divided by its guarded length, and that length; None if it is taken as it is."""
    k = _widened(k)
    if floor is None:
        return k, None
    length = torch.sqrt((k * k).sum(-1, keepdim=True) + floor)
    return k / length, length


def through_the_guard(d_unit: Tensor, unit: Tensor, length: Tensor | None) -> Tensor:
    """The gradient of the direction from that of the divided one; exact with the guard too."""
    if length is None:
        return d_unit
    return (d_unit - unit * (unit * d_unit).sum(-1, keepdim=True)) / length


def rewritten(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule, tape: Tape | None,
    forward: Callable[..., Any], backward: Callable[..., Any],
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """One rewrite, computed by `forward`, whose gradients `backward` computes."""
    apply: Callable[..., Any] = _Rewrite.apply
    result = apply(X, k, v, beta, rule, tape, forward, backward)
    return result[0], result[1], result[2]


class _Rewrite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule, tape: Tape | None,
                forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:  # fmt: skip
        after, reading, correction = forward(X, k, v, beta, rule)
        needed = any(ctx.needs_input_grad[:4])
        ctx.place = tape.record(after, k, correction, rule.floor) if tape is not None and needed else None
        # Without an erase and without a reading to answer for, the gradients do not ask for the state.
        kept = X if ctx.place is None and reading is not None else None
        ctx.save_for_backward(kept, k, v, beta, reading, correction)
        ctx.rule, ctx.tape, ctx.compute = rule, tape, backward
        ctx.like = (X.shape, X.dtype)
        ctx.set_materialize_grads(False)
        return after, reading, correction

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dX: Any, d_reading: Any, d_correction: Any) -> Any:
        X, k, v, beta, reading, correction = ctx.saved_tensors
        if dX is None:
            shape, dtype = ctx.like
            dX = k.new_zeros(shape, dtype=dtype)
        if ctx.place is not None:
            X = ctx.tape.state(ctx.place)
        gradients = ctx.compute(dX, d_reading, d_correction, X, k, v, beta, reading, correction, ctx.rule)
        return *gradients, None, None, None, None


def _widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
