"""What Depo and Brevo share: how many vertices an instance has, and the names of the vertices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from t2lib.lab.tasks._batch import Rng

Name = tuple[int, ...]
SMALLEST = 3


class Sizes:
    """n from 3 to `largest`, drawn with probability proportional to 1/(n + sqrt(largest)).

    The text of the paper also says "uniform"; its generators draw like this.
    """

    def __init__(self, largest: int) -> None:
        weights = 1 / (np.arange(SMALLEST, largest + 1) + largest**0.5)
        self.largest = largest
        self.probabilities = weights / weights.sum()
        self._steps = np.cumsum(self.probabilities)[:-1]

    def draw(self, rng: Rng, hardest: bool) -> int:
        return self.largest if hardest else SMALLEST + int(self._steps.searchsorted(rng.random(), "right"))


@dataclass(frozen=True)
class Names:
    """Names of `shortest` to `longest` tokens: the last from inner+1..inner+final, the others from 1..inner.

    So a token above `inner` ends a name, and no separator is needed.
    """

    inner: int
    final: int
    shortest: int
    longest: int

    @property
    def count(self) -> int:
        """How many names there are."""
        lengths = range(self.shortest, self.longest + 1)
        return sum(self.inner ** (length - 1) * self.final for length in lengths)

    @property
    def last(self) -> int:
        """The largest token of a name."""
        return self.inner + self.final

    def draw(self, rng: Rng, count: int) -> list[Name]:
        """Distinct names: the length of each uniform, then its tokens; one that is taken is drawn again."""
        if self.longest == 1:
            return [(self.inner + 1 + int(i),) for i in rng.permutation(self.final)[:count]]
        # Insertion order is kept, so the names are in the order in which they were first drawn.
        names: dict[Name, None] = {}
        while len(names) < count:
            missing = count - len(names)
            lengths = rng.integers(self.shortest, self.longest + 1, missing).tolist()
            inner = rng.integers(1, self.inner + 1, (missing, self.longest)).tolist()
            final = rng.integers(self.inner + 1, self.last + 1, missing).tolist()
            for length, tokens, end in zip(lengths, inner, final, strict=True):
                names[(*tokens[: length - 1], end)] = None
        return list(names)

    def split(self, tokens: Iterable[int]) -> list[Name]:
        """The names that a sequence of tokens spells. ValueError if it is not a sequence of whole names."""
        names: list[Name] = []
        name: list[int] = []
        for token in tokens:
            if not 1 <= token <= self.last:
                raise ValueError(f"token {token} belongs to no name; those of names are 1 to {self.last}.")
            name.append(token)
            if token > self.inner:
                if not self.shortest <= len(name) <= self.longest:
                    raise ValueError(
                        f"names must have {self.shortest} to {self.longest} tokens, got the name {name}."
                    )
                names.append(tuple(name))
                name = []
        if name:
            raise ValueError(f"the tokens {name} begin a name that does not end.")
        return names

    def one(self, tokens: Iterable[int]) -> Name:
        """The single name that stands in a question or an answer. ValueError if there is none or more."""
        names = self.split(tokens)
        if len(names) != 1:
            raise ValueError(
                f"prompt must hold one name in every question and answer, got {len(names)} in one of them."
            )
        return names[0]

    def groups(self) -> list[tuple[str, list[str]]]:
        """What the vocabulary says of these tokens."""
        final = [str(token) for token in range(self.inner + 1, self.last + 1)]
        if not self.inner:
            return [("the name of a vertex", final)]
        inner = [str(token) for token in range(1, self.inner + 1)]
        return [("in a name, not its last token", inner), ("the last token of a name", final)]


def check_names(names: Names, needed: int) -> None:
    """Enough distinct names for `needed` vertices."""
    if names.count < needed:
        raise ValueError(
            f"largest must be at most {names.count}, the number of names that name_vocabulary, shortest_name "
            f"and longest_name allow; got {needed}."
        )


def pairs(names: list[Name]) -> list[tuple[Name, Name]]:
    """Edges from the list of names that spells them. ValueError for an odd number of names."""
    if len(names) % 2:
        raise ValueError(f"edges must be pairs of names, got {len(names)} names.")
    return list(zip(names[::2], names[1::2], strict=True))


def flat(names: Iterable[Name]) -> list[int]:
    return [token for name in names for token in name]
