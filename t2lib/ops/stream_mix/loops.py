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
    M = logits
    if eps == 0:
        # On logarithms, since the exponentials of a whole row may be too small for a float.
        for _ in range(iterations):
            M = _turned([_log_shares(column) for column in _turned(M)])
            M = [_log_shares(row) for row in M]
        return [[math.exp(entry) for entry in row] for row in M]
    for step in range(iterations):
        # The released code begins with a softmax plus eps, and divides by a sum plus eps afterwards.
        columns = [
            [math.exp(entry) + eps for entry in _log_shares(column)] if step == 0 else _shares(column, eps)
            for column in _turned(M)
        ]
        M = [_shares(row, eps) for row in _turned(columns)]
    return M


def _turned(M: list[list[float]]) -> list[list[float]]:
    """Rows as columns."""
    return [list(column) for column in zip(*M, strict=True)]


def _shares(entries: list[float], eps: float) -> list[float]:
    total = sum(entries)
    return [entry / (total + eps) for entry in entries]


def _log_shares(logs: list[float]) -> list[float]:
    """log(x / Σ x) from log x; after a shift of all the largest x is 1."""
    largest = max(logs)
    log_total = math.log(sum(math.exp(log - largest) for log in logs))
    return [log - largest - log_total for log in logs]
