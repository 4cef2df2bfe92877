"""Layered context-free grammars: drawn, sampled, parsed, and their lengths counted exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Rng

Array = npt.NDArray[Any]
Rule = tuple[int, ...]
Rules = tuple[tuple[tuple[Rule, ...], ...], ...]


@dataclass(frozen=True)
class Grammar:
    """rules[level][symbol] lists right-hand sides, each a tuple of symbols of the next level.

    Level 0 is the root, a single symbol; symbol j of the level after the last rules is the terminal j + 1.
    A rule of a symbol is chosen uniformly. No right-hand side may occur twice in a level, so that a parse
    is decided from below.
    """

    rules: Rules

    def __post_init__(self) -> None:
        # Nested lists, as a file has them, will do.
        object.__setattr__(self, "rules", frozen(self.rules, 3))
        if not self.rules or len(self.rules[0]) != 1:
            raise ValueError("rules must have at least one level, the first with one symbol.")
        checked = []
        for level, symbols in enumerate(self.rules):
            name = f"a symbol on the right in rules of level {level}"
            largest = len(self.rules[level + 1]) - 1 if level + 1 < self.depth else None
            checked.append(
                tuple(
                    tuple(tuple(_checks.whole(name, s, 0, largest) for s in side) for side in symbol)
                    for symbol in symbols
                )
            )
            sides = [side for symbol in checked[-1] for side in symbol]
            if not all(symbols) or not all(sides):
                raise ValueError(
                    f"rules of level {level} must give every symbol a right-hand side, none empty."
                )
            if len(set(sides)) < len(sides):
                raise ValueError(f"rules of level {level} must not hold a right-hand side twice.")
        object.__setattr__(self, "rules", tuple(checked))

    @classmethod
    def draw(cls, rng: Rng, depth: int = 3, *, fewest: int = 3, most: int = 4) -> Grammar:
        """A grammar by the paper's recipe: `depth` levels of 3 symbols below the root.

        Every symbol has `fewest` to `most` rules of 2 or 3 symbols; a right-hand side that the level
        already has is drawn again.
        """
        _checks.generator(rng)
        _checks.whole("depth", depth, 1, 7)
        _checks.whole("fewest", fewest, 1, 12)
        # There are 9 + 27 right-hand sides for the 3 symbols of a level.
        _checks.whole("most", most, fewest, 12)
        rules = []
        for level in range(depth):
            sides: dict[Rule, None] = {}
            counts = [int(rng.integers(fewest, most + 1)) for _ in range(3 if level else 1)]
            while len(sides) < sum(counts):
                sides[tuple(rng.integers(0, 3, int(rng.integers(2, 4))).tolist())] = None
            drawn = iter(sides)
            rules.append(tuple(tuple(next(drawn) for _ in range(count)) for count in counts))
        return cls(tuple(rules))

    @property
    def depth(self) -> int:
        return len(self.rules)

    @property
    def terminals(self) -> int:
        """How many terminals there are."""
        return 1 + max(symbol for rules in self.rules[-1] for side in rules for symbol in side)

    def sample(self, rng: Rng) -> list[int]:
        """A sentence, expanded from the root level by level."""
        line = [0]
        for level in self.rules:
            expanded: list[int] = []
            for symbol, draw in zip(line, rng.random(len(line)).tolist(), strict=True):
                sides = level[symbol]
                expanded += sides[int(draw * len(sides))]
            line = expanded
        return [symbol + 1 for symbol in line]

    def accepts(self, sentence: Any) -> bool:
        """Whether the grammar derives the sentence.

        Cost: n³ operations a rule, in matrix products; nothing where no sentence is as long or as short.
        """
        return self._inside(sentence, lambda x: (x > 0).astype(np.float32)) > 0

    def probability(self, sentence: Any) -> float:
        """The probability that `sample` returns the sentence, over all its parses. Cost as for `accepts`.

        Below 1e-308 it is 0; `accepts` does not multiply probabilities and is right at every length.
        """
        return self._inside(sentence, lambda x: x)

    @cached_property
    def length_distribution(self) -> npt.NDArray[np.float64]:
        """p[n], the probability that a sentence has n tokens, exactly."""
        return self._by_length(lambda rules: 1 / rules, 1.0)

    @cached_property
    def acceptance(self) -> npt.NDArray[np.float64]:
        """For every length n an upper bound on the share of the strings of n terminals that are sentences.

        It counts derivations, so it is exact where no sentence of that length has two.
        """
        return np.minimum(1, self._by_length(lambda rules: 1.0, 1 / self.terminals))

    @property
    def lengths(self) -> tuple[int, float, int]:
        """Shortest, mean and longest sentence."""
        p = self.length_distribution
        return self._extreme(min), float(p @ np.arange(len(p))), self._extreme(max)

    def _extreme(self, pick: Callable[[list[int]], int]) -> int:
        """The least or the largest length, in whole numbers: its probability may underflow."""
        below = [1] * self.terminals
        for level in reversed(self.rules):
            below = [pick([sum(below[s] for s in side) for side in rules]) for rules in level]
        return below[0]

    def _inside(self, sentence: Any, tidy: Callable[[Array], Array]) -> float:
        """The inside algorithm: entry (i, j) of a symbol's matrix says how it derives tokens i..j-1.

        One symbol after another then is a product of matrices, and alternatives are a sum.
        """
        numbers = _checks.integers("sentence", sentence)
        n = len(numbers)
        if not self._extreme(min) <= n <= self._extreme(max):
            return 0.0
        tokens = np.array(numbers, dtype=int)
        below = [tidy(np.diag((tokens == symbol + 1) * 1.0, 1)) for symbol in range(self.terminals)]
        for level in reversed(self.rules):
            below = [
                tidy(
                    np.sum([reduce(lambda a, b: tidy(a @ b), (below[s] for s in side)) for side in rules], 0)
                    / len(rules)
                )
                for rules in level
            ]
        return float(below[0][0, n])

    def _by_length(self, weight: Callable[[int], float], terminal: float) -> npt.NDArray[np.float64]:
        """Weights of derivations summed by length, as polynomials in the length.

        A derivation weighs the product of `weight(rules of the symbol)` over its steps and of `terminal`
        over its tokens.
        """
        below = [np.array([0.0, terminal])] * self.terminals
        for level in reversed(self.rules):
            below = [
                weight(len(rules)) * added([reduce(np.convolve, (below[s] for s in side)) for side in rules])
                for rules in level
            ]
        return below[0]


def frozen(rules: Any, below: int) -> Any:
    """Lists or tuples in `below` more of them, as tuples."""
    if not isinstance(rules, list | tuple):
        raise TypeError(
            f"rules must be nested as levels, symbols, right-hand sides, symbols; got {rules!r} for a list."
        )
    return tuple(frozen(part, below - 1) if below else part for part in rules)


def added(polynomials: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """The sum of polynomials of different degrees."""
    total = np.zeros(max(map(len, polynomials)))
    for polynomial in polynomials:
        total[: len(polynomial)] += polynomial
    return total
