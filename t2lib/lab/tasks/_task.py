"""What the tasks share: a vocabulary, rows drawn from a generator, grading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Batch, Booleans, Instance, Rng, pack


class Vocabulary:
    """The tokens of a task: groups of (meaning, spellings), numbered from 0 in the order given.

    Number 0 is always `<pad>`, which fills rows and is never a target. `print(vocabulary)` shows the groups
    with their numbers, `vocabulary.id("<bos>")` is one number, `vocabulary.spell(tokens)` reads a sequence.
    """

    def __init__(self, *groups: tuple[str, Sequence[str]]) -> None:
        self.groups = (("fills rows, never a target", ("<pad>",)), *groups)
        self.spellings = tuple(spelling for _, group in self.groups for spelling in group)
        self._ids = {spelling: number for number, spelling in enumerate(self.spellings)}

    def __len__(self) -> int:
        return len(self.spellings)

    def id(self, spelling: str) -> int:
        """The number of a token by its spelling."""
        if spelling not in self._ids:
            raise ValueError(f"spelling must be one of {', '.join(self.spellings)}; got {spelling!r}.")
        return self._ids[spelling]

    def spell(self, tokens: Any) -> str:
        """A sequence of token numbers as text."""
        numbers = _checks.integers("tokens", tokens)
        for number in numbers:
            _checks.whole("token", number, 0, len(self) - 1)
        return " ".join(self.spellings[number] for number in numbers)

    def __str__(self) -> str:
        lines, first = [], 0
        for meaning, group in self.groups:
            last = first + len(group) - 1
            numbers = str(first) if first == last else f"{first}..{last}"
            spelled = group[0] if first == last else f"{group[0]} .. {group[-1]}"
            lines.append(f"{numbers:>9}  {spelled:<24} {meaning}")
            first += len(group)
        return "\n".join(lines)


class Task(ABC):
    """A task with its parameters: draws batches from a generator, solves and grades their questions.

    Parameters are checked when the task is made; what is out of range is a ValueError that says what fits.
    `context` is the length of packed rows; it must hold the longest instance, and None takes twice that.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    # What closes the last instance of a row; only Lano has such a token.
    closing: ClassVar[tuple[str, ...]] = ()
    context: int | None

    @cached_property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The tokens and what they mean."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The length that no instance exceeds."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """The accuracy of an answer that looks at nothing but the form, on hardest instances."""

    @abstractmethod
    def instance(self, rng: Rng, hardest: bool = False) -> Instance:
        """One sequence. `hardest` draws at the largest size, as an evaluation does."""

    @abstractmethod
    def solve(self, prompt: Any) -> list[int]:
        """An exact answer to a prompt, computed from its tokens alone."""

    @abstractmethod
    def right(self, prompt: Any, answer: Any) -> bool:
        """Whether an answer is right, decided from the tokens of the prompt alone.

        An answer is read up to the token that ends it; a model may be left to write on.
        """

    @property
    def length(self) -> int:
        """T of a packed row, which is `context` or, where that is None, twice the longest instance."""
        return 2 * self.longest if self.context is None else self.context

    def batch(self, rng: Rng, size: int, *, hardest: bool = False, packed: bool = True) -> Batch:
        """`size` rows from the generator.

        Packed rows hold `length` tokens: instances one after another, the first one whole, the last one cut
        where the row ends. Otherwise a row is one instance, padded to the longest of the batch.
        """
        _checks.generator(rng)
        _checks.whole("size", size, 1)
        return pack([self._row(rng, hardest, packed) for _ in range(size)], self.length if packed else None)

    def accuracy(self, batch: Batch, answers: Sequence[Any], level: int | None = None) -> float:
        """The share of right answers; only those of one `level` if given."""
        grades = self.grade(batch, answers)
        levels = np.array([q.level for q in batch.questions])
        chosen = grades if level is None else grades[levels == level]
        if not chosen.size:
            known = sorted({q.level for q in batch.questions})
            raise ValueError(f"level must be one of those in the batch, {known}; got {level!r}.")
        return float(chosen.mean())

    def grade(self, batch: Batch, answers: Sequence[Any]) -> Booleans:
        """Which answers are right: one answer, a sequence of tokens, for every question of the batch."""
        if len(answers) != len(batch.questions):
            raise ValueError(
                f"answers must be one for each of the {len(batch.questions)} questions, got {len(answers)}."
            )
        pairs = zip(batch.prompts(), answers, strict=True)
        return np.array([self.right(prompt, answer) for prompt, answer in pairs], dtype=bool)

    def solutions(self, batch: Batch) -> list[list[int]]:
        """The exact solver's answers to all questions of a batch."""
        return [self.solve(prompt) for prompt in batch.prompts()]

    def _prompt(self, prompt: Any) -> list[int]:
        """The tokens of a prompt. ValueError if one is not in the vocabulary."""
        tokens, last = _checks.integers("prompt", prompt), len(self.vocabulary) - 1
        for token in tokens:
            if not 0 <= token <= last:
                raise ValueError(f"prompt must hold tokens of the vocabulary, 0 to {last}, got {token}.")
        return tokens

    def _shown(self, tokens: list[int]) -> str:
        """The tokens of a prompt as text for a message, the middle of a long one left out."""
        spelled = [self.vocabulary.spellings[token] for token in tokens]
        if len(spelled) > 12:
            spelled[6:-5] = ["..."]
        return " ".join(spelled) or "nothing"

    def _row(self, rng: Rng, hardest: bool, packed: bool) -> list[Instance]:
        row = [self.instance(rng, hardest)]
        filled = len(row[0].tokens)
        while packed and filled < self.length:
            row.append(self.instance(rng, hardest))
            filled += len(row[-1].tokens)
        if self.closing:
            tokens = [self.vocabulary.id(token) for token in self.closing]
            row.append(Instance(tokens, [True] * len(tokens), []))
        return row

    def _whole(self, name: str, least: int, most: int | None = None) -> None:
        """Check the parameter `name`, an integer, and keep it as an integer of Python."""
        # The tasks are frozen.
        object.__setattr__(self, name, _checks.whole(name, getattr(self, name), least, most))

    def _check_context(self) -> None:
        if self.context is not None:
            self._whole("context", 1)
            if self.context < self.longest:
                raise ValueError(
                    f"context must hold the longest instance, {self.longest} tokens, got {self.context}."
                )
