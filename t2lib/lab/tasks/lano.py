"""Lano, language structure: sentences of a layered context-free grammar.

A sequence is <bos> and a sentence; the next <bos> ends it, and all tokens are targets. To grade a model, let
it continue <bos>, token by token at temperature 1, and parse what it wrote up to the next <bos>: a sentence
of the grammar or not. The paper calls its cfg3j the grammar with shorter sentences than cfg3k; by exact
count they are longer on average, 543.9 against 516.3 tokens, so look at `Grammar.lengths` of yours.
Source: arXiv 2512.17351, section 2 and appendix A; grammars of this kind: arXiv 2305.13673.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Instance, Rng, Span
from t2lib.lab.tasks._grammar import Grammar
from t2lib.lab.tasks._task import Task, Vocabulary


@dataclass(frozen=True)
class Lano(Task):
    """Sentences of `grammar`; without one, of a grammar of depth 3 drawn from seed 0, about 16 tokens long.

    Chance is an upper bound on the share of sentences among strings of uniform terminals whose lengths are
    drawn as those of sentences are. Level of a question: the length of the sentence in its row. All
    sentences are drawn alike, so the hardest ones are like the others. Cost: about 3 microseconds a
    token.
    """

    name: ClassVar[str] = "lano"
    source: ClassVar[str] = "arXiv 2512.17351"
    closing: ClassVar[tuple[str, ...]] = ("<bos>",)

    grammar: Grammar = field(default_factory=lambda: Grammar.draw(np.random.default_rng(0)))
    context: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.grammar, Grammar):
            raise TypeError(f"grammar must be a Grammar, got {type(self.grammar).__name__}.")
        self._check_context()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        terminals = [str(token) for token in range(1, self.grammar.terminals + 1)]
        return Vocabulary(("a terminal", terminals), ("begins a sentence, ends the one before", ["<bos>"]))

    @property
    def longest(self) -> int:
        # With the <bos> that ends it.
        return self.grammar.lengths[2] + 2

    @cached_property
    def chance(self) -> float:
        return float(self.grammar.length_distribution @ self.grammar.acceptance)

    def instance(self, rng: Rng, hardest: bool = False) -> Instance:
        sentence = self.grammar.sample(rng)
        tokens = [self.vocabulary.id("<bos>"), *sentence]
        # The answer is closed by the <bos> that follows.
        return Instance(tokens, [True] * len(tokens), [Span(1, len(tokens) + 1, len(sentence))])

    def solve(self, prompt: Any) -> list[int]:
        """The first of the shortest sentences, the rules taken in their order."""
        self._check(prompt)
        below: list[tuple[int, ...]] = [(symbol + 1,) for symbol in range(self.grammar.terminals)]
        for level in reversed(self.grammar.rules):
            sides = [
                [tuple(t for symbol in side for t in below[symbol]) for side in rules] for rules in level
            ]
            below = [min(expanded, key=len) for expanded in sides]
        return [*below[0], self.vocabulary.id("<bos>")]

    def right(self, prompt: Any, answer: Any) -> bool:
        self._check(prompt)
        tokens, bos = _checks.integers("answer", answer), self.vocabulary.id("<bos>")
        return bos in tokens and self.grammar.accepts(tokens[: tokens.index(bos)])

    def _check(self, prompt: Any) -> None:
        tokens = self._prompt(prompt)
        if tokens != [self.vocabulary.id("<bos>")]:
            raise ValueError(f"prompt must be <bos> alone, got {self._shown(tokens)}.")
