"""Mano and associative recall, by hand and by count."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from t2lib.lab.tasks import build
from t2lib.lab.tasks.mano import OPERATORS, Mano, value_distribution
from t2lib.lab.tasks.mqar import MQAR


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tokens(task: Mano | MQAR, text: str) -> list[int]:
    return [task.vocabulary.id(spelling) for spelling in text.split()]


def test_mano_by_hand() -> None:
    """(2 - 5) × 7 + 22 = 1, and -3 is 20 modulo 23."""
    task = Mano()
    assert task.value(tokens(task, "- 2 5")) == 20
    assert task.value(tokens(task, "+ * - 2 5 7 22")) == 1
    assert task.value(tokens(task, "- - 10 2 1")) == 7
    assert task.solve(tokens(task, "<bos> <len_1> * 22 22 <ans>")) == tokens(task, "1")


def test_mano_agrees_with_python() -> None:
    """The prefix expression as infix text, evaluated by Python."""
    task = Mano(largest=8)
    batch = task.batch(rng(), 100, packed=False)

    def infix(symbols: list[str]) -> str:
        symbol = symbols.pop(0)
        return f"({infix(symbols)}{symbol}{infix(symbols)})" if symbol in OPERATORS else symbol

    for prompt, answer in zip(batch.prompts(), batch.references(), strict=True):
        spelled = task.vocabulary.spell(prompt).split()
        value = eval(infix(spelled[2:-1]))
        assert task.vocabulary.spell(answer) == str(value % 23)


def test_mano_instances() -> None:
    """Sizes uniform, length as told, all tokens targets, and one answer mark that does not tell the size."""
    task = Mano(largest=4)
    batch = task.batch(rng(), 2000, packed=False)
    counts = np.bincount([q.level for q in batch.questions], minlength=5)[1:]
    assert (abs(counts - 500) < 5 * 500**0.5).all()
    assert (batch.loss_mask == batch.valid)[:, 1:].all()
    for q in batch.questions[:100]:
        assert batch.tokens[q.row, 1] == task.vocabulary.id(f"<len_{q.level}>")
        assert batch.tokens[q.row, q.start - 1] == task.vocabulary.id("<ans>")
        assert q.stop == 2 * q.level + 5
    assert len(task.vocabulary) == 1 + 23 + 3 + 2 + 4


def test_mano_values_by_enumeration() -> None:
    """All expressions of two operators modulo 3, each with the probability with which it is drawn."""
    task = Mano(largest=2, modulus=3)
    total = np.zeros(3)
    for (a, b), (x, y, z) in product(product(OPERATORS, repeat=2), product("012", repeat=3)):
        for text in (f"{a} {b} {x} {y} {z}", f"{a} {x} {b} {y} {z}"):
            total[task.value(tokens(task, text))] += 1 / (9 * 27 * 2)
    assert value_distribution(2, 3) == pytest.approx(total, abs=1e-12)


def test_mano_chance_is_that_of_zero() -> None:
    """Products make 0 frequent; at the paper's sizes 7 %, which models without positions reach."""
    task = Mano(largest=4)
    batch = task.batch(rng(), 2500, hardest=True, packed=False)
    zeros = task.accuracy(batch, [tokens(task, "0")] * 2500)
    assert abs(zeros - task.chance) < 5 * (task.chance / 2500) ** 0.5
    assert task.chance > 1.4 / 23
    for operators in (10, 13, 16):
        distribution = value_distribution(operators, 23)
        assert distribution.sum() == pytest.approx(1, abs=1e-12)
        assert distribution.argmax() == 0
        assert 0.07 < distribution[0] < 0.073


@pytest.mark.parametrize("modulus", [2, 4, 6, 12, 23, 30, 36])
def test_mano_values_by_their_tables(modulus: int) -> None:
    """The recursion on all values, not on one for each divisor of the modulus."""
    values = np.arange(modulus)
    tables = [
        f % modulus for f in (values[:, None] + values, values[:, None] - values, np.outer(values, values))
    ]
    found = [np.full(modulus, 1 / modulus)]
    for size in range(1, 6):
        both = sum(np.outer(found[left], found[size - 1 - left]) for left in range(size)) / size
        found.append(np.mean([np.bincount(t.ravel(), np.ravel(both), modulus) for t in tables], 0))
        assert value_distribution(size, modulus) == pytest.approx(found[-1], rel=1e-12)


def test_mano_chance_of_a_large_modulus() -> None:
    """Of one operator: sums are uniform, and a product is 0 for Σ gcd(x, m) of the m² pairs."""
    m = 10**6
    zeros = int(np.gcd(np.arange(m), m).sum())
    assert Mano(largest=1, modulus=m).chance == pytest.approx((2 / m + zeros / m**2) / 3, rel=1e-12)
    assert 0 < Mano(modulus=m).chance < 1e-4


def test_recall_by_hand() -> None:
    task = MQAR(pairs=2, queries=2, keys=3, values=3)
    prompt = tokens(task, "<bos> k3 v1 k1 v2 k1")
    assert task.solve(prompt) == tokens(task, "v2")
    assert task.solve([*prompt, *tokens(task, "v2 <fill> k3")]) == tokens(task, "v1")
    assert not task.right(prompt, tokens(task, "v1"))


def test_recall_instances() -> None:
    """Pairs are distinct, each is asked at most once, and the distance is where the key stood before."""
    task = MQAR(pairs=6, queries=4, fillers=5)
    batch = task.batch(rng(), 200, packed=False)
    assert batch.tokens.shape == (200, task.longest)
    shown = batch.tokens[:, 1:13]
    assert all(len(set(row.tolist())) == 12 for row in shown)
    assert (shown[:, 0::2] <= 32).all()
    assert (shown[:, 1::2] > 32).all()
    assert ((batch.tokens == task.vocabulary.id("<fill>")).sum(1) == 5).all()
    assert (batch.loss_mask.sum(1) == 4).all()
    for q in batch.questions:
        key = batch.tokens[q.row, q.start - 1]
        assert batch.tokens[q.row, q.start - 1 - q.level] == key
        assert batch.tokens[q.row, q.start - q.level] == batch.tokens[q.row, q.start]
        assert (batch.tokens[q.row] == key).sum() == 2


def test_recall_chance_is_a_value_not_given_yet() -> None:
    task = build("mqar", pairs=4, queries=4)
    batch = task.batch(rng(), 500, packed=False)
    generator, guesses = rng(1), []
    for prompt in batch.prompts():
        left = sorted(set(prompt[2:9:2].tolist()) - set(prompt[9:].tolist()))
        guesses.append([left[generator.integers(len(left))]])
    assert task.chance == pytest.approx((1 / 4 + 1 / 3 + 1 / 2 + 1) / 4)
    assert abs(task.accuracy(batch, guesses) - task.chance) < 5 * (task.chance / 2000) ** 0.5
    assert build("mqar", pairs=4, queries=1).chance == 1 / 4
