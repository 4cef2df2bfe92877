"""The definition, one token and one entry after another.

Every other rung is checked against this one. It imports NumPy only, and is slow on purpose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops.delta_rewrite import Rule

Array = npt.NDArray[Any]


def delta_rewrite(X: Array, k: Array, v: Array, beta: Array, *, rule: Rule) -> tuple[Array, Array, Array]:
    """The new state, the reading and the correction; arguments as the contract passes them."""
    d, d_v = X.shape[-2:]
    out = np.empty(X.shape, X.dtype)
    readings = np.empty((*X.shape[:-2], d_v), np.promote_types(X.dtype, np.float32))
    corrections = np.empty_like(readings)
    for where in np.ndindex(X.shape[:-2]):
        direction = _unit([float(x) for x in k[where]], rule.floor)
        gate = float(beta[where])
        for j in range(d_v):
            column = [float(x) for x in X[where][:, j]]
            reading = sum(direction[i] * column[i] for i in range(d))
            # Write-only: the target is added whatever the state holds there already.
            correction = gate * (float(v[where][j]) - (reading if rule.erase else 0.0))
            for i in range(d):
                out[where][i, j] = column[i] + direction[i] * correction
            readings[where][j], corrections[where][j] = reading, correction
    return out, readings, corrections


def _unit(direction: list[float], floor: float | None) -> list[float]:
    """The direction divided by its guarded length, which is never 0."""
    if floor is None:
        return direction
    length = math.sqrt(sum(x * x for x in direction) + floor)
    return [x / length for x in direction]
