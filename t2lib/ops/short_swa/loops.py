"""The definition, in plain loops: a query, the keys it sees, their weights, the weighted sum of their values.

Every other rung is checked against this one. It imports NumPy only, and is slow on purpose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops.short_swa import Mask

Array = npt.NDArray[Any]


def short_swa(
    q: Array, k: Array, v: Array, *, axis: int, mask: Mask, scale: float, head_axis: int | None
) -> Array:
    """z_i = Σ_j a_ij v_j, one independent sequence after another; arguments as the contract passes them."""
    if head_axis is not None:
        group = q.shape[head_axis] // k.shape[head_axis]
        k, v = np.repeat(k, group, head_axis), np.repeat(v, group, head_axis)

    # The ordered axis next to the width: q[where] is then one sequence of shape (n_q, D).
    q, k, v = (np.moveaxis(x, axis, -2) for x in (q, k, v))
    documents, valid = (_by_sequence(x, k.shape[:-1], axis) for x in (mask.documents, mask.valid))

    out = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    for where in np.ndindex(q.shape[:-2]):
        for n in range(q.shape[-2]):
            i = mask.query_start + n
            if valid is not None and not valid[where][i]:
                continue
            seen = [
                j
                for j in range(mask.first_seen(i), i + 1)
                if mask.sees(i, j)
                and (documents is None or documents[where][i] == documents[where][j])
                and (valid is None or valid[where][j])
            ]
            out[where][n] = _read(q[where][n], k[where][seen], v[where][seen], scale)
    return np.moveaxis(out, -2, axis)


def _read(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """One query reads the keys it sees: softmax of the scores, then the weighted sum of the values."""
    dtype = np.promote_types(query.dtype, np.float32)
    query, keys, values = query.astype(dtype), keys.astype(dtype), values.astype(dtype)
    scores = [float(np.dot(query, key)) * scale for key in keys]
    # Subtracting the largest score changes nothing in exact arithmetic and keeps exp from overflowing.
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = sum(weights)
    z = np.zeros(values.shape[-1], dtype)
    for weight, value in zip(weights, values, strict=True):
        z += (weight / total) * value
    return z


def _by_sequence(labels: Array | None, shape: tuple[int, ...], axis: int) -> Array | None:
    return None if labels is None else np.broadcast_to(np.moveaxis(labels, axis, -1), shape)
