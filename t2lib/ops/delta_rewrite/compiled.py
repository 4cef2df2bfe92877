"""torch.compile of the rewrite and of its vector-Jacobian product: a pass or two over the state each.

Matrix products are no help here, since a direction is one vector a token: written as products and sums, all
of it fuses into two passes over the state, the reading and the update. The tape and the bookkeeping are
those of `eager`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.delta_rewrite import Rule, Tape
from t2lib.ops.delta_rewrite.eager import rewritten, through_the_guard, unit_direction


def delta_rewrite(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, rule: Rule, tape: Tape | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same as in `loops`, compiled on first use; arguments as the contract passes them."""
    return rewritten(X, k, v, beta, rule, tape, partial(run, _forward), partial(run, _backward))


def _forward(
    X: Tensor, k: Tensor, v: Tensor, beta: Tensor, rule: Rule
) -> tuple[Tensor, Tensor | None, Tensor]:
    wide = torch.float64 if X.dtype == torch.float64 else torch.float32
    unit, _ = unit_direction(k, rule.floor)
    reading, target = None, v.to(wide)
    if rule.erase or rule.parts:
        reading = (unit[..., :, None] * X.to(wide)).sum(-2)
        target = target - reading if rule.erase else target
    correction = beta.to(wide)[..., None] * target
    return (X.to(wide) + unit[..., :, None] * correction[..., None, :]).to(X.dtype), reading, correction


def _backward(
    dX: Tensor, d_reading: Tensor | None, d_correction: Tensor | None,
    X: Tensor | None, k: Tensor, v: Tensor, beta: Tensor, reading: Tensor | None, correction: Tensor,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = torch.float64 if k.dtype == torch.float64 else torch.float32
    G, (unit, length) = dX.to(wide), unit_direction(k, rule.floor)
    a = (unit[..., :, None] * G).sum(-2)
    a = a if d_correction is None else a + d_correction
    erased = rule.erase and reading is not None
    gated = beta.to(wide)[..., None] * a
    d_beta = (a * (v.to(wide) - reading if erased else v.to(wide))).sum(-1)
    q = -gated if erased else None
    if d_reading is not None:
        q = d_reading if q is None else q + d_reading
    products = G * correction[..., None, :]
    if q is not None and X is not None:
        products = products + X.to(wide) * q[..., None, :]
        G = G + unit[..., :, None] * q[..., None, :]
    d_k = through_the_guard(products.sum(-1), unit, length)
    return G.to(dX.dtype), d_k.to(k.dtype), gated.to(v.dtype), d_beta.to(beta.dtype)
