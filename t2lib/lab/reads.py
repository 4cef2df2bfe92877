"""Reads over depth that are not the displayed formula: static, signed, pseudo-query and uniform.

Each function mixes an ordered list of sources (N, ..., d), oldest first, and returns one reading a level,
(N, ..., d): level l reads the sources 0..l. NumPy in float64, written as the definitions they are; the same
reads through `t2lib.ops.short_swa` are built in chapter 6.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

__all__ = [
    "mix_axes",
    "pseudo_query_read",
    "rms_norm",
    "signed_read_as_two_softmax",
    "static_softmax_read",
    "two_softmax",
    "uniform_read",
]


def rms_norm(x: ArrayLike, eps: float = 0.0) -> Array:
    """x / sqrt(mean(x^2) + eps) over the last axis, without a gain: (..., d) -> (..., d)."""
    x = np.asarray(x, dtype=np.float64)
    root: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return x / root


def mix_axes(states: ArrayLike, depth: ArrayLike, tokens: ArrayLike) -> Array:
    """Fixed weights along both axes of a grid: out[l, t] = sum_{i, s} depth[l, i] tokens[t, s] states[i, s].

    Equation: (A B) H with A acting on levels and B on tokens; the order does not matter, because the two
    sums can be exchanged. ``states`` (N, T, d), ``depth`` (N, N), ``tokens`` (T, T) -> (N, T, d).

    Book: eq-static-commute
    Cost: 2 N T d (N + T) FLOPs. Errors: ValueError for a shape that does not fit.
    """
    states, depth, tokens = (np.asarray(x, dtype=np.float64) for x in (states, depth, tokens))
    if states.ndim != 3:
        raise ValueError(f"states must have shape (N, T, d), got {states.shape}")
    for name, weights, length in (("depth", depth, states.shape[0]), ("tokens", tokens, states.shape[1])):
        if weights.shape != (length, length):
            raise ValueError(f"{name} must have shape ({length}, {length}), got {weights.shape}")
    mixed: Array = np.einsum("li,ts,isd->ltd", depth, tokens, states, optimize=True)
    return mixed


def static_softmax_read(sources: ArrayLike, logits: ArrayLike) -> Array:
    """The ELC-BERT read: z_l = sum_{i <= l} softmax(logits[l, :l+1])_i sources[i].

    The weights are learned numbers: one row a level, the same for all tokens. ``sources`` (N, ..., d),
    ``logits`` (N, N), of which the part above the diagonal is never read; a logit may be -inf as long as
    its row keeps a finite one -> (N, ..., d).

    Book: eq-static-softmax
    Source: Charpentier and Samuel, BabyLM 2023. Cost: d N(N+1) FLOPs a token.
    Errors: ValueError for a shape that does not fit.
    """
    sources, logits = _sources_and_table(sources, logits, "logits")
    weights = _softmax(np.where(np.tri(len(sources)) > 0, logits, -np.inf))
    return _mix(weights, sources)


def two_softmax(weights: ArrayLike) -> tuple[float, Array, float, Array]:
    """Split signed weights (n,) into two softmax reads: (s_plus, p_plus, s_minus, p_minus).

    Equation: weights = s_plus p_plus - s_minus p_minus, where s_plus and s_minus are the sums of the
    positive and of the negative parts, and p_plus = softmax(log of the positive part), p_minus likewise. A
    part that is empty has s = 0 and p = 0.

    Book: eq-two-softmax
    """
    weights = np.asarray(weights, dtype=np.float64)
    plus, minus = np.maximum(weights, 0.0), np.maximum(-weights, 0.0)
    return float(plus.sum()), _softmax_of_log(plus), float(minus.sum()), _softmax_of_log(minus)


def signed_read_as_two_softmax(sources: ArrayLike, weights: ArrayLike) -> Array:
    """The DenseFormer read, z_l = sum_{i <= l} weights[l, i] sources[i], as two softmax reads a level.

    A softmax row is positive and sums to one; these weights are neither, so one read cannot do it. Two can,
    with two scales outside: see `two_softmax`. ``sources`` (N, ..., d), ``weights`` (N, N), of which the
    part above the diagonal is never read -> (N, ..., d).

    Book: eq-two-softmax
    Source: Pagliardini et al., NeurIPS 2024; the split is the book's. Cost: 2 d N(N+1) FLOPs a token.
    Errors: ValueError for a shape that does not fit.
    """
    sources, weights = _sources_and_table(sources, weights, "weights")
    readings = []
    for level in range(len(sources)):
        s_plus, p_plus, s_minus, p_minus = two_softmax(weights[level, : level + 1])
        seen = sources[: level + 1]
        readings.append(s_plus * _mix(p_plus, seen) - s_minus * _mix(p_minus, seen))
    return np.stack(readings)


def pseudo_query_read(
    sources: ArrayLike, pseudo_query: ArrayLike, gain: ArrayLike | None = None, eps: float = 1e-6
) -> Array:
    """The Attention Residuals read: a learned query a level, RMS-normalised keys, the sources as values.

    Equation: z_l = sum_{i <= l} softmax_i(pseudo_query_l . (gain_l * RMS(sources_i))) sources_i, without
    1/sqrt(d) and without projections; RMS divides by sqrt(mean(x^2) + eps). ``sources`` (N, ..., d),
    ``pseudo_query`` (N, d), ``gain`` (N, d) or None for ones -> (N, ..., d).

    Book: eq-pseudo-query
    Source: Kimi Team, arXiv 2603.15031. Cost: 3 d N(N+1) FLOPs a token when a level normalises what it
    reads. Errors: ValueError for a shape that does not fit.
    """
    sources = np.asarray(sources, dtype=np.float64)
    query = np.asarray(pseudo_query, dtype=np.float64)
    gain = np.ones_like(query) if gain is None else np.asarray(gain, dtype=np.float64)
    wanted = (len(sources), sources.shape[-1])
    for name, table in (("pseudo_query", query), ("gain", gain)):
        if table.shape != wanted:
            raise ValueError(f"{name} must have shape {wanted}, got {table.shape}")
    scores = np.einsum("ld,i...d->li...", query * gain, rms_norm(sources, eps))
    seen = np.tri(len(sources)).reshape(len(sources), len(sources), *(1,) * (sources.ndim - 2)) > 0
    weights = _softmax(np.where(seen, scores, -np.inf), axis=1)
    read: Array = np.einsum("li...,i...d->l...d", weights, sources)
    return read


def uniform_read(sources: ArrayLike) -> Array:
    """The read with all scores equal: the mean of the sources so far, z_l = (1/(l+1)) sum_{i <= l} sources_i.

    On the embedding and the branch outputs this is the residual stream divided by the number of sources, so
    RMS normalisation makes the two equal (exactly without eps). ``sources`` (N, ..., d) -> (N, ..., d).

    Book: eq-uniform-read
    """
    sources = np.asarray(sources, dtype=np.float64)
    counts = np.arange(1, len(sources) + 1).reshape(-1, *(1,) * (sources.ndim - 1))
    mean: Array = np.cumsum(sources, axis=0) / counts
    return mean


def _softmax(scores: Array, axis: int = -1) -> Array:
    grown: Array = np.exp(scores - scores.max(axis=axis, keepdims=True))
    weights: Array = grown / grown.sum(axis=axis, keepdims=True)
    return weights


def _softmax_of_log(part: Array) -> Array:
    # log 0 = -inf is meant: such a source has weight zero.
    with np.errstate(divide="ignore"):
        return _softmax(np.log(part)) if part.any() else np.zeros_like(part)


def _mix(weights: Array, sources: Array) -> Array:
    mixed: Array = np.tensordot(weights, sources, axes=(-1, 0))
    return mixed


def _sources_and_table(sources: ArrayLike, table: ArrayLike, name: str) -> tuple[Array, Array]:
    sources = np.asarray(sources, dtype=np.float64)
    table = np.asarray(table, dtype=np.float64)
    if table.shape != (len(sources), len(sources)):
        raise ValueError(f"{name} must have shape ({len(sources)}, {len(sources)}), got {table.shape}")
    return sources, table
