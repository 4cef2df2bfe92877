"""Checkers of chapter 2, the residual stream, unrolled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from t2lib.exercises import Exercise, Mistake, close, matches, register

Array = np.ndarray[Any, Any]


# The size after 24 blocks


def check_size_after_24_blocks(answer: Any) -> None:
    named = {
        49.0: "variances add, sizes do not: 49 is the mean square, take its root",
        48.0: "variances add, and the embedding is one of the terms; then take the root",
        math.sqrt(48): "this forgets the embedding: 48 branches and 1 start make 49 terms",
        5.0: "each block writes twice: 24 blocks add 48 branches",
        25.0: "each block writes twice, and sizes add under the root",
        math.sqrt(24): "each block writes twice, and the embedding counts too",
        math.sqrt(50): "48 branches and one embedding are 49 terms, not 50",
    }
    for value, sentence in named.items():
        if matches(answer, value, tolerance=1e-3):
            raise Mistake(sentence)
    if not matches(answer, 7.0, tolerance=1e-3):
        raise Mistake(f"{answer!r} is not it: count the terms, add their variances, take the root")


# From which write on are neighbours parallel?


def check_parallel_from(answer: Any) -> None:
    named = {
        49: "at 49 the cosine is still 0.98995, just below 0.99",
        99: "this solves k/(k+1) = 0.99; the cosine is the root of that ratio",
        100: "this solves k/(k+1) = 0.99; the cosine is the root of that ratio",
        51: "at 50 the cosine has passed 0.99 already",
        7: "this is about the size of the stream there, not the number of writes",
    }
    for value, sentence in named.items():
        if matches(answer, value):
            raise Mistake(sentence)
    if not matches(answer, 50):
        raise Mistake(f"{answer!r} is not it: square both sides of sqrt(k/(k+1)) >= 0.99 and solve for k")


# What every sublayer reads


def _levels(embedding: Array, branches: Array) -> Array:
    return np.cumsum(np.concatenate([embedding[None], branches]), axis=0)


def reads(embedding: Array, branches: Array) -> Array:
    return _levels(embedding, branches[:-1])


def _reads_its_own(embedding: Array, branches: Array) -> Array:
    return _levels(embedding, branches)[1:]


def _no_embedding(embedding: Array, branches: Array) -> Array:
    return reads(np.zeros_like(embedding), branches)


def _last_only(embedding: Array, branches: Array) -> Array:
    return np.concatenate([embedding[None], branches[:-1]])


def _embedding_and_last(embedding: Array, branches: Array) -> Array:
    return np.asarray(embedding + _last_only(np.zeros_like(embedding), branches))


def _mean(embedding: Array, branches: Array) -> Array:
    counts = np.arange(1, len(branches) + 1).reshape(-1, *[1] * embedding.ndim)
    return np.asarray(reads(embedding, branches) / counts)


KNOWN_READS: dict[str, Callable[[Array, Array], Array]] = {
    "a sublayer cannot read what it is about to write: row k stops before branch k": _reads_its_own,
    "the embedding is missing: it is the first term of every read": _no_embedding,
    "each row holds the last term only: a read is the sum of all terms so far": _last_only,
    "each row holds the embedding and one branch: the branches in between stay in the stream": (
        _embedding_and_last
    ),
    "this is the mean of the terms: a residual stream adds, its weights are all 1": _mean,
}


def check_reads(answer: Callable[[Array, Array], Array]) -> None:
    rng = np.random.default_rng(2)
    for n, shape in ((4, (3,)), (6, (5, 2)), (1, (2,))):
        embedding, branches = rng.standard_normal(shape), rng.standard_normal((n, *shape))
        got, want = answer(embedding, branches), reads(embedding, branches)
        if np.shape(got) == (n + 1, *shape):
            raise Mistake(
                f"{n} sublayers read {n} states, got {n + 1}: the last level is read by the final norm, "
                "not by a sublayer"
            )
        for sentence, wrong in KNOWN_READS.items():
            # With one sublayer some of the wrong answers are right.
            if n > 1 and matches(got, wrong(embedding, branches)):
                raise Mistake(sentence)
        close(got, want, f"what {n} sublayers read", tolerance=1e-9)


# Where does a counter stop?


def stall(step: float, bits: int) -> float:
    return float(2.0 ** math.ceil(math.log2(step * 2**bits)))


KNOWN_STALLS: dict[str, Callable[[float, int], float]] = {
    "at half of it the step is still a whole spacing and is not lost": lambda step, bits: (
        stall(step, bits) / 2
    ),
    "it stops earlier: a step of half a spacing is a tie, and ties go to even": lambda step, bits: (
        2 * stall(step, bits)
    ),
    "the spacing changes at powers of two only, so the stop is one of them": lambda step, bits: (
        step * 2.0**bits
    ),
    "a larger step survives longer: the stop depends on it": lambda step, bits: 2.0**bits,
}


def check_stall(answer: Callable[[float, int], float]) -> None:
    cases = [(1.0, 8), (3.0, 8), (2.0, 8), (0.5, 8), (1.0, 11), (1.0, 24), (1.5, 11), (5.0, 4)]
    got = [answer(*case) for case in cases]
    for sentence, wrong in KNOWN_STALLS.items():
        if matches(got, [wrong(*case) for case in cases]):
            raise Mistake(sentence)
    for value, (step, bits) in zip(got, cases, strict=True):
        where = f" for step={step:g}, bits={bits}"
        close(value, stall(step, bits), f"the value at which it stops{where}", tolerance=1e-9)


# Who wrote the logit?


def contributions(parts: Array, gain: Array, row: Array) -> Array:
    total = parts.sum(axis=0)
    size = np.sqrt(np.mean(total**2))
    return np.asarray((parts * gain / size) @ row)


def _own_norms(parts: Array, gain: Array, row: Array) -> Array:
    sizes = np.sqrt(np.mean(parts**2, axis=-1, keepdims=True))
    return np.asarray((parts * gain / sizes) @ row)


def _no_gain(parts: Array, gain: Array, row: Array) -> Array:
    return contributions(parts, np.ones_like(gain), row)


def _no_norm(parts: Array, gain: Array, row: Array) -> Array:
    return np.asarray((parts * gain) @ row)


def _euclidean(parts: Array, gain: Array, row: Array) -> Array:
    return contributions(parts, gain, row) / math.sqrt(parts.shape[-1])


def _lens(parts: Array, gain: Array, row: Array) -> Array:
    levels = np.cumsum(parts, axis=0)
    sizes = np.sqrt(np.mean(levels**2, axis=-1, keepdims=True))
    return np.asarray((levels * gain / sizes) @ row)


KNOWN_CONTRIBUTIONS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "each part is divided by its own size: divide all by the size of their sum": _own_norms,
    "the gain of the final norm is missing": _no_gain,
    "the division by the size of the sum is missing": _no_norm,
    "this divides by the length of the sum; RMSNorm divides by the root of the mean square": _euclidean,
    "this is the logit lens, the logit of every partial sum; what did each part add?": _lens,
}


def check_contributions(answer: Callable[[Array, Array, Array], Array]) -> None:
    rng = np.random.default_rng(5)
    for n, width in ((5, 4), (17, 6)):
        parts = 2 * rng.standard_normal((n, width))
        gain, row = rng.uniform(0.5, 1.5, width), rng.standard_normal(width)
        got, want = answer(parts, gain, row), contributions(parts, gain, row)
        if matches(got, want.sum()):
            raise Mistake("this is the whole logit; split it, one number a part")
        for sentence, wrong in KNOWN_CONTRIBUTIONS.items():
            if matches(got, wrong(parts, gain, row)):
                raise Mistake(sentence)
        close(got, want, "the contributions")


register(
    Exercise(
        id="ch02.size_after_24_blocks",
        title="The size after 24 blocks",
        checker=check_size_after_24_blocks,
        reference=7.0,
        why="49 unit terms make a stream of size 7, so the last branch is a seventh of what it joins.",
        wrong={
            "adds sizes": (49.0, "variances add"),
            "forgets the embedding": (math.sqrt(48), "forgets the embedding"),
            "counts blocks": (5.0, "writes twice"),
            "nonsense": (12.0, "count the terms"),
        },
    ),
    Exercise(
        id="ch02.reads",
        title="What every sublayer reads",
        checker=check_reads,
        reference=reads,
        why="one running sum serves every reader, and none of them reads its own writing.",
        wrong={
            "reads its own": (_reads_its_own, "about to write"),
            "forgets the embedding": (_no_embedding, "embedding is missing"),
            "the last one only": (_last_only, "the sum of all terms"),
            "all levels": (_levels, "the final norm"),
            "the mean": (_mean, "weights are all 1"),
            "nonsense": (lambda e, b: b * 0, "what 4 sublayers read"),
        },
    ),
    Exercise(
        id="ch02.parallel_from",
        title="When neighbours look alike",
        checker=check_parallel_from,
        reference=50,
        why="50 writes are 25 blocks: deep in a plain stream, neighbouring levels are hard to tell apart.",
        wrong={
            "rounded down": (49, "just below"),
            "no root": (99, "root of that ratio"),
            "nonsense": (12, "square both sides"),
        },
    ),
    Exercise(
        id="ch02.stall",
        title="The counter that stops",
        checker=check_stall,
        reference=stall,
        why="in bfloat16 a stream 256 times as large as what is added to it no longer moves.",
        wrong={
            "one bit short": (lambda step, bits: stall(step, bits) / 2, "still a whole spacing"),
            "waits for less than half a spacing": (
                lambda step, bits: 2 * stall(step, bits),
                "ties go to even",
            ),
            "no power of two": (lambda step, bits: step * 2**bits, "powers of two"),
            "ignores the step": (lambda step, bits: 2**bits, "depends on it"),
            "nonsense": (lambda step, bits: 1.0, "at which it stops"),
        },
    ),
    Exercise(
        id="ch02.contributions",
        title="Who wrote the logit?",
        checker=check_contributions,
        reference=contributions,
        why="with the divisor held fixed the final norm is linear, and a logit is a sum of contributions.",
        wrong={
            "own norms": (_own_norms, "its own size"),
            "no gain": (_no_gain, "gain"),
            "no norm": (_no_norm, "division"),
            "the lens": (_lens, "logit lens"),
            "the sum": (lambda p, g, r: contributions(p, g, r).sum(), "split it"),
            "nonsense": (lambda p, g, r: p[:, 0], "contributions"),
        },
    ),
)
