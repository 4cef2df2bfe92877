"""What short_swa must satisfy, whoever computes it: laws that need no trusted implementation to compare with.

A law takes `read`, a short_swa on NumPy arrays with its rung chosen, and returns how far it is from holding
(the largest error; infinity where a shape or a zero is wrong). Tests and `python -m t2lib.verify` run them
on every rung; the tests also run them on implementations that are wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Read = Callable[..., Array]
Law = Callable[[Read], float]

LAWS: dict[str, Law] = {}


def law(function: Law) -> Law:
    LAWS[function.__name__.replace("_", " ")] = function
    return function


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def error(got: Array, want: Array) -> float:
    """The largest difference; infinity where the shapes or the places of NaN differ."""
    if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
        return float("inf")
    return float(np.nanmax(np.abs(got.astype(np.float64) - want), initial=0.0))


def dense(q: Array, k: Array, v: Array, visible: Array, scale: float | None = None) -> Array:
    """The textbook form on one sequence: all scores, hidden ones at -inf, one softmax a row."""
    scores = q @ k.T * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = weights / weights.sum(-1, keepdims=True) @ v
    return result


@law
def definition(read: Read) -> float:
    """z = softmax of the scaled scores inside the window, row by row, against the form with the full mask."""
    q, k, v = random(11, 8, seed=1), random(11, 8, seed=2), random(11, 5, seed=3)
    i, j = np.arange(11)[:, None], np.arange(11)
    errors = [
        error(read(q, k, v, window=w, axis=0), dense(q, k, v, (j <= i) & (i - j < w))) for w in (1, 2, 5, 11)
    ]
    other_scale = dense(q, k, v, (j <= i) & (i - j < 4), 0.7)
    return max(*errors, error(read(q, k, v, window=4, axis=0, scale=0.7), other_scale))


@law
def who_sees_whom(read: Read) -> float:
    """With equal scores and one-hot values a row is 1/|J(i)| on J(i): the window, counted by hand."""
    n = 13
    zero, one_hot = np.zeros((n, 2)), np.eye(n)
    worst = 0.0
    for w in (1, 3, 4, 13, 20):
        strict = [[i - w < j <= i for j in range(n)] for i in range(n)]
        worst = max(worst, error(read(zero, zero, one_hot, window=w, axis=0), _uniform(strict)))
        for back in (0, 1, 2):
            chunk = [[j <= i and i // w - j // w <= back for j in range(n)] for i in range(n)]
            got = read(zero, zero, one_hot, window=w, axis=0, window_type="chunk", lookback=back)
            worst = max(worst, error(got, _uniform(chunk)))
    return worst


def _uniform(visible: list[list[bool]]) -> Array:
    seen = np.array(visible, float)
    result: Array = seen / seen.sum(-1, keepdims=True)
    return result


@law
def window_one_returns_the_values(read: Read) -> float:
    q, k, v = random(2, 9, 4, seed=1), random(2, 9, 4, seed=2), random(2, 9, 3, seed=3)
    return error(read(q, k, v, window=1, axis=1), v)


@law
def window_of_the_whole_length_is_causal_attention(read: Read) -> float:
    q, k, v = random(9, 4, seed=1), random(9, 4, seed=2), random(9, 4, seed=3)
    causal = np.tri(9, dtype=bool)
    return max(error(read(q, k, v, window=w, axis=0), dense(q, k, v, causal)) for w in (9, 10, 1000))


@law
def depth_is_tokens_with_the_axes_swapped(read: Read) -> float:
    q, k, v = (random(5, 2, 7, 4, seed=seed) for seed in (1, 2, 3))
    over_depth = read(q, k, v, window=3, axis=0)
    swapped = read(*(x.swapaxes(0, 2) for x in (q, k, v)), window=3, axis=2)
    every_axis = max(
        error(np.moveaxis(read(*(np.moveaxis(x, 0, place) for x in (q, k, v)), window=3, axis=place), place,
        0),
              over_depth)
        for place in range(3)
    )  # fmt: skip
    alone = np.stack([read(*(x[:, 1, t] for x in (q, k, v)), window=3, axis=0) for t in range(7)], 1)
    return max(error(swapped.swapaxes(0, 2), over_depth), every_axis, error(alone, over_depth[:, 1]))


@law
def shifting_the_sequence_shifts_the_reads(read: Read) -> float:
    q, k, v = (random(12, 4, seed=seed) for seed in (1, 2, 3))
    w, shift = 4, 3
    late = read(q[shift:], k[shift:], v[shift:], window=w, axis=0)
    return error(late[w - 1 :], read(q, k, v, window=w, axis=0)[shift + w - 1 :])


@law
def packed_documents_read_as_if_alone(read: Read) -> float:
    q, k, v = (random(2, 10, 4, seed=seed) for seed in (1, 2, 3))
    cuts = (0, 4, 5, 10)
    documents = np.array([[7] * 4 + [2] + [8] * 5])
    alone = [read(*(x[:, a:b] for x in (q, k, v)), window=3, axis=1) for a, b in pairwise(cuts)]
    packed = read(q, k, v, window=3, axis=1, documents=documents)
    return error(packed, np.concatenate(alone, 1))


@law
def padding_reads_as_if_absent(read: Read) -> float:
    q, k, v = (random(2, 9, 4, seed=seed) for seed in (1, 2, 3))
    valid = np.arange(9) >= np.array([[3], [0]])
    padded = read(q, k, v, window=4, axis=1, valid=valid)
    short = read(*(x[0, 3:] for x in (q, k, v)), window=4, axis=0)
    whole = read(*(x[1] for x in (q, k, v)), window=4, axis=0)
    nothing = 0.0 if not padded[0, :3].any() else float("inf")
    return max(error(padded[0, 3:], short), error(padded[1], whole), nothing)


@law
def strict_lies_between_two_chunks(read: Read) -> float:
    """chunk(C, 0) ⊆ strict(C) ⊆ chunk(C, 1), as sets of visible entries."""
    n, zero = 12, np.zeros((12, 2))
    for c in (1, 2, 3, 4):
        less, strict, more = (
            read(zero, zero, np.eye(n), window=c, axis=0, **kind) > 0
            for kind in ({"window_type": "chunk", "lookback": 0}, {}, {"window_type": "chunk", "lookback": 1})
        )
        if (less & ~strict).any() or (strict & ~more).any():
            return float("inf")
    return 0.0


@law
def a_read_is_a_convex_combination(read: Read) -> float:
    """It keeps constants, and stays between the smallest and the largest value in its window."""
    q, k, v = random(10, 4, seed=1), random(10, 4, seed=2), random(10, 3, seed=3)
    z = read(5 * q, k, v, window=3, axis=0)
    low = np.stack([v[max(0, i - 2) : i + 1].min(0) for i in range(10)])
    high = np.stack([v[max(0, i - 2) : i + 1].max(0) for i in range(10)])
    outside = float(np.maximum(low - z, z - high).max(initial=0.0))
    return max(outside, error(read(q, k, np.full((10, 3), 2.5), window=3, axis=0), np.full((10, 3), 2.5)))


@law
def order_inside_the_window_does_not_matter(read: Read) -> float:
    q, k, v = (random(8, 4, seed=seed) for seed in (1, 2, 3))
    order = [0, 1, 2, 3, 6, 4, 5, 7]
    return error(read(q, k[order], v[order], window=4, axis=0)[-1], read(q, k, v, window=4, axis=0)[-1])


@law
def streaming_equals_the_whole(read: Read) -> float:
    q, k, v = (random(2, 11, 4, seed=seed) for seed in (1, 2, 3))
    worst = 0.0
    for kind in ({"window": 3}, {"window": 4, "window_type": "chunk", "lookback": 1}):
        whole = read(q, k, v, axis=1, **kind)
        for size in (1, 2, 4, 11):
            parts = [
                read(q[:, a : a + size], k[:, : a + size], v[:, : a + size], axis=1, query_start=a, **kind)
                for a in range(0, 11, size)
            ]
            worst = max(worst, error(np.concatenate(parts, 1), whole))
    return worst


@law
def shared_heads_read_as_repeated_heads(read: Read) -> float:
    q, k, v = random(2, 7, 6, 4, seed=1), random(2, 7, 2, 4, seed=2), random(2, 7, 2, 3, seed=3)
    repeated = read(q, k.repeat(3, 2), v.repeat(3, 2), window=3, axis=1)
    other_layout = read(*(x.swapaxes(1, 2) for x in (q, k, v)), window=3, axis=2, head_axis=1).swapaxes(1, 2)
    return max(error(read(q, k, v, window=3, axis=1, head_axis=2), repeated), error(other_layout, repeated))


@law
def a_bad_entry_reaches_exactly_the_rows_that_see_it(read: Read) -> float:
    q, k, v = (random(80, 4, seed=seed) for seed in (1, 2, 3))
    want = read(q, k, v, window=3, axis=0)
    for place in range(3):
        bad = [q.copy(), k.copy(), v.copy()]
        bad[place][70] = np.nan
        rows = slice(70, 71) if place == 0 else slice(70, 73)
        expected = want.copy()
        expected[rows] = np.nan
        if error(read(*bad, window=3, axis=0), expected) > 1e-4:
            return float("inf")
    return 0.0
