"""Exercises of chapter 6: where the duality is not literal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t2lib.exercises import Exercise, Mistake, attempted, close, matches, register
from t2lib.lab import reads
from t2lib.ops import short_swa

Array = np.ndarray[Any, Any]

# --- which condition breaks

# The designs of the exercise, each with the conditions it breaks; C3 and C9 are left out there, since every
# depth read in a running network meets them.
DESIGNS: dict[str, frozenset[int]] = {
    "a": frozenset({4}),
    "b": frozenset({1}),
    "c": frozenset({2, 7}),
    "d": frozenset({5, 6}),
    "e": frozenset({1, 4, 5, 6, 8}),
}
MISSED = {
    1: "the weights carry the number of the level that reads",
    2: "the newest state is left out, so the reader does not see itself",
    4: "the query is a learned table and never looks at the state",
    5: "the keys are normalised before they are compared",
    6: "what is read is a list of branch outputs, not the states",
    7: "one axis has positions and the other has none",
    8: "the reading replaces the input, which the formula does not say",
}
HELD = {
    1: "the projections are shared by all levels",
    2: "a level reads itself and what lies below, as the formula has it",
    3: "it fails for every depth read in a running network",
    4: "the query is projected from the state of the reading level",
    5: "the keys are the sources as they are",
    6: "the list read is the stack of states",
    7: "no axis has positions here",
    8: "nothing is said on how the reading enters, as in the paper",
    9: "it fails for every depth read in a running network",
}


def check_broken(answer: Any) -> None:
    if not isinstance(answer, Mapping):
        raise Mistake('give a dict from design to a set of numbers, such as {"a": {4}, ...}')
    for name in DESIGNS:
        numbers = attempted(answer.get(name, ...)) if name in answer else None
        if numbers is None:
            raise Mistake(f"design {name} is missing")
        if isinstance(numbers, str) or not isinstance(numbers, Iterable):
            raise Mistake(f"design {name}: give the numbers as a set, such as {{4}}")
        got = set(numbers)
        for number in sorted(got - DESIGNS[name], key=str):
            if number not in HELD:
                raise Mistake(f"design {name}: the conditions are numbered 1 to 9, got {number!r}")
            verdict = "is not asked for" if number in (3, 9) else "is kept"
            raise Mistake(f"design {name}: C{number} {verdict}, {HELD[number]}")
        for number in sorted(DESIGNS[name] - got):
            raise Mistake(f"design {name} breaks C{number} too: {MISSED[number]}")


# --- Attention Residuals as one call


def attnres_call(sources: Array, pseudo_query: Array, eps: float) -> Array:
    keys = sources / np.sqrt(np.mean(sources**2, axis=-1, keepdims=True) + eps)
    queries = np.broadcast_to(pseudo_query[:, None, :], sources.shape)
    return np.asarray(short_swa(queries, keys, sources, window=len(sources), axis=0, scale=1.0))


def check_attnres_call(answer: Any) -> None:
    rng = np.random.default_rng(60)
    for levels, tokens, width, eps in ((5, 3, 8, 1e-6), (3, 4, 6, 0.5), (4, 4, 4, 1e-6)):
        sources = 2.0 * rng.normal(size=(levels, tokens, width)) + 0.5
        query = rng.normal(size=(levels, width))
        want = reads.pseudo_query_read(sources, query, eps=eps)
        got = answer(sources, query, eps)
        if matches(got, want):
            continue
        unit = reads.rms_norm(sources, eps)
        spread = np.broadcast_to(query[:, None, :], sources.shape)

        def read(q: Array, k: Array, v: Array, scale: float | None, window: int = levels) -> Any:
            return short_swa(np.ascontiguousarray(q), k, v, window=window, axis=0, scale=scale, rung="loops")

        if matches(got, read(spread, unit, sources, None)):
            raise Mistake(
                "the scores still carry 1/√d: Attention Residuals has no such factor, pass scale=1.0"
            )
        if matches(got, read(reads.rms_norm(spread), unit, sources, 1.0)):
            raise Mistake(
                "the query was normalised too: its length is learned, and sets how sharp the read is"
            )
        if matches(got, read(spread, unit, unit, 1.0)):
            raise Mistake(
                "the values were normalised: the norm is for comparing, the raw source is what is read"
            )
        if matches(got, read(spread, sources, sources, 1.0)):
            raise Mistake("the keys are raw: divide each source by its root mean square before comparing")
        if matches(got, read(spread, reads.rms_norm(sources), sources, 1.0)):
            raise Mistake("eps is missing: it stands inside the root, beside the mean square")
        if matches(got, read(sources, unit, sources, 1.0)):
            raise Mistake(
                "the query comes from the state: here it is the learned row of the level, for all tokens"
            )
        if matches(got, read(spread, unit, sources, 1.0, window=levels - 1)):
            raise Mistake("the window is one short: the last level reads all sources, itself included")
        close(got, want, f"the reading of {levels} sources")


# --- signed weights by two softmax reads


def split_signed(weights: Array) -> tuple[float, Array, float, Array]:
    plus, minus = np.maximum(weights, 0), np.maximum(-weights, 0)
    s_plus, s_minus = plus.sum(), minus.sum()
    p_plus = plus / s_plus if s_plus > 0 else plus
    p_minus = minus / s_minus if s_minus > 0 else minus
    return s_plus, p_plus, s_minus, p_minus


def check_split_signed(answer: Any) -> None:
    rng = np.random.default_rng(61)
    cases = [rng.normal(size=n) for n in (6, 4)]
    cases += [np.array([0.5, 2.0]), np.array([-3.0, -1.0]), np.array([1.0, 0.0, -0.25])]
    for weights in cases:
        got = answer(weights)
        if not isinstance(got, tuple | list) or len(got) != 4:
            raise Mistake("return four things: s_plus, p_plus, s_minus, p_minus")
        s_plus, p_plus, s_minus, p_minus = (np.asarray(part, dtype=np.float64) for part in got)
        shown = f"for weights {np.round(weights, 2).tolist()}"
        for name, part in (("p_plus", p_plus), ("p_minus", p_minus)):
            if part.shape != weights.shape:
                raise Mistake(f"{shown}, {name} has shape {part.shape}, expected {weights.shape}")
            if not np.isfinite(part).all():
                raise Mistake(f"{shown}, {name} is not finite: a part can be empty, and 0/0 is no weight")
            if (part < 0).any():
                raise Mistake(f"{shown}, {name} has a negative weight, which no softmax can give")
            if part.any() and not np.isclose(part.sum(), 1.0):
                raise Mistake(f"{shown}, {name} sums to {part.sum():.3g}: a softmax sums to one")
        if s_plus.ndim or s_minus.ndim:
            raise Mistake("s_plus and s_minus are single numbers")
        together = s_plus * p_plus - s_minus * p_minus
        if matches(together, weights):
            continue
        if matches(together, np.maximum(weights, 0)):
            raise Mistake(f"{shown}, the minus part is lost: what a level subtracts needs a read of its own")
        if matches(s_plus * p_plus + s_minus * p_minus, weights):
            raise Mistake(
                f"{shown}, s_minus already carries the sign: make it positive, the formula subtracts"
            )
        if matches([s_plus, s_minus], [1.0, 1.0]):
            raise Mistake(f"{shown}, the scales are lost: the shares are right, but their sums were not one")
        close(together, weights, f"{shown}, s_plus p_plus - s_minus p_minus")


# --- strictly earlier sources


def earlier_read(q: Array, k: Array, v: Array, window: int) -> Array:
    z = np.zeros_like(v)
    z[1:] = short_swa(q[1:], k[:-1], v[:-1], window=window, axis=0)
    return z


def check_earlier_read(answer: Any) -> None:
    rng = np.random.default_rng(62)

    def by_rows(q: Array, k: Array, v: Array, first: int, last: int) -> Array:
        z = np.zeros_like(v)
        for level in range(len(q)):
            seen = [j for j in range(level - first, level - last + 1) if j >= 0]
            for token in range(q.shape[1]):
                if seen:
                    scores = k[seen, token] @ q[level, token] / np.sqrt(q.shape[-1])
                    shares = np.exp(scores - scores.max())
                    z[level, token] = shares @ v[seen, token] / shares.sum()
        return z

    for levels, tokens, window in ((6, 2, 2), (5, 3, 1), (4, 2, 9)):
        q, k, v = (rng.normal(size=(levels, tokens, 4)) for _ in range(3))
        got = answer(q, k, v, window)
        want = by_rows(q, k, v, window, 1)
        if matches(got, want):
            continue
        if matches(got, by_rows(q, k, v, window - 1, 0)):
            raise Mistake("the level still reads itself: shift the sources by one against the readers")
        if window > 1 and matches(got, by_rows(q, k, v, window - 1, 1)):
            raise Mistake(
                "one source short: without the level itself the window still holds `window` earlier ones"
            )
        if matches(got, by_rows(q, k, v, window + 1, 1)):
            raise Mistake("one source too many: the shifted window already leaves the level itself out")
        if matches(got, by_rows(q, k, v, window + 1, 2)):
            raise Mistake("shifted twice: the level right below is the newest one that may be read")
        rows = np.asarray(got)
        if rows.shape == want.shape and matches(rows[1:], want[1:]) and not matches(rows[0], want[0]):
            raise Mistake("level 0 has nothing before it, so its reading is zero")
        close(got, want, f"the reading of {levels} levels with window {window}")


# --- the interaction beside the projections


def check_interaction_share(answer: Any) -> None:
    want = 64 / (2 * 1024)
    for wrong, sentence in (
        (64 / 1024, "the projections cost 8d², not 4d²: a multiply and an add are two operations"),
        (64 / 4096, "scores and sum both count: 2wd for q·k and 2wd for the weighted sum, 4wd together"),
        (32.0, "that is projections over interaction, the other way round"),
        (64 / (2 * 1024 + 64), "that is the share of the whole; asked is interaction over projections"),
        (64 * 1024, "that is w·d, or close to it: divide the interaction by the projections"),
    ):
        if matches(answer, wrong, tolerance=1e-4):
            raise Mistake(sentence)
    close(answer, want, "the ratio", tolerance=2e-4)


# --- how many sweeps


def sweeps_needed(L: int, K: int) -> int:
    return L


def sweeps_by_running(L: int, K: int) -> int:
    """A closed-loop column of L blocks, rebuilt from its own guess until it stands still."""
    rng = np.random.default_rng(63)
    mix = rng.normal(size=(3, 3))

    def rebuilt(column: Array) -> Array:
        z = short_swa(column, column, column, window=K, axis=0, rung="loops")
        return np.concatenate([column[:1], column[:-1] + np.tanh(z[:-1] @ mix)])

    column = np.zeros((L + 1, 3))
    column[0] = rng.normal(size=3)
    for count in range(2 * L + 2):
        following = rebuilt(column)
        if np.array_equal(following, column):
            return count
        column = following
    raise RuntimeError("the column did not settle")


def check_sweeps_needed(answer: Any) -> None:
    for L, K in ((8, 3), (6, 2), (5, 9), (4, 1), (1, 1)):
        got, want = answer(L, K), sweeps_by_running(L, K)
        if got == want:
            continue
        where = f"for L={L}, K={K}"
        if got == L + 1:
            raise Mistake(f"{where}: level 0 is the embedding, right before the first sweep; L levels remain")
        if got == 1:
            raise Mistake(f"{where}: one sweep reads from a guess, and only level 1 is made of right numbers")
        if got in (-(-L // K), L // K, min(K, L)) or (K > 1 and got == -(-L // (K - 1))):
            raise Mistake(
                f"{where}: a wider window reads more levels, and the newest of them is still the level just "
                f"made; a sweep makes one more level right"
            )
        raise Mistake(f"{where}: got {got!r}, a run takes {want}")


def _earlier_without_shift(q: Array, k: Array, v: Array, window: int) -> Any:
    return short_swa(q, k, v, window=window, axis=0)


def _earlier_one_short(q: Array, k: Array, v: Array, window: int) -> Array:
    return earlier_read(q, k, v, max(1, window - 1))


def _earlier_row_of_itself(q: Array, k: Array, v: Array, window: int) -> Array:
    z = earlier_read(q, k, v, window)
    z[0] = v[0]
    return z


def _attnres_scaled(sources: Array, pseudo_query: Array, eps: float) -> Array:
    return attnres_call(sources, pseudo_query / np.sqrt(sources.shape[-1]), eps)


def _attnres_query_normalised(sources: Array, pseudo_query: Array, eps: float) -> Array:
    return attnres_call(sources, reads.rms_norm(pseudo_query), eps)


def _attnres_values_normalised(sources: Array, pseudo_query: Array, eps: float) -> Array:
    keys = reads.rms_norm(sources, eps)
    queries = np.broadcast_to(pseudo_query[:, None, :], sources.shape)
    return np.asarray(short_swa(queries, keys, keys, window=len(sources), axis=0, scale=1.0))


def _split_without_scale(weights: Array) -> tuple[float, Array, float, Array]:
    _, p_plus, _, p_minus = split_signed(weights)
    return 1.0, p_plus, 1.0, p_minus


def _split_without_minus(weights: Array) -> tuple[float, Array, float, Array]:
    s_plus, p_plus, _, _ = split_signed(weights)
    return s_plus, p_plus, 0.0, np.zeros_like(weights)


def _split_with_sign(weights: Array) -> tuple[float, Array, float, Array]:
    s_plus, p_plus, s_minus, p_minus = split_signed(weights)
    return s_plus, p_plus, -s_minus, p_minus


register(
    Exercise(
        id="ch06.broken",
        title="Which condition breaks?",
        checker=check_broken,
        reference={"a": {4}, "b": {1}, "c": {2, 7}, "d": {5, 6}, "e": {1, 4, 5, 6, 8}},
        why="a design is described by what it breaks, and each break has its own repair",
        wrong={
            "a table of queries taken for level weights": (
                {"a": {1, 4}, "b": {1}, "c": {2, 7}, "d": {5, 6}, "e": {1, 4, 5, 6, 8}},
                "design a: C1 is kept",
            ),
            "forgot the position": (
                {"a": {4}, "b": {1}, "c": {2}, "d": {5, 6}, "e": {1, 4, 5, 6, 8}},
                "design c breaks C7 too",
            ),
            "forgot how the reading enters": (
                {"a": {4}, "b": {1}, "c": {2, 7}, "d": {5, 6}, "e": {1, 4, 5, 6}},
                "design e breaks C8 too",
            ),
        },
    ),
    Exercise(
        id="ch06.attnres_call",
        title="Attention Residuals in one call",
        checker=check_attnres_call,
        reference=attnres_call,
        why="five differences from the displayed formula, and still one call of the same operator",
        wrong={
            "scale left in": (_attnres_scaled, "still carry 1/√d"),
            "query normalised": (_attnres_query_normalised, "the query was normalised too"),
            "values normalised": (_attnres_values_normalised, "the values were normalised"),
        },
    ),
    Exercise(
        id="ch06.split_signed",
        title="A minus sign needs a second read",
        checker=check_split_signed,
        reference=split_signed,
        why="any fixed mix of the levels, DenseFormer's included, is two softmax reads with two scales",
        wrong={
            "minus part dropped": (_split_without_minus, "the minus part is lost"),
            "scales dropped": (_split_without_scale, "the scales are lost"),
            "sign counted twice": (_split_with_sign, "already carries the sign"),
        },
    ),
    Exercise(
        id="ch06.earlier_read",
        title="Only what came before",
        checker=check_earlier_read,
        reference=earlier_read,
        why="leaving the reader out is a shift of the source list, not a new operator",
        wrong={
            "no shift": (_earlier_without_shift, "still reads itself"),
            "one short": (_earlier_one_short, "one source short"),
            "level 0 reads itself": (_earlier_row_of_itself, "nothing before it"),
        },
    ),
    Exercise(
        id="ch06.interaction_share",
        title="The part that the formula counts",
        checker=check_interaction_share,
        reference=0.03125,
        why="counting only the interaction leaves out thirty-two parts of thirty-three",
        wrong={
            "projections at half": (0.0625, "8d², not 4d²"),
            "upside down": (32.0, "the other way round"),
        },
    ),
    Exercise(
        id="ch06.sweeps_needed",
        title="How many sweeps?",
        checker=check_sweeps_needed,
        reference=sweeps_needed,
        why="the window does not matter: each level is made of the one below, so depth cannot be hurried",
        wrong={
            "a wider window helps": (lambda L, K: -(-L // K), "a wider window reads more levels"),
            "counts the embedding": (lambda L, K: L + 1, "level 0 is the embedding"),
        },
    ),
)
