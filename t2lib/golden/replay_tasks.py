"""Run the synthetic tasks on the instances in synthetic_tasks.json, which the released generators drew.

`replay(name, case)` lists what the file says of one instance next to what the task makes of it: the answers
of the exact solver, the grade of the recorded answer, and the sequence with its targets, read by the task and
written again. The numbers of the tokens are those of the release, mapped to ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple, cast

from t2lib.lab.tasks import Grammar
from t2lib.lab.tasks.brevo import Brevo, parents_of
from t2lib.lab.tasks.depo import Depo
from t2lib.lab.tasks.mano import Mano

Case = dict[str, Any]


class Check(NamedTuple):
    """What was compared, what came out, what the file has."""

    what: str
    got: Any
    want: Any


def cases(name: str) -> list[Case]:
    """The instances of a task: of lano one for each string, with the grammar beside it."""
    if name not in _REPLAYS:
        raise ValueError(f"name must be one of {', '.join(map(repr, _REPLAYS))}; got {name!r}.")
    text = resources.files("t2lib.golden").joinpath("synthetic_tasks.json").read_text(encoding="utf-8")
    found = json.loads(text)[name]
    if name == "lano":
        return [{"rules": found["rules"], **sample} for sample in found["samples"]]
    return cast(list[Case], found)


def replay(name: str, case: Case) -> list[Check]:
    """The checks of one instance."""
    return _REPLAYS[name](case)


def _depo(case: Case) -> list[Check]:
    task = Depo(
        largest=case["N"],
        largest_hop=case["K"],
        queries=case["M"],
        name_vocabulary=case["mini_vocab"],
        shortest_name=case["min_tlen"],
        longest_name=case["max_tlen"],
    )
    mark = task.vocabulary.id
    special = {9999: mark("<bos>"), 9500: mark("<ans>")}
    special |= {9000 + k: mark(f"<query_{k}>") for k in range(1, case["K"] + 1)}
    tokens = [special.get(token, token) for token in case["tokens"]]
    ends = [place + 1 for place, token in enumerate(tokens) if token == mark("<ans>")]
    edges, queries = task.read(tokens[: ends[-1]])
    written = task.write(edges, queries)
    answers = [query["answer"] for query in case["queries"]]
    grades = [task.right(tokens[:end], answer) for end, answer in zip(ends, answers, strict=True)]
    return [
        Check("vertices", len(edges), case["n"]),
        Check("queries", [(q.hop, list(q.source)) for q in queries],
              [(q["k"], q["source"]) for q in case["queries"]]),
        Check("answers", [task.solve(tokens[:end]) for end in ends], answers),
        Check("grades", grades, [True] * len(ends)),
        *_sequence(written.tokens, tokens, written.targets, case["label"]),
    ]  # fmt: skip


def _brevo(case: Case) -> list[Check]:
    names: dict[str, Any] = {"name_vocabulary": 4, "shortest_name": 2, "longest_name": 4}
    task = Brevo(largest=case["n"], **(names if case["multi"] else {}))
    mark = task.vocabulary.id
    special = {9999: mark("<bos>"), 9997: mark("<query>"), 9998: mark("<ans>")}
    # The release closes the answer with the token that opens it; ours is another one.
    tokens = [*(special.get(token, token) for token in case["tokens"][:-1]), mark("<eos>")]
    start = tokens.index(mark("<ans>")) + 1
    edges, query = task.read(tokens[:start])
    order = [tuple(name) for name in case["answer"]]
    written = task.write(edges, query, order, case["n"])
    solved = task.names.split(task.solve(tokens[:start])[:-1])
    parents = parents_of(edges)

    def depth(vertex: tuple[int, ...]) -> int:
        return 1 + min(map(depth, parents[vertex])) if vertex in parents else 0

    return [
        Check("query", list(query), case["query"]),
        Check("distance to the nearest leaf", depth(query), case["depth"]),
        Check("vertices of the answer", set(solved), set(order)),
        Check("grade", task.right(tokens[:start], tokens[start:]), True),
        *_sequence(written.tokens, tokens, written.targets, case["label"]),
    ]


def _mano(case: Case) -> list[Check]:
    task = Mano(largest=max(6, case["l"]))
    mark = task.vocabulary.id
    special = {5000 + value: mark(str(value)) for value in range(23)}
    # Every operator has two numbers in the release, which may draw either.
    special |= {number: mark(sign) for sign, both in zip("+-*", ((1, 5), (2, 6), (3, 7)), strict=True)
                for number in both}  # fmt: skip
    expression, value = [special[token] for token in case["expression"]], special[case["tokens"][-1]]
    tokens = [mark("<bos>"), mark(f"<len_{case['l']}>"), *expression, mark("<ans>"), value]
    written = task.write(expression)
    return [
        Check("value", task.value(expression), case["answer"]),
        Check("answer", task.solve(tokens[:-1]), [mark(str(case["answer"]))]),
        Check("expression in its sequence", case["tokens"][2:-2], case["expression"]),
        *_sequence(written.tokens, tokens, written.targets, [1] * len(tokens)),
    ]


def _lano(case: Case) -> list[Check]:
    grammar = Grammar(case["rules"])
    return [
        Check("accepted", grammar.accepts(case["sequence"]), case["valid"]),
        Check("has a probability", grammar.probability(case["sequence"]) > 0, case["valid"]),
    ]


def _sequence(written: list[int], tokens: list[int], targets: list[bool], label: list[int]) -> list[Check]:
    return [Check("tokens", written, tokens), Check("targets", list(map(int, targets)), label)]


_REPLAYS: dict[str, Callable[[Case], list[Check]]] = {
    "depo": _depo,
    "brevo": _brevo,
    "mano": _mano,
    "lano": _lano,
}
