"""Multi-query associative recall: give each key the value it came with.

A sequence shows pairs of keys and values, all different, and then asks for some of the keys again in random
order, each followed by its value; filler tokens may stand between and before the questions::

    <bos> k_1 v_1 k_2 v_2 ...   <fill> k_a v_a k_b v_b <fill> ...

Only the values that answer a question are targets. The last position to predict from is the key itself, so
what is needed is one step back, "which token came after this one before", over any distance.
Source: arXiv 2312.04927. There the gaps follow a power law and the answer stands at the place of
the key; here a gap is uniform and the answer is the next token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Instance, Rng, Span
from t2lib.lab.tasks._task import Task, Vocabulary


@dataclass(frozen=True)
class MQAR(Task):
    """`pairs` of `keys` and `values` (sizes of the two vocabularies), `queries` of them, `fillers` between.

    Chance: a value drawn from those of the instance that have not been given yet, which is the mean of
    1/pairs, 1/(pairs - 1), ... over the questions. Level of a question: its distance, how
    many tokens after the first occurrence its key comes again. All instances are of one size, so the
    hardest ones are like the others. Cost: about 60 microseconds an instance.
    """

    name: ClassVar[str] = "mqar"
    source: ClassVar[str] = "arXiv 2312.04927"

    pairs: int = 8
    queries: int = 4
    keys: int = 32
    values: int = 32
    fillers: int = 0
    context: int | None = None

    def __post_init__(self) -> None:
        self._whole("pairs", 1)
        self._whole("queries", 1, self.pairs)
        self._whole("keys", self.pairs)
        self._whole("values", self.pairs)
        self._whole("fillers", 0)
        self._check_context()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            ("a key", [f"k{i}" for i in range(1, self.keys + 1)]),
            ("a value", [f"v{i}" for i in range(1, self.values + 1)]),
            ("begins an instance", ["<bos>"]),
            ("stands between questions", ["<fill>"]),
        )

    @property
    def longest(self) -> int:
        return 1 + 2 * self.pairs + 2 * self.queries + self.fillers

    @property
    def chance(self) -> float:
        return sum(1 / (self.pairs - asked) for asked in range(self.queries)) / self.queries

    def instance(self, rng: Rng, hardest: bool = False) -> Instance:
        keys = (1 + rng.permutation(self.keys)[: self.pairs]).tolist()
        values = (1 + self.keys + rng.permutation(self.values)[: self.pairs]).tolist()
        asked = rng.permutation(self.pairs)[: self.queries].tolist()
        # Every slot is a question or a filler; which ones are questions is uniform.
        slots = rng.permutation(self.queries + self.fillers).tolist()
        fill = self.vocabulary.id("<fill>")
        tokens = [self.vocabulary.id("<bos>")]
        for key, value in zip(keys, values, strict=True):
            tokens += (key, value)
        targets = [False] * len(tokens)
        answers = []
        for slot in slots:
            if slot >= self.queries:
                tokens.append(fill)
                targets.append(False)
                continue
            pair = asked[slot]
            distance = len(tokens) - (1 + 2 * pair)
            tokens += (keys[pair], values[pair])
            targets += (False, True)
            answers.append(Span(len(tokens) - 1, len(tokens), distance))
        return Instance(tokens, targets, answers)

    def solve(self, prompt: Any) -> list[int]:
        tokens, mark = self._prompt(prompt), self.vocabulary.id
        key = [1 <= token <= self.keys for token in tokens]
        value = [self.keys < token <= self.keys + self.values for token in tokens]
        begins = tokens[:1] == [mark("<bos>")] and not {0, mark("<bos>")} & set(tokens[1:])
        # A value stands after every key and nowhere else.
        if not begins or any(before != after for before, after in zip(key, value[1:], strict=False)):
            raise ValueError(
                f"prompt must be <bos>, pairs of a key and a value, fillers, and a key at its end, "
                f"got {self._shown(tokens)}."
            )
        if not key[-1] or tokens[-1] not in tokens[:-1]:
            raise ValueError(
                f"prompt must end with a key that it showed before, got {self.vocabulary.spell(tokens[-1:])}."
            )
        return [tokens[tokens.index(tokens[-1]) + 1]]

    def right(self, prompt: Any, answer: Any) -> bool:
        return _checks.integers("answer", answer)[:1] == self.solve(prompt)
