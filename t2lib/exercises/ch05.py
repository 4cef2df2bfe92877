"""Exercises of chapter 5: the duality and its consequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from t2lib.exercises import Exercise, Mistake, close, matches, register, same

Array = np.ndarray[Any, Any]

# The reads the checkers themselves use: small, plain, with the identity for the values.


def windowed_read(x: Array, window: int, query: Array | None = None, key: Array | None = None) -> Array:
    """ShortSWA along the last axis but one of x (..., N, d), values the states themselves."""
    width, length = x.shape[-1], x.shape[-2]
    query, key = (np.eye(width) if matrix is None else matrix for matrix in (query, key))
    scores = (x @ query) @ np.swapaxes(x @ key, -1, -2) / np.sqrt(query.shape[1])
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    read: Array = weights / weights.sum(axis=-1, keepdims=True) @ x
    return read


def turned(x: Array) -> Array:
    return np.swapaxes(x, 0, 1)


# --- a depth read out of a token read


def depth_from_tokens(read_tokens: Callable[[Array], Array], H: Array) -> Array:
    return np.swapaxes(read_tokens(np.swapaxes(H, 0, 1)), 0, 1)


def check_depth_from_tokens(answer: Any) -> None:
    rng = np.random.default_rng(50)

    # On a square grid the shape betrays nothing, so the values must tell; the others catch the rest.
    for shape, window in (((4, 4, 4), 2), ((5, 3, 2), 3), ((2, 6, 3), 9)):
        H = rng.normal(size=shape)

        def read_tokens(x: Array, window: int = window) -> Array:
            return windowed_read(np.asarray(x), window)

        want = depth_from_tokens(read_tokens, H)
        got = answer(read_tokens, H)
        if matches(got, want):
            continue
        if matches(got, turned(want)):
            raise Mistake("the result still lies on the turned grid: swap its two axes back after the read")
        if matches(got, read_tokens(H)):
            raise Mistake("this is the token read: nothing was turned before it, so it reads along the row")
        if matches(got, np.swapaxes(read_tokens(np.swapaxes(H, 0, 2)), 0, 2)) or (
            matches(got, np.swapaxes(read_tokens(np.swapaxes(H, 1, 2)), 1, 2))
        ):
            raise Mistake("the width was swapped too: Π exchanges levels and tokens, each state stays whole")
        if matches(got, read_tokens(turned(H)[:, ::-1])[:, ::-1].swapaxes(0, 1)):
            raise Mistake(
                "the depth was turned upside down as well: level 0 stays first, or the read looks up"
            )
        close(got, want, f"your depth read of a grid of shape {shape}")


# --- two orders on four cells


def check_two_orders(answer: Any) -> None:
    grid = np.array([[0.0, 2.0], [0.0, 0.0]])[..., None]
    across_up = float(turned(windowed_read(turned(windowed_read(grid, 2)), 2))[1, 1, 0])
    up_across = float(windowed_read(turned(windowed_read(turned(grid), 2)), 2)[1, 1, 0])
    want = np.array([across_up, up_across])
    if matches(answer, want[::-1], tolerance=5e-3):
        raise Mistake("both numbers are right and in the wrong order: the first is tokens first, then depth")
    if matches(answer, [1.0, 1.0], tolerance=5e-3) or matches(answer, [0.5, 0.5], tolerance=5e-3):
        raise Mistake("both reads were taken as plain means: only a query of zero has no preference")
    if matches(answer, [across_up, across_up], tolerance=5e-3):
        raise Mistake(
            "the second order differs: reading up first leaves a 1 in the cell, and that 1 has a say"
        )
    close(answer, want, "your pair", tolerance=5e-3)


# --- which statements survive reader-owned projections

REASONS = {
    1: "projections that change by level would have to change by position on the turned grid, "
    "and the ShortSWA on the right side has one set",
    2: "with one key the weight is one, whoever owns the projections",
    3: "a window that already holds all levels cannot grow",
    4: "all tokens of a level use the same projections, so tokens may still be exchanged",
    5: "its first half is the derivative of statement 1, and falls with it",
    6: "a stored key was made with the old reader's projection; the next reader needs another one",
    7: "who is reached depends on the window alone",
    8: "one pair of orders that differ is enough, and it still differs",
    9: "the reader applies its own projections to the whole window, which stays an unordered set",
    10: "the weights are still positive and sum to one",
    11: "zero scores are zero under any projection",
}


def check_reader_owned(answer: Any) -> None:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise Mistake("give the numbers as a set, such as {2, 3}")
    got = {whole(number) for number in answer}
    unknown = sorted(got - set(REASONS))
    if unknown:
        raise Mistake(f"the statements are numbered 1 to 11, got {unknown[0]}")
    for number in sorted(got - {1, 5, 6}):
        raise Mistake(f"statement {number} survives: {REASONS[number]}")
    for number in (1, 6, 5):
        if number not in got:
            raise Mistake(f"statement {number} falls: {REASONS[number]}")


# --- how far repeated reads reach


def cells_reached(level: int, token: int, K: int, w: int, depth_reads: int, token_reads: int) -> int:
    levels = min(level + 1, (K - 1) * depth_reads + 1)
    tokens = min(token + 1, (w - 1) * token_reads + 1)
    return levels * tokens


def count_cells(level: int, token: int, K: int, w: int, depth_reads: int, token_reads: int) -> int:
    """By walking: which cells can be reached, one read at a time."""
    reached = {(level, token)}
    for _ in range(token_reads):
        reached |= {(i, s - j) for i, s in reached for j in range(min(w, s + 1))}
    for _ in range(depth_reads):
        reached |= {(i - j, s) for i, s in reached for j in range(min(K, i + 1))}
    return len(reached)


def whole(number: Any) -> int:
    try:
        if int(number) == number:
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise Mistake(f"a whole number is asked for, got {number!r}")


def check_cells_reached(answer: Any) -> None:
    cases = [(8, 20, 3, 4, 2, 3), (8, 20, 2, 5, 0, 1), (8, 20, 1, 1, 5, 5), (2, 20, 4, 2, 3, 1)]
    cases += [(8, 1, 2, 6, 2, 2), (0, 0, 9, 9, 9, 9), (5, 3, 2, 2, 1, 1), (7, 9, 3, 3, 4, 0)]
    for case in cases:
        level, token, K, w, depth_reads, token_reads = case
        got, want = whole(answer(*case)), count_cells(*case)
        if got == want:
            continue
        up, across = (K - 1) * depth_reads + 1, (w - 1) * token_reads + 1
        where = f"for level {level}, token {token}, K={K}, w={w}, {depth_reads} and {token_reads} reads"
        if got == up * across:
            raise Mistake(f"{where}: the grid has an edge, below level 0 and before token 0 there is nothing")
        if got == min(level + 1, up) + min(token + 1, across) - 1:
            raise Mistake(
                f"{where}: that is a cross, one column and one row; the second kind of read spreads each cell"
            )
        if got == min(level + 1, K * depth_reads) * min(token + 1, w * token_reads) or (
            got == min(level + 1, K * depth_reads + 1) * min(token + 1, w * token_reads + 1)
        ):
            raise Mistake(
                f"{where}: one read of window K goes K − 1 steps back, the reader itself is counted in"
            )
        same(got, want, f"the count {where}")


# --- where the gradient goes


def value_gradient(weights: Array, cotangent: Array) -> Array:
    return weights.T @ cotangent


def check_value_gradient(answer: Any) -> None:
    rng = np.random.default_rng(51)
    for levels, width, window in ((4, 3, 2), (6, 6, 3), (5, 2, 1)):
        distance = np.subtract.outer(np.arange(levels), np.arange(levels))
        weights = np.where((distance >= 0) & (distance < window), rng.random((levels, levels)), 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        cotangent = rng.normal(size=(levels, width))
        want = weights.T @ cotangent
        got = answer(weights, cotangent)
        if window > 1:
            if matches(got, weights @ cotangent):
                raise Mistake(
                    "this reads the cotangent downwards again; level j must hear from its readers above"
                )
            columns = weights / weights.sum(axis=0, keepdims=True)
            if matches(got, columns.T @ cotangent):
                raise Mistake(
                    "do not rescale: the columns of the weights need not sum to one, only the rows do"
                )
            if matches(got, cotangent):
                raise Mistake("that is the gradient for window 1; a level read by others hears from them too")
        close(got, want, f"the gradient for {levels} levels and window {window}")


# --- projections under which the two reads commute


def commuting_projections(d: int) -> tuple[Array, Array]:
    return np.zeros((d, d)), np.eye(d)


def check_commuting_projections(answer: Any) -> None:
    rng = np.random.default_rng(52)
    for d in (2, 5):
        got = answer(d)
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Mistake("return two matrices, (W_Q, W_K)")
        query, key = (np.asarray(matrix, dtype=np.float64) for matrix in got)
        for name, matrix in (("W_Q", query), ("W_K", key)):
            if matrix.shape != (d, d):
                raise Mistake(f"{name} must have shape ({d}, {d}), got {matrix.shape}")
            if not np.isfinite(matrix).all():
                raise Mistake(f"{name} must be finite")
        # Large states give tiny scores a chance to show: an almost zero projection is not zero.
        for size in (1.0, 1e4, 1e8):
            H = size * rng.normal(size=(4, 5, d))
            up_across = windowed_read(turned(windowed_read(turned(H), 3, query, key)), 3, query, key)
            across_up = turned(windowed_read(turned(windowed_read(H, 3, query, key)), 3, query, key))
            apart = np.abs(up_across - across_up).max() / size
            if apart > 1e-12:
                smaller = " (a small projection is not enough)" if apart < 1e-3 or size > 1 else ""
                raise Mistake(
                    f"for states of size {size:.0e} and d={d} the two orders differ by {apart:.1e} of that "
                    f"size{smaller}: the second read still looks at what the first one wrote"
                )


def _no_way_back(read_tokens: Callable[[Array], Array], H: Array) -> Array:
    return read_tokens(np.swapaxes(H, 0, 1))


def _with_the_width(read_tokens: Callable[[Array], Array], H: Array) -> Array:
    return np.swapaxes(read_tokens(np.swapaxes(H, 0, 2)), 0, 2)


register(
    Exercise(
        id="ch05.depth_from_tokens",
        title="A depth read out of a token read",
        checker=check_depth_from_tokens,
        reference=depth_from_tokens,
        why="any causal operator you have along the tokens, you also have along depth, for two swaps",
        wrong={
            "never swapped back": (_no_way_back, "swap its two axes back"),
            "did not turn at all": (lambda read_tokens, H: read_tokens(H), "this is the token read"),
            "swapped the width": (_with_the_width, "the width was swapped too"),
        },
    ),
    Exercise(
        id="ch05.two_orders",
        title="Two orders on four cells",
        checker=check_two_orders,
        reference=(0.982, 0.731),
        why="the first read changes the query and the keys of the second, so the order is part of the model",
        wrong={
            "orders exchanged": ((0.731, 0.982), "in the wrong order"),
            "means throughout": ((0.5, 0.5), "plain means"),
            "thought they commute": ((0.982, 0.982), "the second order differs"),
        },
    ),
    Exercise(
        id="ch05.reader_owned",
        title="Projections that belong to the reader",
        checker=check_reader_owned,
        reference={1, 5, 6},
        why="one assumption carries the identity, its gradient and the cache; the other eight do without",
        wrong={
            "forgot the cache": ({1, 5}, "statement 6 falls"),
            "forgot the gradient": ({1, 6}, "statement 5 falls"),
            "dropped convexity": ({1, 5, 6, 10}, "statement 10 survives"),
            "dropped the exchange of tokens": ({1, 4, 5, 6}, "statement 4 survives"),
        },
    ),
    Exercise(
        id="ch05.cells_reached",
        title="How far the reads reach",
        checker=check_cells_reached,
        reference=cells_reached,
        why="depth reads stretch the rectangle along depth only, token reads sideways: an area needs both",
        wrong={
            "no edge": (
                lambda level, token, K, w, n, m: ((K - 1) * n + 1) * ((w - 1) * m + 1),
                "the grid has an edge",
            ),
            "a cross": (
                lambda level, token, K, w, n, m: (
                    min(level + 1, (K - 1) * n + 1) + min(token + 1, (w - 1) * m + 1) - 1
                ),
                "that is a cross",
            ),
            "K steps a read": (
                lambda level, token, K, w, n, m: min(level + 1, K * n + 1) * min(token + 1, w * m + 1),
                "K − 1 steps back",
            ),
        },
    ),
    Exercise(
        id="ch05.value_gradient",
        title="Where the gradient goes",
        checker=check_value_gradient,
        reference=value_gradient,
        why="reading looks down the stack, so its gradient arrives from above, through the same weights",
        wrong={
            "read again": (lambda weights, cotangent: weights @ cotangent, "hear from its readers above"),
            "rescaled columns": (
                lambda weights, cotangent: (weights / weights.sum(axis=0, keepdims=True)).T @ cotangent,
                "do not rescale",
            ),
        },
    ),
    Exercise(
        id="ch05.commuting_projections",
        title="Make them commute",
        checker=check_commuting_projections,
        reference=commuting_projections,
        why="once no score looks at the states, each read is a fixed matrix on its own axis; those commute",
        wrong={
            "identity": (lambda d: (np.eye(d), np.eye(d)), "the second read still looks"),
            "small but not zero": (
                lambda d: (1e-9 * np.eye(d), np.eye(d)),
                "a small projection is not enough",
            ),
            "one matrix": (lambda d: np.zeros((d, d)), "return two matrices"),
        },
    ),
)
