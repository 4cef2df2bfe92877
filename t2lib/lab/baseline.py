"""The bar for the decoder: a byte trigram, interpolated with the shorter contexts.

    p(c | ab) = l3 f(c | ab) + (1 - l3) p(c | b),      p(c | b) = l2 f(c | b) + (1 - l2) p(c),
    p(c)      = l1 f(c) + (1 - l1) / 256,

with f the relative frequencies in the training text. The weight l of a context seen n times and followed by
u different bytes is n / (n + s u): a context is trusted the more, the more often it was seen and the fewer
its continuations. Witten and Bell take s = 1; here each order has its own strength s, tuned on a part of
the training text that the counts have not seen.
Source: Jelinek and Mercer 1980; Witten and Bell, doi:10.1109/18.87000.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES = 256
# The share of the training text, at its end, on which the strengths are tuned.
HOLD_OUT = 0.1
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

Array = NDArray[Any]
Strengths = tuple[float, float, float]
# For each order, shortest first: how often the byte followed, any byte, and how many kinds did.
Seen = list[tuple[Any, Any, Any]]


@dataclass(frozen=True)
class Trigram:
    """Counts of one, two and three bytes, and the strength with which each order leans on the shorter one."""

    ones: Array
    twos: Array
    threes: Array
    strengths: Strengths

    def probabilities(self, before: int, last: int) -> Array:
        """p(. | before, last), a vector of 256 that sums to 1."""
        rows = self.ones, self.twos[last], self.threes[before, last]
        return blend([(row, row.sum(), np.count_nonzero(row)) for row in rows], self.strengths)

    def loss(self, text: bytes) -> float:
        """Mean negative log-likelihood in nats of each byte from the third on."""
        return float(-np.log(blend(self.seen(text), self.strengths)).mean())

    def seen(self, text: bytes) -> Seen:
        """What the counts say about each byte of `text` from the third on."""
        if len(text) < 3:
            raise ValueError(f"text must be at least 3 bytes long, got {len(text)}.")
        symbols = np.frombuffer(text, dtype=np.uint8)
        a, b, c = symbols[:-2], symbols[1:-1], symbols[2:]
        orders = ((self.ones, ()), (self.twos, (b,)), (self.threes, (a, b)))
        return [
            (table[(*context, c)], table.sum(-1)[context], np.count_nonzero(table, axis=-1)[context])
            for table, context in orders
        ]


def blend(seen: Seen, strengths: Strengths) -> Array:
    """The interpolated probability, from the shortest context to the longest.

    f with weight n / (n + s u) is count / (n + s u): no division by an n of zero.
    """
    mix: Any = 1 / BYTES
    for (counts, total, followers), strength in zip(seen, strengths, strict=True):
        lean = strength * np.maximum(1, followers)
        mix = (counts + lean * mix) / (total + lean)
    return np.asarray(mix)


def count(text: bytes, strengths: Strengths = (1.0, 1.0, 1.0)) -> Trigram:
    """The trigram of `text` with given strengths."""
    symbols = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    pairs = symbols[:-1] * BYTES + symbols[1:]
    triples = pairs[:-1] * BYTES + symbols[2:]
    ones, twos, threes = (
        np.bincount(codes, minlength=BYTES**order).astype(np.int32).reshape((BYTES,) * order)
        for order, codes in enumerate((symbols, pairs, triples), start=1)
    )
    return Trigram(ones, twos, threes, strengths)


def fit(train: bytes) -> Trigram:
    """Choose the strengths on the last tenth of `train`, then count all of it."""
    cut = int(len(train) * (1 - HOLD_OUT))
    seen = count(train[:cut]).seen(train[cut:])
    # That of the single bytes hardly matters.
    choices = ((1.0, two, three) for two, three in itertools.product(STRENGTHS, STRENGTHS))
    return count(train, min(choices, key=lambda strengths: float(-np.log(blend(seen, strengths)).mean())))


def bits(nats: float) -> float:
    return nats / math.log(2)


def main() -> None:
    from t2lib.lab.corpus import load_corpus

    corpus = load_corpus()
    trigram = fit(corpus.train)
    loss = trigram.loss(corpus.validation)
    print(
        f"byte trigram, strengths {trigram.strengths}: {loss:.4f} nats a byte, {bits(loss):.4f} bits a byte"
    )


if __name__ == "__main__":
    main()
