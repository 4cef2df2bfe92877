"""Depo, reasoning depth: the k-th successor on a cycle.

The n vertices v_0..v_{n-1} form the single cycle v_i → v_{i+1 mod n}. A sequence lists its n edges in random
order and then asks t = min(queries, n) questions about distinct vertices::

    <bos> v_a v_{a+1} v_b v_{b+1} ...   <query_k> v_i <ans> v_{i+k}   <query_k'> v_j <ans> v_{j+k'} ...

with k uniform from 1 to `largest_hop` for each. Only <ans> and the answers are targets. The released
generator stops at a missing import and at an undefined name; here parameters are checked when the task is
made.
Source: arXiv 2512.17351, section 2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Instance, Rng, Span
from t2lib.lab.tasks._graphs import (
    SMALLEST,
    Name,
    Names,
    Sizes,
    check_names,
    pairs,
)
from t2lib.lab.tasks._task import Task, Vocabulary


@dataclass(frozen=True, slots=True)
class Query:
    """Ask for the vertex `hop` steps after `source`."""

    hop: int
    source: Name


@dataclass(frozen=True)
class Depo(Task):
    """k-th successors on a cycle of at most `largest` vertices, k at most `largest_hop`.

    A name has `shortest_name` to `longest_name` tokens from a base vocabulary of `name_vocabulary`: tokens
    1..V within it, V+1..2V at its end. The paper's Depo1 has names of 1 to 2 tokens and V = 50, its Depo2
    names of 5 to 7 tokens and V = 3 (its text says 4, its generator 3).

    Chance: a name drawn from those of the instance except the one asked about, which is right once in
    `largest` - 1; only where k is a multiple of `largest` it is known that the walk ends at its source.

    Level of a question: k. Hardest: n = `largest`, and k one of `largest_hop` and half of it. Cost: about
    0.2 ms an instance.
    """

    name: ClassVar[str] = "depo"
    source: ClassVar[str] = "arXiv 2512.17351"

    largest: int = 20
    largest_hop: int = 4
    queries: int = 10
    name_vocabulary: int = 50
    shortest_name: int = 1
    longest_name: int = 2
    context: int | None = None

    def __post_init__(self) -> None:
        self._whole("largest", SMALLEST)
        self._whole("largest_hop", 1)
        self._whole("queries", 1)
        self._whole("name_vocabulary", 1)
        self._whole("shortest_name", 1)
        self._whole("longest_name", self.shortest_name)
        check_names(self.names, self.largest)
        self._check_context()

    @cached_property
    def names(self) -> Names:
        """How vertices are named."""
        return Names(self.name_vocabulary, self.name_vocabulary, self.shortest_name, self.longest_name)

    @cached_property
    def sizes(self) -> Sizes:
        """How many vertices there are."""
        return Sizes(self.largest)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            *self.names.groups(),
            ("begins an instance", ["<bos>"]),
            ("comes before an answer", ["<ans>"]),
            ("asks for the k-th successor", [f"<query_{k}>" for k in range(1, self.largest_hop + 1)]),
        )

    @property
    def longest(self) -> int:
        questions = min(self.queries, self.largest)
        return 1 + 2 * self.largest * self.longest_name + questions * (2 + 2 * self.longest_name)

    @property
    def chance(self) -> float:
        returns = [hop % self.largest == 0 for hop in self.hardest_hops]
        return sum(1.0 if back else 1 / (self.largest - 1) for back in returns) / len(returns)

    @property
    def hardest_hops(self) -> list[int]:
        """The values of k at its hardest, the largest and half of it."""
        return sorted({max(1, self.largest_hop // 2), self.largest_hop})

    def instance(self, rng: Rng, hardest: bool = False) -> Instance:
        n = self.sizes.draw(rng, hardest)
        names = self.names.draw(rng, n)
        edges = [(names[i], names[i + 1 - n]) for i in rng.permutation(n).tolist()]
        sources = rng.permutation(n)[: self.queries].tolist()
        if hardest:
            choices = self.hardest_hops
            hops = [choices[i] for i in rng.integers(0, len(choices), len(sources)).tolist()]
        else:
            hops = rng.integers(1, self.largest_hop + 1, len(sources)).tolist()
        queries = [Query(hop, names[source]) for hop, source in zip(hops, sources, strict=True)]
        return self.write(edges, queries)

    def write(self, edges: Sequence[tuple[Name, Name]], queries: Sequence[Query]) -> Instance:
        """The sequence of a cycle, its edges in the order given, and of queries with their answers."""
        vocabulary, successor = self.vocabulary, dict(edges)
        answer_mark, first_query = vocabulary.id("<ans>"), vocabulary.id("<query_1>")
        tokens = [vocabulary.id("<bos>")]
        for edge in edges:
            tokens += edge[0]
            tokens += edge[1]
        targets = [False] * len(tokens)
        answers = []
        for query in queries:
            answer = walk(successor, query.source, query.hop)
            tokens += [first_query + query.hop - 1, *query.source, answer_mark]
            answers.append(Span(len(tokens), len(tokens) + len(answer), query.hop))
            tokens += answer
            targets += [False] * (1 + len(query.source)) + [True] * (1 + len(answer))
        return Instance(tokens, targets, answers)

    def read(self, prompt: Any) -> tuple[list[tuple[Name, Name]], list[Query]]:
        """The edges and the queries of a prompt, answered queries among them.

        The answers in it are not graded here, but each is to be a name.
        """
        tokens = self._prompt(prompt)
        bos, answer_mark = self.vocabulary.id("<bos>"), self.vocabulary.id("<ans>")
        first = self.vocabulary.id("<query_1>")
        places = [place for place, token in enumerate(tokens) if token >= first]
        if not tokens or tokens[0] != bos or tokens[-1] != answer_mark or not places:
            raise ValueError(
                f"prompt must begin with <bos>, hold a query and end with <ans>, got {self._shown(tokens)}."
            )
        edges = pairs(self.names.split(tokens[1 : places[0]]))
        check_cycle(edges)
        vertices, queries = dict(edges), []
        for place, end in zip(places, [*places[1:], None], strict=True):
            mark = tokens.index(answer_mark, place)
            source = self.names.one(tokens[place + 1 : mark])
            if source not in vertices:
                raise ValueError(f"prompt must ask about vertices of its edges, got {source}.")
            if end is not None:
                self.names.one(tokens[mark + 1 : end])
            elif mark < len(tokens) - 1:
                after = self._shown(tokens[mark + 1 :])
                raise ValueError(f"prompt must end with the <ans> of its last query, got {after} after it.")
            queries.append(Query(tokens[place] - first + 1, source))
        return edges, queries

    def solve(self, prompt: Any) -> list[int]:
        edges, queries = self.read(prompt)
        return list(walk(dict(edges), queries[-1].source, queries[-1].hop))

    def right(self, prompt: Any, answer: Any) -> bool:
        given, solution = _checks.integers("answer", answer), self.solve(prompt)
        return given[: len(solution)] == solution


def check_cycle(edges: Sequence[tuple[Name, Name]]) -> None:
    """A single cycle through all edges."""
    successor, vertex, passed = dict(edges), edges[0][0] if edges else None, set[Name]()
    while vertex in successor and vertex not in passed:
        passed.add(vertex)
        vertex = successor[vertex]
    if not edges or vertex != edges[0][0] or len(passed) < len(edges):
        raise ValueError(f"prompt must hold edges that form one cycle, got {len(edges)} that do not.")


def walk(successor: dict[Name, Name], source: Name, hops: int) -> Name:
    """The vertex `hops` steps after `source`."""
    for _ in range(hops):
        if source not in successor:
            raise ValueError(f"edges must form a cycle, but none leaves {source}.")
        source = successor[source]
    return source
