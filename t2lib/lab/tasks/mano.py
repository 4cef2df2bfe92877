"""Mano, manipulation of knowledge: modular arithmetic on prefix expressions.

A node with ℓ operators draws its operator from {+, −, ×}, the number ℓ' of operators on its left uniformly
from 0..ℓ-1, and leaves ℓ-1-ℓ' to its right; a node with none is a number uniform in 0..p-1, p = 23. A
sequence is::

    <bos> <len_ℓ> (2ℓ+1 tokens of the expression) <ans> value

with ℓ uniform from 1 to `largest`; all tokens are targets. The release puts ℓ into its answer mark as well,
and may double every special token and operator at random; here a thing has one token.
Source: arXiv 2512.17351, section 2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Instance, Rng, Span
from t2lib.lab.tasks._task import Task, Vocabulary

OPERATORS = "+-*"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mano(Task):
    """Expressions of at most `largest` operators modulo `modulus`.

    Chance: the best constant answer at ℓ = `largest`. It is 0, which products make more frequent than other
    values: 6.6 % at ℓ = 4 instead of 1/23 = 4.3 %. Level of a question: ℓ. Hardest: ℓ = `largest`. Cost:
    about 5 microseconds a token.
    """

    name: ClassVar[str] = "mano"
    source: ClassVar[str] = "arXiv 2512.17351"

    largest: int = 4
    modulus: int = 23
    context: int | None = None

    def __post_init__(self) -> None:
        self._whole("largest", 1, 200)
        # Every number is a token.
        self._whole("modulus", 2, 10**6)
        self._check_context()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            ("a number", [str(number) for number in range(self.modulus)]),
            ("an operator", list(OPERATORS)),
            ("begins an instance", ["<bos>"]),
            ("comes before the value", ["<ans>"]),
            ("says how many operators follow", [f"<len_{i}>" for i in range(1, self.largest + 1)]),
        )

    @property
    def longest(self) -> int:
        return 2 * self.largest + 5

    @cached_property
    def chance(self) -> float:
        return float(value_distribution(self.largest, self.modulus).max())

    def instance(self, rng: Rng, hardest: bool = False) -> Instance:
        operators = self.largest if hardest else 1 + int(rng.random() * self.largest)
        expression: list[int] = []
        self._extend(expression, rng, operators)
        return self.write(expression)

    def write(self, expression: Sequence[int]) -> Instance:
        """The sequence of an expression, given as tokens, with its value."""
        mark, operators = self.vocabulary.id, len(expression) // 2
        tokens = [mark("<bos>"), mark(f"<len_{operators}>"), *expression, mark("<ans>")]
        start = len(tokens)
        tokens.append(self._token(self.value(expression)))
        return Instance(tokens, [True] * len(tokens), [Span(start, start + 1, operators)])

    def value(self, expression: Sequence[int]) -> int:
        """The value of a prefix expression, given as tokens."""
        first = self.vocabulary.id("+")
        stack: list[int] = []
        # From the right, so that both operands of an operator are there when it comes.
        for token in reversed(expression):
            if first <= token < first + len(OPERATORS) and len(stack) > 1:
                left, right = stack.pop(), stack.pop()
                stack.append(apply(OPERATORS[token - first], left, right) % self.modulus)
            elif self._token(0) <= token < first:
                stack.append(token - self._token(0))
            else:
                stack = []
                break
        if len(stack) != 1:
            raise ValueError(f"expression must be one prefix expression, got {list(expression)}.")
        return stack[0]

    def solve(self, prompt: Any) -> list[int]:
        tokens, mark = self._prompt(prompt), self.vocabulary.id
        told = tokens[1] - mark("<len_1>") + 1 if len(tokens) > 2 else 0
        if told < 1 or tokens[0] != mark("<bos>") or tokens[-1] != mark("<ans>"):
            raise ValueError(
                f"prompt must begin with <bos> and its length token and end with <ans>, "
                f"got {self._shown(tokens)}."
            )
        value, operators = self.value(tokens[2:-1]), (len(tokens) - 4) // 2
        if told != operators:
            raise ValueError(
                f"prompt must tell how many operators it has, {operators}, after <bos>, got <len_{told}>."
            )
        return [self._token(value)]

    def right(self, prompt: Any, answer: Any) -> bool:
        return _checks.integers("answer", answer)[:1] == self.solve(prompt)

    def _token(self, number: int) -> int:
        return number + 1

    def _extend(self, expression: list[int], rng: Rng, operators: int) -> None:
        if not operators:
            expression.append(self._token(int(rng.random() * self.modulus)))
            return
        expression.append(self.vocabulary.id(OPERATORS[int(rng.random() * len(OPERATORS))]))
        left = int(rng.random() * operators)
        self._extend(expression, rng, left)
        self._extend(expression, rng, operators - 1 - left)


def apply(operator: str, left: int, right: int) -> int:
    """One operator on two numbers, before the modulus."""
    return left + right if operator == "+" else left - right if operator == "-" else left * right


def value_distribution(operators: int, modulus: int) -> Floats:
    """The probability of every value of an expression with so many operators, exactly.

    By the recursion that draws it: p_ℓ = mean over operators ∘ and splits ℓ' of p_ℓ' ∘ p_{ℓ-1-ℓ'}, from p_0
    uniform. To multiply a number by a unit of the ring turns p_0 into itself, and so every p_ℓ: all values
    with the same divisor in common with the modulus are equally likely, and one number for each divisor
    is enough. A Fourier transform, whose coefficients then are Ramanujan's sums, makes products of sums, and
    of differences as well, since -1 is a unit. Cost: ℓ² d² operations and d³, d the number of divisors.
    """
    low = [d for d in range(1, isqrt(modulus) + 1) if modulus % d == 0]
    divisors = np.unique([*low, *(modulus // d for d in low)])
    divides = divisors[:, None] % divisors == 0
    # Ramanujan's c_q(n), in row q and column n, from the sum of c_d(n) over all d | q: q where q | n, else 0.
    ramanujan = np.linalg.solve(divides.astype(float), np.where(divides.T, divisors[:, None], 0)).round()
    # Row d: the transform of the values that have d in common with the modulus; at 0, how many there are.
    transform = ramanujan[::-1]
    counts = transform[:, -1]
    product = np.searchsorted(divisors, np.gcd(np.outer(divisors, divisors), modulus)).ravel()
    found = [np.full(len(divisors), 1 / modulus)]
    for size in range(1, operators + 1):
        before = np.array(found)
        transformed, weights = before @ transform, before * counts
        sums = (transformed * transformed[::-1]).mean(0) @ transform / modulus
        pairs = weights.T @ weights[::-1] / size
        products = np.bincount(product, pairs.ravel(), len(divisors)) / counts
        found.append((2 * sums + products) / 3)
    return found[-1][np.searchsorted(divisors, np.gcd(np.arange(modulus), modulus))]
