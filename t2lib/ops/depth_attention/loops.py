"""The definition, in plain loops: a query, a token, the score of every state, and the weighted sum.

Every other rung is checked against this one. It imports NumPy only, and is slow on purpose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def depth_attention(
    states: tuple[Array, ...], pseudo_query: Array | None, gain: Array | None, query: Array | None, eps: float
) -> tuple[Array, Array]:
    """z = Σ_j softmax(s)_j x_j and log Σ_j exp(s_j); arguments as the contract passes them."""
    given = query if pseudo_query is None else pseudo_query
    queries = 0 if given is None else len(given)
    shape, dtype = states[0].shape, states[0].dtype
    wide = np.promote_types(dtype, np.float32)
    z, lse = np.zeros((queries, *shape), dtype), np.zeros((queries, *shape[:-1]), wide)
    for i in range(queries):
        for token in np.ndindex(shape[:-1]):
            asks = np.zeros(shape[-1], wide)
            if pseudo_query is not None:
                asks += pseudo_query[i]
            if query is not None:
                asks += query[i][token]
            if gain is not None:
                asks *= gain[i]
            values = [state[token].astype(wide) for state in states]
            scores = [float(np.dot(asks, _normalised(value, eps))) for value in values]
            z[(i, *token)], lse[(i, *token)] = _softmax_sum(scores, values)
    return z, lse


def merge(reads: tuple[Array, ...], lses: tuple[Array, ...]) -> tuple[Array, Array]:
    """A softmax over the log-sum-exps weights the reads of the parts."""
    wide = lses[0].dtype
    z, lse = np.zeros_like(reads[0]), np.zeros_like(lses[0])
    for token in np.ndindex(lse.shape):
        values = [read[token].astype(wide) for read in reads]
        z[token], lse[token] = _softmax_sum([float(one[token]) for one in lses], values)
    return z, lse


def _normalised(value: Array, eps: float) -> Array:
    """RMS(x) = x / sqrt(mean(x²) + eps)."""
    normalised: Array = value / np.sqrt(np.mean(value * value) + value.dtype.type(eps))
    return normalised


def _softmax_sum(scores: list[float], values: list[Array]) -> tuple[Array, float]:
    # Subtracting the largest score changes nothing in exact arithmetic and keeps exp from overflowing.
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = sum(weights)
    z = np.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        z += (weight / total) * value
    # Nothing weighs nothing: log 0.
    nothing = all(score == -math.inf for score in scores)
    return z, -math.inf if nothing else largest + math.log(total)
