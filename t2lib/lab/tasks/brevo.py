"""Brevo, reasoning breadth: everything that a vertex depends on, in topological order.

The n vertices have an order. The first λ are leaves, λ uniform in 1..⌊(n-1)/4⌋+1, which is ⌈n/4⌉ at most
(rounded down as in the released code; the paper's text rounds up).
Every later vertex depends on 1 to 4 earlier ones, its parents, chosen among those that have at most three
children. A sequence lists the edges in random order and asks about one vertex q::

    <bos> parent child parent child ...   <query> q <ans> (what q depends on, parents first) q <eos>

Targets are <ans>, the answer and <eos>. Where the released generator departs from the paper, this one
follows the paper: q is drawn from the last quarter of the order and is not the last vertex (the release
always asks about the last one); the four special tokens differ (there <ans> and <eos> are one); and the
solver accepts what the generator writes (there the checker waits for <bos> at the end and refuses all of it).
Source: arXiv 2512.17351, section 2 and appendix A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from math import comb
from typing import Any, ClassVar

import numpy as np

from t2lib.lab.tasks import _checks
from t2lib.lab.tasks._batch import Instance, Rng, Span
from t2lib.lab.tasks._graphs import (
    SMALLEST,
    Name,
    Names,
    Sizes,
    check_names,
    flat,
    pairs,
)
from t2lib.lab.tasks._task import Task, Vocabulary

DEGREE = 4
# Enough to know the chance at n = 12 to a tenth of itself.
GRAPHS = 4000
Edges = Sequence[tuple[Name, Name]]


@dataclass(frozen=True)
class Brevo(Task):
    """Ancestors in a graph of at most `largest` vertices.

    `name_vocabulary=None` names each vertex by one token from 1..largest (the paper's Brevo1); an integer V
    by `shortest_name` to `longest_name` tokens, 1..V within a name and V+1..2V at its end (its Brevo2 has 2
    to 4 tokens and V = 4).

    An answer is right if it is a topological order of exactly what q depends on, closed by <eos>. Chance:
    the best m for who puts m other vertices before q, drawn and ordered blindly, at n = `largest`; estimated
    on 4000 graphs from seed 0 when first asked for, in less than a second. It is 0.2 % at n = 12.

    Level of a question: n. Hardest: n = `largest`. Cost: about 0.2 ms an instance.
    """

    name: ClassVar[str] = "brevo"
    source: ClassVar[str] = "arXiv 2512.17351"

    largest: int = 12
    name_vocabulary: int | None = None
    shortest_name: int = 1
    longest_name: int = 1
    context: int | None = None

    def __post_init__(self) -> None:
        self._whole("largest", SMALLEST)
        self._whole("shortest_name", 1)
        self._whole("longest_name", self.shortest_name)
        if self.name_vocabulary is None:
            if self.longest_name > 1:
                raise ValueError(
                    f"name_vocabulary must be an integer where names have several tokens, got None with "
                    f"longest_name={self.longest_name}."
                )
        else:
            self._whole("name_vocabulary", 1)
            check_names(self.names, self.largest)
        self._check_context()

    @cached_property
    def names(self) -> Names:
        """How vertices are named."""
        if self.name_vocabulary is None:
            return Names(0, self.largest, 1, 1)
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
            ("comes before the vertex asked about", ["<query>"]),
            ("comes before the answer", ["<ans>"]),
            ("ends the answer", ["<eos>"]),
        )

    @property
    def longest(self) -> int:
        # Every vertex but the first may have four parents, as far as there are so many before it.
        edges = sum(min(DEGREE, vertex) for vertex in range(self.largest))
        return 4 + self.longest_name * (2 * edges + 1 + self.largest)

    @cached_property
    def chance(self) -> float:
        rng, n = np.random.default_rng(0), self.largest
        right = [0] * n
        for _ in range(GRAPHS):
            parents = parents_of([((parent,), (child,)) for parent, child in draw_edges(rng, n)])
            query = (draw_query(rng, n),)
            others = sorted(ancestors(parents, query) - {query})
            order = [others[i] for i in rng.permutation(len(others)).tolist()]
            right[len(others)] += respects([*order, query], parents)
        return max(count / (GRAPHS * comb(n - 1, others)) for others, count in enumerate(right))

    def instance(self, rng: Rng, hardest: bool = False) -> Instance:
        n = self.sizes.draw(rng, hardest)
        names = self.names.draw(rng, n)
        numbered = draw_edges(rng, n)
        edges = [(names[numbered[i][0]], names[numbered[i][1]]) for i in rng.permutation(len(numbered))]
        query = names[draw_query(rng, n)]
        return self.write(edges, query, random_order(rng, parents_of(edges), query), n)

    def write(self, edges: Edges, query: Name, answer: Sequence[Name], level: int) -> Instance:
        """The sequence of a graph, its edges in the order given, a query and an answer."""
        mark = self.vocabulary.id
        tokens = [mark("<bos>")]
        for edge in edges:
            tokens += edge[0]
            tokens += edge[1]
        tokens += [mark("<query>"), *query, mark("<ans>")]
        start = len(tokens)
        tokens += [*flat(answer), mark("<eos>")]
        targets = [False] * (start - 1) + [True] * (len(tokens) - start + 1)
        return Instance(tokens, targets, [Span(start, len(tokens), level)])

    def read(self, prompt: Any) -> tuple[list[tuple[Name, Name]], Name]:
        """The edges and the vertex asked about."""
        tokens, mark = self._prompt(prompt), self.vocabulary.id
        asked = tokens.index(mark("<query>")) if mark("<query>") in tokens else 0
        if not asked or tokens[0] != mark("<bos>") or tokens[-1] != mark("<ans>"):
            raise ValueError(
                f"prompt must begin with <bos>, hold a query and end with <ans>, got {self._shown(tokens)}."
            )
        query = self.names.one(tokens[asked + 1 : -1])
        edges = pairs(self.names.split(tokens[1:asked]))
        if not any(query in edge for edge in edges):
            raise ValueError(f"prompt must ask about a vertex of its edges, got {query}.")
        try:
            TopologicalSorter(parents_of(edges)).prepare()
        except CycleError as error:
            raise ValueError(
                f"prompt must hold edges without a cycle, got one through {error.args[1][0]}."
            ) from None
        return edges, query

    def solve(self, prompt: Any) -> list[int]:
        """Depth first, parents in the order of the edges."""
        edges, query = self.read(prompt)
        parents, order = parents_of(edges), dict[Name, None]()
        # The path from the query to where the search is; a list, since it may be deeper than calls can be.
        path = [query]
        while path:
            missing = (parent for parent in parents.get(path[-1], []) if parent not in order)
            parent = next(missing, None)
            if parent is None:
                order[path.pop()] = None
            else:
                path.append(parent)
        return [*flat(order), self.vocabulary.id("<eos>")]

    def right(self, prompt: Any, answer: Any) -> bool:
        edges, query = self.read(prompt)
        tokens, eos = _checks.integers("answer", answer), self.vocabulary.id("<eos>")
        if eos not in tokens:
            return False
        try:
            order = self.names.split(tokens[: tokens.index(eos)])
        except ValueError:
            return False
        parents = parents_of(edges)
        distinct = set(order)
        if len(distinct) < len(order) or distinct != ancestors(parents, query):
            return False
        return respects(order, parents)


def draw_edges(rng: Rng, n: int) -> list[tuple[int, int]]:
    """Edges (parent, child) between vertices numbered in a topological order."""
    leaves = 1 + int(rng.random() * ((n - 1) // 4 + 1))
    children = [0] * n
    edges = []
    for child in range(leaves, n):
        free = [vertex for vertex in range(child) if children[vertex] < DEGREE]
        for _ in range(1 + int(rng.random() * min(DEGREE, len(free)))):
            parent = free.pop(int(rng.random() * len(free)))
            children[parent] += 1
            edges.append((parent, child))
    return edges


def draw_query(rng: Rng, n: int) -> int:
    """A vertex of the last quarter of the order, not the very last; the one before it where n is below 5."""
    quarter = max(2, (n + 3) // 4)
    return n - quarter + int(rng.random() * (quarter - 1))


def parents_of(edges: Edges) -> dict[Name, list[Name]]:
    """The parents of each vertex that has any."""
    parents: dict[Name, list[Name]] = {}
    for parent, child in edges:
        parents.setdefault(child, []).append(parent)
    return parents


def ancestors(parents: dict[Name, list[Name]], query: Name) -> set[Name]:
    """All that `query` depends on, itself included."""
    found, waiting = {query}, [query]
    while waiting:
        for parent in parents.get(waiting.pop(), []):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def respects(order: Sequence[Name], parents: dict[Name, list[Name]]) -> bool:
    """Whether all parents stand before their children; the order holds the parents of all its vertices."""
    place = {vertex: i for i, vertex in enumerate(order)}
    return all(place[parent] < place[child] for child in order for parent in parents.get(child, []))


def random_order(rng: Rng, parents: dict[Name, list[Name]], query: Name) -> list[Name]:
    """What `query` depends on in an order drawn step by step, each time from the vertices that are ready."""
    # Sorted, since a set would be in another order in another run.
    included = sorted(ancestors(parents, query))
    waits_for = {vertex: len(parents.get(vertex, [])) for vertex in included}
    children: dict[Name, list[Name]] = {vertex: [] for vertex in included}
    for child in included:
        for parent in parents.get(child, []):
            children[parent].append(child)
    ready = [vertex for vertex in included if not waits_for[vertex]]
    order = []
    while ready:
        order.append(ready.pop(int(rng.random() * len(ready))))
        for child in children[order[-1]]:
            waits_for[child] -= 1
            if not waits_for[child]:
                ready.append(child)
    return order
