"""The definition, one token, one stream, one weight after another.

Every other rung is checked against this one. It imports NumPy only, and is slow on purpose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def stream_mix(
    streams: Array, mix: Array | None, write: Array | None, branch: Array | None, read: Array | None
) -> Any:
    """The new streams, what is read from them, or both; arguments as the contract passes them."""
    *leading, n, d = streams.shape
    wide = np.promote_types(streams.dtype, np.float32)
    new, h = np.empty(streams.shape, streams.dtype), np.empty((*leading, d), streams.dtype)
    for where in np.ndindex(*leading):
        state = streams[where].astype(wide)
        if mix is not None:
            weights = mix if mix.ndim == 2 else mix[where]
            state = np.array([_sum(weights[out], state) for out in range(n)])
        if write is not None and branch is not None:
            weights = write if write.ndim == 1 else write[where]
            for out in range(n):
                state[out] += wide.type(weights[out]) * branch[where].astype(wide)
        if read is not None:
            h[where] = _sum(read if read.ndim == 1 else read[where], state)
        new[where] = state
    if mix is None and write is None:
        return h
    return new if read is None else (new, h)


def _sum(weights: Array, state: Array) -> Array:
    """Σ_i w_i x_i over the streams of one token."""
    total: Array = np.zeros_like(state[0])
    for weight, stream in zip(weights, state, strict=True):
        total += state.dtype.type(weight) * stream
    return total


def sinkhorn(logits: Array, iterations: int, eps: float) -> Array:
    """Columns, then rows, `iterations` times, one matrix after another."""
    result = np.empty(logits.shape, logits.dtype)
    for where in np.ndindex(logits.shape[:-2]):
        result[where] = _project([[float(x) for x in row] for row in logits[where]], iterations, eps)
    return result


def _project(logits: list[list[float]], iterations: int, eps: float) -> list[list[float]]:
    n = len(logits)
    # A factor a column changes nothing, since a column is divided by its sum; the largest entry becomes 1.
    largest = [max(logits[out][i] for out in range(n)) for i in range(n)]
    M = [[math.exp(logits[out][i] - largest[i]) for i in range(n)] for out in range(n)]
    for step in range(iterations):
        for i in range(n):
            total = sum(M[out][i] for out in range(n))
            for out in range(n):
                # The released code begins with a softmax plus eps, and divides by a sum plus eps afterwards.
                M[out][i] = M[out][i] / total + eps if step == 0 else M[out][i] / (total + eps)
        for out in range(n):
            total = sum(M[out])
            M[out] = [entry / (total + eps) for entry in M[out]]
    return M
