"""Depo and Brevo: the graphs are what the paper says, and the faults of the released generators are gone."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from t2lib.lab.tasks import Batch, brevo, build
from t2lib.lab.tasks._graphs import Names, Sizes
from t2lib.lab.tasks.brevo import Brevo, ancestors, draw_edges, draw_query, parents_of
from t2lib.lab.tasks.depo import Depo


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_sizes_follow_the_weights_of_the_generators() -> None:
    """1/(n + sqrt(N)) on 3..N, not uniform."""
    sizes, generator = Sizes(12), rng()
    drawn = np.bincount([sizes.draw(generator, False) for _ in range(20_000)], minlength=13)
    weights = np.array([0, 0, 0, *(1 / (n + 12**0.5) for n in range(3, 13))])
    expected = 20_000 * weights / weights.sum()
    # Chi square with 9 degrees of freedom: 28 is passed once in a thousand; the seed is fixed.
    assert (((drawn - expected)[3:] ** 2) / expected[3:]).sum() < 28
    assert drawn[:3].sum() == 0
    assert (((drawn - 2000)[3:] ** 2) / 2000).sum() > 200
    assert {sizes.draw(generator, True) for _ in range(5)} == {12}


def test_names_are_distinct_and_end_themselves() -> None:
    names, generator = Names(3, 3, 2, 4), rng()
    drawn = names.draw(generator, 80)
    assert len(set(drawn)) == 80
    assert {len(name) for name in drawn} == {2, 3, 4}
    assert all(max(name[:-1]) <= 3 < name[-1] <= 6 and min(name) >= 1 for name in drawn)
    assert names.split(token for name in drawn for token in name) == drawn
    assert names.count == 3**2 + 3**3 + 3**4
    # All that there are can be drawn.
    assert len(set(names.draw(generator, names.count))) == names.count


def depo_batch(**parameters: int) -> tuple[Depo, Batch]:
    task = Depo(**parameters)
    return task, task.batch(rng(), 40, packed=False)


@pytest.mark.parametrize("name_vocabulary", [3, 4])
def test_depo_runs_as_it_is_with_either_size_of_the_names(name_vocabulary: int) -> None:
    """The release stops at a missing import and an undefined name; text and script differ on the size."""
    _, batch = depo_batch(name_vocabulary=name_vocabulary, shortest_name=5, longest_name=7, largest=12)
    names = batch.tokens[(batch.tokens > 0) & (batch.tokens <= 2 * name_vocabulary)]
    assert set(names.tolist()) == set(range(1, 2 * name_vocabulary + 1))


def test_depo_is_one_cycle_and_its_answers_are_steps_on_it() -> None:
    task, batch = depo_batch(largest=9, largest_hop=5)
    for question, answer in zip(batch.questions, batch.references(), strict=True):
        edges, queries = task.read(batch.prompt(question))
        cycle = [edges[0][0]]
        while len(cycle) <= len(edges):
            cycle.append(dict(edges)[cycle[-1]])
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(edges)
        place = cycle.index(queries[-1].source) + queries[-1].hop
        assert tuple(answer) == cycle[place % len(edges)]
        assert question.level == queries[-1].hop


def test_depo_asks_about_distinct_vertices_at_most_ten() -> None:
    task, batch = depo_batch(largest=20)
    for row in range(40):
        last = [q for q in batch.questions if q.row == row][-1]
        edges, queries = task.read(batch.prompt(last))
        assert len({q.source for q in queries}) == len(queries) == min(10, len(edges))


def test_depo_targets_only_answers_and_their_marks() -> None:
    task, batch = depo_batch(largest=6)
    marks = batch.tokens == task.vocabulary.id("<ans>")
    wanted = marks.copy()
    for q in batch.questions:
        wanted[q.row, q.start : q.stop] = True
    assert (batch.loss_mask == wanted).all()
    # Every answer mark stands right before an answer.
    assert marks.sum() == len(batch.questions)


def test_depo_at_its_hardest() -> None:
    task = Depo(largest=7, largest_hop=6)
    batch = task.batch(rng(), 30, hardest=True, packed=False)
    assert {q.level for q in batch.questions} == {3, 6}
    assert all(len(task.read(prompt)[0]) == 7 for prompt in batch.prompts())


def test_brevo_graphs() -> None:
    """Leaves 1..ceil(n/4), one to four parents for all others, at most four children."""
    generator = rng()
    for n in (3, 4, 5, 8, 9, 12, 13):
        leaves, parents_seen = set(), set()
        for _ in range(300):
            edges = draw_edges(generator, n)
            assert len(set(edges)) == len(edges)
            assert all(parent < child for parent, child in edges)
            of_child = np.bincount([child for _, child in edges], minlength=n)
            of_parent = np.bincount([parent for parent, _ in edges], minlength=n)
            assert of_parent.max() <= 4
            first = int((of_child == 0).sum())
            assert (of_child[first:] > 0).all()
            leaves.add(first)
            parents_seen |= set(of_child[first:].tolist())
        assert leaves == set(range(1, -(-n // 4) + 1))
        assert parents_seen == set(range(1, min(4, n - 1) + 1))


def test_brevo_asks_within_the_last_quarter_and_not_for_the_last_vertex() -> None:
    """The released generator asks about the last vertex every time."""
    generator = rng()
    for n, asked in (
        (3, {1}),
        (4, {2}),
        (5, {3}),
        (8, {6}),
        (9, {6, 7}),
        (12, {9, 10}),
        (40, set(range(30, 39))),
    ):
        assert {draw_query(generator, n) for _ in range(500)} == asked
    # So some vertices depend on the one asked about, and the answer leaves others out.
    task = Brevo(largest=12)
    batch = task.batch(rng(), 200, hardest=True, packed=False)
    depended_on, reached = 0, []
    for prompt in batch.prompts():
        edges, query = task.read(prompt)
        depended_on += any(parent == query for parent, _ in edges)
        reached.append(len(ancestors(parents_of(edges), query)))
    assert 60 < depended_on < 200
    assert 2 <= min(reached) < max(reached) <= 11


def test_brevo_chance_by_hand() -> None:
    """Three vertices: q depends on one of the two others. Four: with 3/4 on one and what that depends on."""
    assert Brevo(largest=3).chance == 0.5
    assert Brevo(largest=4).chance == pytest.approx(3 / 4 / 3 / 2, rel=0.05)


def test_brevo_chance_is_that_of_blind_answers() -> None:
    """At n = 12 the likeliest guess is one other vertex before q."""
    task = Brevo(largest=12)
    batch = task.batch(rng(1), 1500, hardest=True, packed=False)
    generator, eos, guesses = rng(2), task.vocabulary.id("<eos>"), []
    for prompt in batch.prompts():
        others = [vertex for vertex in range(1, 13) if vertex != prompt[-2]]
        guesses.append([others[generator.integers(11)], prompt[-2], eos])
    assert 0.001 < task.chance < 0.004
    assert abs(task.accuracy(batch, guesses) - task.chance) < 5 * (task.chance / 1500) ** 0.5


def test_depo_chance_is_another_name_of_the_instance() -> None:
    task = Depo(largest=5, largest_hop=3)
    batch = task.batch(rng(), 200, hardest=True, packed=False)
    generator, guesses = rng(1), []
    for prompt in batch.prompts():
        edges, queries = task.read(prompt)
        others = [source for source, _ in edges if source != queries[-1].source]
        guesses.append(others[generator.integers(4)])
    assert task.chance == 1 / 4
    assert abs(task.accuracy(batch, guesses) - task.chance) < 5 * (task.chance / 1000) ** 0.5
    # Six steps on a cycle of six lead back, which needs no reading.
    assert Depo(largest=6, largest_hop=6).chance == (1 / 5 + 1) / 2


def test_brevo_has_four_special_tokens() -> None:
    """In the release the mark before the answer and the one after it are the same."""
    task = build("brevo")
    batch = task.batch(rng(), 30, packed=False)
    for spelling in ("<bos>", "<query>", "<ans>", "<eos>"):
        assert ((batch.tokens == task.vocabulary.id(spelling)).sum(1) == 1).all()


def test_brevo_accepts_its_own_answers_closed_by_eos() -> None:
    """The released checker waits for another token at the end and refuses what its generator wrote."""
    task = build("brevo")
    batch = task.batch(rng(), 60)
    assert task.grade(batch, batch.references()).all()
    assert all(answer[-1] == task.vocabulary.id("<eos>") for answer in batch.references())
    bos = task.vocabulary.id("<bos>")
    assert not task.grade(batch, [[*answer[:-1], bos] for answer in batch.references()]).any()


def test_brevo_accepts_every_topological_order_and_nothing_else() -> None:
    """All sequences of distinct vertices of small graphs, judged by the definition."""
    task = Brevo(largest=5)
    eos = task.vocabulary.id("<eos>")
    several = 0
    for prompt in task.batch(rng(1), 12, hardest=True, packed=False).prompts():
        edges, (query,) = task.read(prompt)
        above = {(p[0], c[0]) for p, c in edges}
        # The closure of "depends on", by squaring.
        for _ in range(3):
            above |= {(a, d) for a, b in above for c, d in above if b == c}
        needed = {a for a, b in above if b == query} | {query}
        accepted = 0
        for length in range(1, 6):
            for order in permutations(range(1, 6), length):
                valid = set(order) == needed and not any(
                    (order[j], order[i]) in above for i in range(length) for j in range(i, length)
                )
                assert task.right(prompt, [*order, eos]) == valid, (edges, query, order)
                accepted += valid
        assert accepted >= 1
        several += accepted > 1
    assert several


def test_brevo_grades_whole_answers_only() -> None:
    task = build("brevo")
    batch = task.batch(rng(2), 50, packed=False)
    answers = [answer.tolist() for answer in batch.references()]
    assert not task.grade(batch, [answer[1:] for answer in answers]).any()
    assert not task.grade(batch, [[answer[0], *answer] for answer in answers]).any()
    assert not task.grade(batch, [[*answer[:-2][::-1], *answer[-2:]][1:] for answer in answers]).any()
    absent = task.vocabulary.id("<query>")
    assert not task.grade(batch, [[absent, *answer] for answer in answers]).any()


def test_brevo_answers_a_chain_deeper_than_calls_can_be() -> None:
    task = Brevo(largest=1500)
    chain = [((vertex,), (vertex + 1,)) for vertex in range(1, 1500)]
    prompt = task.write(chain[::-1], (1500,), [], 1500).tokens[:-1]
    answer = [*range(1, 1501), task.vocabulary.id("<eos>")]
    assert task.solve(prompt) == answer
    assert task.right(prompt, answer)
    assert not task.right(prompt, [2, 1, *answer[2:]])


def test_brevo_chance_of_large_graphs_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The binomial coefficients there are beyond floats."""
    monkeypatch.setattr(brevo, "GRAPHS", 2)
    assert 0 <= Brevo(largest=1400).chance < 1e-9


def test_depo_reads_on_after_a_wrong_answer() -> None:
    """A model that writes a whole sequence may have answered an earlier question wrong."""
    task = Depo()
    text = "<bos> 60 61 61 62 62 60 <query_1> 60 <ans> 62 <query_2> 60 <ans>"
    assert task.solve([task.vocabulary.id(spelling) for spelling in text.split()]) == [62]


def test_brevo_draws_different_orders() -> None:
    """The same graph and question come with several orders, or a model could learn one rule for them."""
    task = Brevo(largest=12)
    batch = task.batch(rng(), 60, hardest=True, packed=False)
    same = [
        answer.tolist() == solution
        for answer, solution in zip(batch.references(), task.solutions(batch), strict=True)
    ]
    assert 0 < sum(same) < 40
