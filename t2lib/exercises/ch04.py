"""Exercises of chapter 4, the same read over depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from t2lib.exercises import Exercise, Mistake, close, matches, register, same

Array = np.ndarray[Any, Any]


# --- one depth read on paper: column 5 2 0 1, query factor ln 2, key factor 1, value factor 7, K = 3 ------


def by_hand(answer: Any) -> None:
    e = float(np.e)
    known = {
        7 * 170 / 39: "level 0 was read too: K = 3 levels that end at level 3 are levels 1, 2 and 3",
        7 * 8 / 5: "level 3 itself is missing: the window counts the reader",
        10 / 7: "the values are the states times W_V, and W_V is 7",
        7.0: "that is the mean of the three values: equal weights need equal scores",
        7 * 5 / 3: "the scores were used as weights: take exp of each and divide by their sum",
        7 * (2 * e**2 + e) / (e**2 + 1 + e): "the query is the state of level 3 times W_Q = ln 2",
        70.0: "the weights are not yet divided by their sum, 4 + 1 + 2",
        7 * 160 / 32: "only level 0 was read",
    }
    for value, sentence in known.items():
        if matches(answer, value, tolerance=2e-3):
            raise Mistake(sentence)
    close(answer, 10.0, "the reading", tolerance=1e-3)


# --- how many levels each level reads --------------------------------------------------------------------


def window_sizes(L: int, K: int) -> list[int]:
    return [min(K, level + 1) for level in range(L + 1)]


def check_window_sizes(answer: Callable[[int, int], list[int]]) -> None:
    for L, K in [(8, 3), (4, 1), (3, 4), (3, 9), (1, 2)]:
        got, want = list(answer(L, K)), window_sizes(L, K)
        if got == want:
            continue
        where = f" (L={L}, K={K})"
        if got == want[:-1]:
            raise Mistake(
                "L blocks make L+1 levels: the embedding is level 0, and level L is read too" + where
            )
        if got == want[1:]:
            raise Mistake("level 0 is missing: it reads itself, one level" + where)
        if got == [min(K, level) for level in range(L + 1)]:
            raise Mistake(
                "level l has l earlier levels and itself: level 0 reads one level, not none" + where
            )
        if got == [K] * (L + 1):
            raise Mistake("the first levels have fewer than K levels to read" + where)
        same(got, want, "the list", hint=where.strip(" ()"))


# --- a depth read on a stack that is laid out differently ------------------------------------------------


def read_along(x: Array, window: int, axis: int) -> Array:
    """The windowed read with q = k = v = x along one axis of x: the definition, for the checkers."""
    moved = np.moveaxis(x, axis, 0)
    z = np.zeros_like(moved)
    for i in range(len(moved)):
        seen = moved[max(0, i - window + 1) : i + 1]
        scores = np.einsum("...d,j...d->j...", moved[i], seen) / np.sqrt(x.shape[-1])
        weights = np.exp(scores - scores.max(axis=0))
        z[i] = np.einsum("j...,j...d->...d", weights / weights.sum(axis=0), seen)
    return np.moveaxis(z, 0, axis)


def read_depth(stack: Array, K: int) -> Array:
    from t2lib.ops import short_swa

    result: Array = short_swa(stack, stack, stack, window=K, axis=1, rung="arrays")
    return result


def check_read_depth(answer: Callable[[Array, int], Array]) -> None:
    generator = np.random.default_rng(4)
    for B, levels, T, d, K in [
        (2, 5, 3, 4, 2),
        (3, 4, 6, 2, 3),
        (1, 9, 4, 8, 9),
        (2, 3, 3, 5, 1),
        (4, 4, 4, 4, 2),
    ]:
        stack = generator.standard_normal((B, levels, T, d))
        got, want = answer(stack, K), read_along(stack, K, 1)
        if matches(got, want):
            continue
        where = f" (stack of shape {stack.shape}, K={K})"
        if matches(got, read_along(stack, K, 2)):
            raise Mistake("that is the read over the tokens: here the levels stand on axis 1" + where)
        if matches(got, read_along(stack, K, 0)):
            raise Mistake("axis 0 is the batch here: sequences of a batch must not read each other" + where)
        if matches(got, want.swapaxes(1, 2)):
            raise Mistake("the numbers are right, but the axes were swapped and not swapped back" + where)
        if matches(got, np.moveaxis(want, 1, 0)):
            raise Mistake("the numbers are right, but the level axis was moved and not moved back" + where)
        if matches(got, read_along(stack, K + 1, 1)):
            raise Mistake("each level reads one level too many: K counts the reader itself" + where)
        if matches(got, read_along(stack[:, ::-1], K, 1)[:, ::-1]):
            raise Mistake(
                "each level reads the levels above it: those do not exist yet when it reads" + where
            )
        close(got, want, "the reading", hint=where.strip(" ()"))


# --- a ring buffer of keys and values over depth ---------------------------------------------------------


class DepthRing:
    def __init__(self, K: int, T: int, d: int):
        self.keys, self.values = np.zeros((2, K, T, d))
        self.level = 0

    def step(self, q: Array, k: Array, v: Array) -> Array:
        K, _, d = self.keys.shape
        slot = self.level % K
        self.keys[slot], self.values[slot] = k, v
        self.level += 1
        filled = min(self.level, K)
        scores = np.einsum("td,jtd->jt", q, self.keys[:filled]) / np.sqrt(d)
        weights = np.exp(scores - scores.max(axis=0))
        weights = weights / weights.sum(axis=0)
        return np.asarray(np.einsum("jt,jtd->td", weights, self.values[:filled]))


def _attend(q: Array, keys: Array, values: Array) -> Array:
    scores = np.einsum("td,jtd->jt", q, keys) / np.sqrt(keys.shape[-1])
    weights = np.exp(scores - scores.max(axis=0))
    return np.asarray(np.einsum("jt,jtd->td", weights / weights.sum(axis=0), values))


class _ReadsFirst(DepthRing):
    def step(self, q: Array, k: Array, v: Array) -> Array:
        filled = min(self.level, len(self.keys))
        z = _attend(q, self.keys[:filled], self.values[:filled]) if filled else np.zeros_like(v)
        super().step(q, k, v)
        return z


class _ReadsUnfilled(DepthRing):
    def step(self, q: Array, k: Array, v: Array) -> Array:
        super().step(q, k, v)
        return _attend(q, self.keys, self.values)


class _LastSlot(DepthRing):
    """Once full, always overwrites the last slot, so that the oldest levels are never let go."""

    def step(self, q: Array, k: Array, v: Array) -> Array:
        slot = min(self.level, len(self.keys) - 1)
        self.keys[slot], self.values[slot] = k, v
        self.level += 1
        return _attend(q, self.keys[: slot + 1], self.values[: slot + 1])


class _NeverLetsGo(DepthRing):
    def step(self, q: Array, k: Array, v: Array) -> Array:
        if self.level == 0:
            self.keys, self.values = self.keys[:0], self.values[:0]
        self.level += 1
        self.keys, self.values = (np.concatenate([a, b[None]]) for a, b in ((self.keys, k), (self.values, v)))
        return _attend(q, self.keys, self.values)


class _Unscaled(DepthRing):
    def step(self, q: Array, k: Array, v: Array) -> Array:
        return super().step(q * np.sqrt(q.shape[-1]), k, v)


RING_MISTAKES: list[tuple[type[DepthRing], str]] = [
    (_ReadsFirst, "the read comes before the write: the level's own key and value are not in the ring yet"),
    (_ReadsUnfilled, "slots that were never written are read: a zero key still has the weight exp(0)"),
    (_LastSlot, "the wrong slot is overwritten: level l goes to slot l mod K, in place of the oldest"),
    (_NeverLetsGo, "levels older than K are still read: a ring of K slots forgets them"),
    (_Unscaled, "the scores are not divided by the root of the width d"),
]


def check_ring(answer: type[Any]) -> None:
    generator = np.random.default_rng(5)
    for levels, K, T, d in [(7, 3, 2, 4), (5, 1, 3, 2), (4, 6, 1, 3), (9, 4, 5, 8)]:
        q, k, v = generator.standard_normal((3, levels, T, d))
        right = DepthRing(K, T, d)
        want = np.stack([right.step(*triple) for triple in zip(q, k, v, strict=True)])
        got = _run_ring(answer, q, k, v, K)
        for mistake, sentence in RING_MISTAKES:
            if not matches(got, want) and matches(got, _run_ring(mistake, q, k, v, K)):
                raise Mistake(f"{sentence} (K={K}, {levels} levels)")
        close(got, want, "the reading (level, token, channel)", hint=f"K={K}, {levels} levels")


def _run_ring(ring_class: type[Any], q: Array, k: Array, v: Array, K: int) -> Array:
    from t2lib.exercises import attempted

    _, T, d = k.shape
    ring = ring_class(K, T, d)
    rows = []
    for level in range(len(q)):
        # Copies, and then rubbish in them: a ring that only keeps references would be found out.
        mine = [x[level].copy() for x in (q, k, v)]
        row = np.array(attempted(ring.step(*mine)), dtype=float)
        rows.append(row)
        for x in mine:
            x.fill(np.nan)
    return np.stack(rows)


class RingStub:
    def __init__(self, K: int, T: int, d: int): ...

    def step(self, q: Array, k: Array, v: Array) -> Array: ...  # type: ignore[empty-body]


# --- when a ring of keys and values stores less than the stack -------------------------------------------


def largest_saving_window(L: int) -> int:
    return L // 2


def check_largest_saving_window(answer: Callable[[int], int]) -> None:
    for L in (8, 5, 12, 2, 31, 48):
        got, want = answer(L), largest_saving_window(L)
        if got == want:
            continue
        where = f" (L={L}: {L + 1} states against 2K rows)"
        if got == L:
            raise Mistake("each slot holds two rows, a key and a value" + where)
        if got == (L + 1) // 2:
            raise Mistake(
                "at 2K = L+1 the ring stores exactly as much as the stack: less is asked for" + where
            )
        if got == (L - 1) // 2:
            raise Mistake("the stack has L+1 levels, not L: one more window still saves" + where)
        same(got, want, "the largest window", hint=where.strip(" ()"))


# --- a column that is made from its own reads ------------------------------------------------------------


def closed_column(answer: Any) -> None:
    known = {
        6.0: "that is the open loop, where each read returns the embedding: here it returns the newest state",
        16.0: "one step short: level 5 comes after five doublings",
        64.0: "one step too many: level 0 is the 1 you start from",
        5.0: "with K = 1 the read returns the state itself, and it is added to the state",
    }
    for value, sentence in known.items():
        if matches(answer, value):
            raise Mistake(sentence)
    close(answer, 32.0, "the state at level 5")


register(
    Exercise(
        id="ch04.by_hand",
        title="One depth read on paper",
        checker=by_hand,
        reference=10.0,
        why="seven shares, 4, 1 and 2 of them, and the level with the largest key gets the most.",
        wrong={
            "window one too long": (7 * 170 / 39, "level 0 was read too"),
            "self excluded": (11.2, "counts the reader"),
            "value factor forgotten": (10 / 7, "W_V is 7"),
            "mean": (7.0, "mean of the three values"),
        },
    ),
    Exercise(
        id="ch04.window_sizes",
        title="Count the levels",
        checker=check_window_sizes,
        reference=window_sizes,
        why="L blocks, L+1 levels: the most frequent off-by-one along depth.",
        wrong={
            "L levels": (lambda L, K: window_sizes(L, K)[:-1], "L blocks make L+1 levels"),
            "self excluded": (lambda L, K: [min(K, n) for n in range(L + 1)], "not none"),
            "always K": (lambda L, K: [K] * (L + 1), "fewer than K levels"),
        },
    ),
    Exercise(
        id="ch04.closed_column",
        title="A column that reads itself",
        checker=closed_column,
        reference=32.0,
        why="the read changed nothing but the wiring, and the column doubles at every level.",
        wrong={
            "open loop": (6.0, "open loop"),
            "one step short": (16.0, "one step short"),
            "one step too many": (64.0, "one step too many"),
        },
    ),
    Exercise(
        id="ch04.read_depth",
        title="Find the axis",
        checker=check_read_depth,
        reference=read_depth,
        why="one argument decides who reads whom; no copy, no transpose, no second operator.",
        wrong={
            "tokens": (lambda stack, K: read_along(stack, K, 2), "read over the tokens"),
            "batch": (lambda stack, K: read_along(stack, K, 0), "must not read each other"),
            "not swapped back": (lambda stack, K: read_along(stack, K, 1).swapaxes(1, 2), "not swapped back"),
            "one too long": (lambda stack, K: read_along(stack, K + 1, 1), "one level too many"),
        },
    ),
    Exercise(
        id="ch04.ring",
        title="A ring over depth",
        checker=check_ring,
        reference=DepthRing,
        why="K slots per token are all that the next level needs, whatever the number of levels.",
        wrong={
            "reads first": (_ReadsFirst, "before the write"),
            "unfilled slots": (_ReadsUnfilled, "never written"),
            "wrong slot": (_LastSlot, "slot l mod K"),
            "keeps all": (_NeverLetsGo, "forgets them"),
            "no scale": (_Unscaled, "root of the width"),
        },
        stub=RingStub,
    ),
    Exercise(
        id="ch04.largest_saving_window",
        title="When the ring saves memory",
        checker=check_largest_saving_window,
        reference=largest_saving_window,
        why="beyond half the levels it is cheaper to keep the states and project them again.",
        wrong={
            "one row a slot": (lambda L: L, "a key and a value"),
            "ties count": (lambda L: (L + 1) // 2, "exactly as much"),
        },
    ),
)
