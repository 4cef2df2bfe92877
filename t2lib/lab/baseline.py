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

import numpy as np
from numpy.typing import NDArray

BYTES = 256
# The share of the training text, at its end, on which the strengths are tuned.
HOLD_OUT = 0.1
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trigram:
    """Counts of one, two and three bytes, and the strength with which each order leans on the shorter one."""

    ones: Array
    twos: Array
    threes: Array
    strengths: tuple[float, float, float]

    def probabilities(self, before: int, last: int) -> Array:
        """p(. | before, last), a vector of 256 that sums to 1."""
        mix = np.full(BYTES, 1 / BYTES)
        for counts, strength in zip(
            (self.ones, self.twos[last], self.threes[before, last]), self.strengths, strict=True
        ):
            # count / n with weight n / (n + pull), written so that n = 0 is no special case.
            lean = pull(counts, strength)
            mix = (counts + lean * mix) / (counts.sum() + lean)
        return mix

    def loss(self, text: bytes) -> float:
        """Mean negative log-likelihood in nats of each byte from the third on."""
        if len(text) < 3:
            raise ValueError(f"text must be at least 3 bytes long, got {len(text)}.")
        symbols = np.frombuffer(text, dtype=np.uint8)
        a, b, c = symbols[:-2], symbols[1:-1], symbols[2:]
        orders = ((self.ones, ()), (self.twos, (b,)), (self.threes, (a, b)))
        mix: Array = np.full(len(c), 1 / BYTES)
        for (table, context), strength in zip(orders, self.strengths, strict=True):
            lean = pull(table, strength)[context]
            mix = (table[(*context, c)] + lean * mix) / (table.sum(-1)[context] + lean)
        return float(-np.log(mix).mean())


def pull(counts: Array, strength: float) -> Array:
    """s u for every context of a table (..., 256), at least s: the virtual counts of the shorter one."""
    followers = np.asarray(np.count_nonzero(counts, axis=-1), dtype=np.float64)
    return strength * np.maximum(1.0, followers)


def count(text: bytes, strengths: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Trigram:
    """The trigram of `text` with given strengths."""
    symbols = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    ones = np.bincount(symbols, minlength=BYTES)
    pairs = np.bincount(symbols[:-1] * BYTES + symbols[1:], minlength=BYTES**2)
    triples = (symbols[:-2] * BYTES + symbols[1:-1]) * BYTES + symbols[2:]
    threes = np.bincount(triples, minlength=BYTES**3)
    return Trigram(
        ones.astype(np.float64),
        pairs.reshape(BYTES, BYTES).astype(np.float64),
        threes.reshape(BYTES, BYTES, BYTES).astype(np.float64),
        strengths,
    )


def fit(train: bytes) -> Trigram:
    """Choose the strengths on the last tenth of `train`, then count all of it."""
    cut = int(len(train) * (1 - HOLD_OUT))
    part, rest = count(train[:cut]), train[cut:]

    def held_out_loss(strengths: tuple[float, float, float]) -> float:
        return Trigram(part.ones, part.twos, part.threes, strengths).loss(rest)

    # That of the single bytes hardly matters.
    choices = ((1.0, two, three) for two, three in itertools.product(STRENGTHS, STRENGTHS))
    return count(train, min(choices, key=held_out_loss))


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
