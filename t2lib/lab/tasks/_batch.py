"""A batch of a task: instances packed into rows, and the questions whose answers lie whole in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Rng = np.random.Generator
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
PAD = 0


class Span(NamedTuple):
    """Where an answer stands in its instance, tokens[start:stop], and how hard its question is."""

    start: int
    stop: int
    level: int


class Instance(NamedTuple):
    """One sequence of a task: its tokens, which of them are targets, where the answers stand."""

    tokens: list[int]
    targets: list[bool]
    answers: list[Span]


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a batch: its instance begins at `first` of `row`, its answer is start..stop-1.

    `level` is what the task calls difficulty: successors to follow (depo), vertices (brevo), operators
    (mano), length of the sentence (lano), distance in tokens (mqar).
    """

    row: int
    first: int
    start: int
    stop: int
    level: int


@dataclass(frozen=True, eq=False)
class Batch:
    """B rows of T tokens, ready for a decoder.

    `tokens` (B, T) int64. `loss_mask` (B, T) bool says which tokens are targets, each to be predicted from
    the tokens before it: with logits = decoder(tokens), compare logits[:, :-1] with tokens[:, 1:] where
    loss_mask[:, 1:]. `documents` (B, T) int64 numbers the instances of a row from 0, -1 on padding; `valid`
    (B, T) bool is False on padding. `questions` are those whose answer lies whole within its row.
    """

    tokens: Integers
    loss_mask: Booleans
    documents: Integers
    valid: Booleans
    questions: list[Question]

    def prompt(self, question: Question) -> Integers:
        """The tokens of the instance up to the answer: what a model continues."""
        return self.tokens[question.row, question.first : question.start]

    def prompts(self) -> list[Integers]:
        """The prompts of all questions."""
        return [self.prompt(question) for question in self.questions]

    def references(self) -> list[Integers]:
        """The answers that stand in the rows. Where several are right, each of these is one of them."""
        return [self.tokens[q.row, q.start : q.stop] for q in self.questions]

    def answers_from(self, next_tokens: Any) -> list[Integers]:
        """Answers read off a single pass over the rows, with the right tokens before each.

        `next_tokens` (B, T): at t the token predicted to follow t, which is logits.argmax(-1). Where several
        answers are right (brevo, lano), let the model continue `prompts()` instead.
        """
        predicted = np.asarray(next_tokens)
        if predicted.shape != self.tokens.shape or predicted.dtype.kind not in "iu":
            raise ValueError(
                f"next_tokens must hold integers of shape {self.tokens.shape}, got shape {predicted.shape} "
                f"of {predicted.dtype}."
            )
        return [predicted[q.row, q.start - 1 : q.stop - 1].astype(np.int64) for q in self.questions]


def pack(rows: list[list[Instance]], length: int | None = None) -> Batch:
    """Instances as rows of `length` tokens, cut or padded; without it as long as the longest row."""
    if length is None:
        length = max(sum(len(instance.tokens) for instance in row) for row in rows)
    tokens = np.full((len(rows), length), PAD, dtype=np.int64)
    loss_mask = np.zeros(tokens.shape, dtype=bool)
    documents = np.full(tokens.shape, -1, dtype=np.int64)
    questions = []
    for number, row in enumerate(rows):
        line: list[int] = []
        targets: list[bool] = []
        labels: list[int] = []
        for document, instance in enumerate(row):
            first = len(line)
            for start, stop, level in instance.answers:
                if first + stop <= length:
                    questions.append(Question(number, first, first + start, first + stop, level))
            line += instance.tokens
            targets += instance.targets
            labels += [document] * len(instance.tokens)
        filled = min(len(line), length)
        tokens[number, :filled] = line[:filled]
        loss_mask[number, :filled] = targets[:filled]
        documents[number, :filled] = labels[:filled]
    # Nothing stands before the first token of a row to predict it from.
    loss_mask[:, 0] = False
    return Batch(tokens, loss_mask, documents, documents >= 0, questions)
