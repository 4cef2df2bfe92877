"""Exercises of chapter 3, ShortSWA on the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t2lib.exercises import Exercise, Mistake, close, matches, register, same

Array = np.ndarray[Any, Any]


# --- one read on paper: query ln 3 at token 3, keys 1 0 2 1 2, values 6 4 1 13 8, window 3 ---------------


def by_hand(answer: Any) -> None:
    known = {
        4.375: "token 0 was read too: a window of 3 that ends at token 3 holds tokens 1, 2 and 3",
        1.3: "the query's own token is missing: the window counts it",
        6.0: "that is the plain mean: equal weights need equal scores",
        5.0: "the scores were used as weights: take exp of each and divide by their sum",
        (4 + 9 + 39 + 72) / 22: "token 4 was read, which lies after the query",
        52.0: "the weights are not yet divided by their sum, 1 + 9 + 3",
        (4 + np.e**2 + 13 * np.e) / (1 + np.e**2 + np.e): "multiply each key by the query to get its score",
    }
    for value, sentence in known.items():
        if matches(answer, value, tolerance=2e-3):
            raise Mistake(sentence)
    close(answer, 4.0, "the reading", tolerance=1e-3)


# --- how many pairs a window reads -----------------------------------------------------------------------


def pairs(T: int, w: int) -> int:
    short = min(T, w)
    return short * (short + 1) // 2 + (T - short) * w


def check_pairs(answer: Callable[[int, int], int]) -> None:
    for T, w in [(10, 3), (1000, 10), (1, 1), (7, 7), (4, 9), (12, 1), (37, 5)]:
        got, want = answer(T, w), pairs(T, w)
        if got == want:
            continue
        where = f" (T={T}, w={w})"
        if w > 1 and got == T * w:
            raise Mistake(
                "the first rows have fewer than w tokens before them: T·w counts keys that do not exist"
                + where
            )
        if got == pairs(T, w) - T:
            raise Mistake("each row reads itself too: T pairs are missing" + where)
        if got == pairs(T, w + 1):
            raise Mistake("that is the count for w+1 keys a row" + where)
        if w > T and got == T * w - w * (w - 1) // 2:
            raise Mistake(
                "the closed form holds for w <= T: a longer window reads no more than all T(T+1)/2 pairs"
                + where
            )
        same(got, want, "the number of pairs", hint=f"T={T}, w={w}")


# --- which cases of a test suite see a window that is one too long ---------------------------------------


def windows_that_fail(T: int, windows: Sequence[int]) -> list[int]:
    return [w for w in windows if w < T]


def check_windows_that_fail(answer: Callable[[int, list[int]], list[int]]) -> None:
    for T, windows in [(64, [1, 16, 63, 64, 128]), (5, [1, 2, 3, 4, 5, 6]), (1, [1, 2]), (9, [20, 8, 9, 2])]:
        got, want = list(answer(T, list(windows))), windows_that_fail(T, windows)
        if got == want:
            continue
        where = f" (T={T}, windows={windows})"
        if sorted(got) == sorted(want):
            raise Mistake("the right windows, but not in the order in which they were given" + where)
        if got == [w for w in windows if w <= T]:
            raise Mistake(
                "with w = T the last row already sees everything: one entry more does not exist" + where
            )
        if got == [w for w in windows if w + 1 < T]:
            raise Mistake("w = T-1 is affected too: its last row sees T keys instead of T-1" + where)
        if got == [w for w in windows if w == 1]:
            raise Mistake(
                "w = 1 is the sharpest case, but every window shorter than the text is affected" + where
            )
        if got == list(windows):
            raise Mistake("a window of at least T hides the mistake: there is no extra entry to see" + where)
        same(got, want, "the list", hint=f"T={T}, windows={windows}")


# --- write the read --------------------------------------------------------------------------------------


def read(q: Array, k: Array, v: Array, window: int) -> Array:
    z = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        start = max(0, t - window + 1)
        scores = k[start : t + 1] @ q[t] / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max())
        z[t] = weights / weights.sum() @ v[start : t + 1]
    return z


def _masked_read(q: Array, k: Array, v: Array, see: Array, scale: float) -> Array:
    with np.errstate(all="ignore"):
        scores = np.where(see, q @ k.T * scale, -np.inf)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True) @ v)


def _unscaled(q: Array, k: Array, v: Array, window: int) -> Array:
    return read(q * np.sqrt(q.shape[1]), k, v, window)


def _one_too_long(q: Array, k: Array, v: Array, window: int) -> Array:
    return read(q, k, v, window + 1)


def _without_self(q: Array, k: Array, v: Array, window: int) -> Array:
    lag = np.subtract.outer(np.arange(len(q)), np.arange(len(k)))
    return np.nan_to_num(_masked_read(q, k, v, (lag > 0) & (lag <= window), q.shape[1] ** -0.5))


def _both_ways(q: Array, k: Array, v: Array, window: int) -> Array:
    lag = np.subtract.outer(np.arange(len(q)), np.arange(len(k)))
    return _masked_read(q, k, v, np.abs(lag) < window, q.shape[1] ** -0.5)


def _zeros_instead_of_cut(q: Array, k: Array, v: Array, window: int) -> Array:
    # Scores outside the window set to 0 instead of -inf: each still counts exp(0).
    lag = np.subtract.outer(np.arange(len(q)), np.arange(len(k)))
    scores = np.where((lag >= 0) & (lag < window), q @ k.T * q.shape[1] ** -0.5, 0.0)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ v)


def _padded_with_zeros(q: Array, k: Array, v: Array, window: int) -> Array:
    pad = window - 1
    keys, values = (np.concatenate([np.zeros((pad, x.shape[1])), x]) for x in (k, v))
    z = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        scores = keys[t : t + window] @ q[t] / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max())
        z[t] = weights / weights.sum() @ values[t : t + window]
    return z


READ_MISTAKES: list[tuple[Callable[[Array, Array, Array, int], Array], str]] = [
    (_one_too_long, "each row reads one token too many: token t reads t-w+1 to t, which are w tokens"),
    (_without_self, "token t itself is not read: the window counts it"),
    (_both_ways, "tokens after t are read: the window looks back only"),
    (_unscaled, "the scores are not divided by the root of the width D"),
    (_zeros_instead_of_cut, "a score of 0 outside the window still weighs exp(0): leave it out or use -inf"),
    (
        _padded_with_zeros,
        "the first rows read padded zeros, each with the weight exp(0): they have fewer keys",
    ),
]


def check_read(answer: Callable[[Array, Array, Array, int], Array]) -> None:
    generator = np.random.default_rng(3)
    for T, D, width, window in [(6, 4, 3, 3), (9, 8, 8, 4), (5, 2, 1, 5), (4, 3, 2, 9), (7, 5, 4, 1)]:
        q, k = generator.standard_normal((2, T, D))
        v = generator.standard_normal((T, width))
        got, want = answer(q, k, v, window), read(q, k, v, window)
        if matches(got, want):
            continue
        for mistake, sentence in READ_MISTAKES:
            if matches(got, mistake(q, k, v, window)):
                raise Mistake(f"{sentence} (T={T}, window={window})")
        close(got, want, "z", hint=f"T={T}, D={D}, window={window}")
    q = np.full((3, 1), 100.0)
    got = answer(q, q, np.eye(3), 2)
    if np.isnan(np.asarray(got, dtype=float)).any():
        raise Mistake("large scores overflow: subtract the row's largest score before exp")
    close(got, read(q, q, np.eye(3), 2), "z", hint="three equal states of size 100")


# --- how far a stack of chunked reads reaches ------------------------------------------------------------


def chunk_reach(t: int, C: int, lookback: int, reads: int) -> int:
    first = max(0, (t // C - lookback * reads) * C)
    return t - first + 1


def check_chunk_reach(answer: Callable[[int, int, int, int], int]) -> None:
    cases = [
        (14, 4, 1, 1),
        (14, 4, 0, 5),
        (14, 4, 1, 2),
        (50, 8, 2, 2),
        (3, 4, 1, 9),
        (31, 8, 1, 3),
        (32, 8, 1, 3),
    ]
    for t, C, lookback, reads in cases:
        got, want = answer(t, C, lookback, reads), chunk_reach(t, C, lookback, reads)
        if got == want:
            continue
        where = f" (t={t}, C={C}, lookback={lookback}, reads={reads})"
        strict = min(t + 1, ((lookback + 1) * C - 1) * reads + 1)
        if lookback == 0 and got > want:
            raise Mistake("with look-back 0 no read leaves its chunk, so no number of reads does" + where)
        if got == t - max(0, t - lookback * reads * C) + 1:
            raise Mistake(
                "the reach starts where a chunk starts, not a whole number of chunks before t" + where
            )
        if got == want - 1:
            raise Mistake("token t reads itself too: one position is missing" + where)
        if got == t - (t // C - lookback * reads) * C + 1:
            raise Mistake("there is nothing before token 0" + where)
        if got == strict:
            raise Mistake("that takes the chunk window for a strict one of (lookback+1)·C entries" + where)
        same(got, want, "the number of positions", hint=where.strip(" ()"))


register(
    Exercise(
        id="ch03.by_hand",
        title="One read on paper",
        checker=by_hand,
        reference=4.0,
        why="shares 1, 9 and 3 of 13: a read is a weighted mean, so it stays between the values.",
        wrong={
            "window one too long": (4.375, "token 0 was read too"),
            "self excluded": (1.3, "own token is missing"),
            "no softmax": (5.0, "take exp of each"),
            "mean": (6.0, "plain mean"),
        },
    ),
    Exercise(
        id="ch03.pairs",
        title="How many pairs",
        checker=check_pairs,
        reference=pairs,
        why="T·w minus a missing corner: linear in the length, where the full read grows with T².",
        wrong={
            "rectangle": (lambda T, w: T * w, "keys that do not exist"),
            "without self": (lambda T, w: pairs(T, w) - T, "reads itself too"),
            "only short windows": (lambda T, w: T * w - w * (w - 1) // 2, "closed form holds for w <= T"),
        },
    ),
    Exercise(
        id="ch03.windows_that_fail",
        title="The test that passed",
        checker=check_windows_that_fail,
        reference=windows_that_fail,
        why="a test sees the extra entry only if some row has one: take texts longer than the window.",
        wrong={
            "w = T too": (lambda T, windows: [w for w in windows if w <= T], "already sees everything"),
            "w = T-1 forgotten": (
                lambda T, windows: [w for w in windows if w + 1 < T],
                "T-1 is affected too",
            ),
            "all": (lambda T, windows: list(windows), "hides the mistake"),
        },
    ),
    Exercise(
        id="ch03.read",
        title="Write the read",
        checker=check_read,
        reference=read,
        why="five lines, and every rung of the library is measured against the same five.",
        wrong={
            "one too long": (_one_too_long, "one token too many"),
            "self excluded": (_without_self, "itself is not read"),
            "not causal": (_both_ways, "looks back only"),
            "no scale": (_unscaled, "root of the width"),
            "zeros outside": (_zeros_instead_of_cut, "leave it out or use -inf"),
            "padded": (_padded_with_zeros, "padded zeros"),
        },
    ),
    Exercise(
        id="ch03.chunk_reach",
        title="How far chunks reach",
        checker=check_chunk_reach,
        reference=chunk_reach,
        why="the look-back decides whether anything travels at all: each read gains whole chunks.",
        wrong={
            "as a strict window": (
                lambda t, C, lookback, reads: min(t + 1, ((lookback + 1) * C - 1) * reads + 1),
                "strict one",
            ),
            "distance from t": (
                lambda t, C, lookback, reads: t - max(0, t - lookback * reads * C) + 1,
                "where a chunk starts",
            ),
            "grows without look-back": (
                lambda t, C, lookback, reads: chunk_reach(t, C, max(lookback, 1), reads),
                "with look-back 0",
            ),
        },
    ),
)
