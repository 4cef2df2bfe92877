"""Lano: the grammar's recipe, parser and exact counts, against enumeration and sampling."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from t2lib.lab.tasks import Grammar
from t2lib.lab.tasks.lano import Lano

# Two shapes of sentences of different lengths; symbol 0 derives 12 and 212, symbol 1 derives 11 and 2.
SMALL = Grammar(((((0, 1), (1, 0, 0)),), (((0, 1), (1, 0, 1)), ((0, 0), (1,)))))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sentences(grammar: Grammar) -> Counter[tuple[int, ...]]:
    """Every sentence with its probability, by expanding all rules; and the number of derivations."""
    below: list[Counter[tuple[int, ...]]] = [Counter({(t + 1,): 1.0}) for t in range(grammar.terminals)]  # type: ignore[dict-item]
    for level in reversed(grammar.rules):
        symbols = []
        for rules in level:
            found: Counter[tuple[int, ...]] = Counter()
            for side in rules:
                for parts in product(*(below[symbol].items() for symbol in side)):
                    text = sum((part for part, _ in parts), ())
                    found[text] += np.prod([p for _, p in parts]) / len(rules)
            symbols.append(found)
        below = symbols
    return below[0]


def grammars() -> list[Grammar]:
    return [SMALL, *(Grammar.draw(rng(seed), depth=2) for seed in range(2))]


@pytest.mark.parametrize("number", range(3))
def test_parser_and_counts_by_enumeration(number: int) -> None:
    grammar = grammars()[number]
    known = sentences(grammar)
    assert sum(known.values()) == pytest.approx(1, abs=1e-12)
    # Lengths, exactly.
    p = np.zeros(len(grammar.length_distribution))
    for sentence, probability in known.items():
        p[len(sentence)] += probability
    assert grammar.length_distribution == pytest.approx(p, abs=1e-12)
    sizes = [len(sentence) for sentence in known]
    shortest, mean, longest = grammar.lengths
    assert (shortest, longest) == (min(sizes), max(sizes))
    assert mean == pytest.approx(p @ np.arange(len(p)))
    # Probabilities of sentences, and no others: all strings of up to five terminals.
    for sentence in list(known)[:50]:
        assert grammar.accepts(sentence)
        assert grammar.probability(sentence) == pytest.approx(known[sentence], rel=1e-12)
    for length in range(6):
        for string in product(range(1, grammar.terminals + 1), repeat=length):
            assert grammar.accepts(string) == (string in known)
    # The bound on the share of sentences among strings.
    shares = np.bincount(sizes, minlength=len(p)) / float(grammar.terminals) ** np.arange(len(p))
    assert (shares <= grammar.acceptance + 1e-12).all()


def test_sampling_agrees_with_the_exact_distribution() -> None:
    generator, known = rng(), sentences(SMALL)
    drawn = Counter(tuple(SMALL.sample(generator)) for _ in range(4000))
    assert drawn.keys() <= known.keys()
    for sentence, probability in known.items():
        assert abs(drawn[sentence] - 4000 * probability) < 5 * (4000 * probability) ** 0.5 + 1


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_the_recipe(depth: int) -> None:
    for seed in range(20):
        grammar = Grammar.draw(rng(seed), depth=depth)
        assert grammar.depth == depth
        for level, symbols in enumerate(grammar.rules):
            assert len(symbols) == (3 if level else 1)
            assert all(3 <= len(rules) <= 4 for rules in symbols)
            sides = [side for rules in symbols for side in rules]
            assert len(set(sides)) == len(sides)
            assert all(2 <= len(side) <= 3 and set(side) <= {0, 1, 2} for side in sides)
    assert all(len(rules) == 3 for level in Grammar.draw(rng(), 2, most=3).rules for rules in level)


def test_length_is_counted_not_guessed_from_the_rules() -> None:
    """Of the paper's grammars the one said to have shorter sentences has longer ones; so count.

    Here, too, fewer rules do not mean shorter sentences, and the exact mean is that of the samples.
    """
    few, many = (Grammar.draw(rng(seed), depth=3, fewest=3, most=most) for seed, most in ((4, 3), (5, 4)))
    generator = rng()
    for grammar in (few, many):
        shortest, mean, longest = grammar.lengths
        drawn = [len(grammar.sample(generator)) for _ in range(1500)]
        assert shortest <= min(drawn)
        assert max(drawn) <= longest
        assert abs(np.mean(drawn) - mean) < 5 * np.std(drawn) / 1500**0.5


def test_long_sentences_of_the_depth_of_the_paper() -> None:
    grammar = Grammar.draw(rng(), depth=6)
    sentence = grammar.sample(rng(1))
    assert 64 <= len(sentence) <= 3**6
    assert grammar.accepts(sentence)
    assert not grammar.accepts(sentence[:-1])
    assert np.isfinite(grammar.acceptance).all()


def test_a_sentence_is_accepted_where_its_probability_underflows() -> None:
    """170 terminals, each one of 100: one in 1e340 sentences."""
    grammar = Grammar([[[[0] * 170]], [[[symbol] for symbol in range(100)]]])  # type: ignore[arg-type]
    sentence = [1 + i % 100 for i in range(170)]
    assert grammar.accepts(sentence)
    assert grammar.probability(sentence) == 0
    assert not grammar.accepts(sentence[1:])


def test_no_sentence_is_parsed_that_is_too_long_or_too_short() -> None:
    """The parser would need 8 TB here."""
    task = Lano()
    shortest, _, longest = task.grammar.lengths
    bos = task.vocabulary.id("<bos>")
    assert not task.right([bos], [*[1] * 10**6, bos])
    assert task.grammar.probability([1] * 10**6) == 0
    for sentence in sentences(SMALL):
        assert SMALL.accepts(sentence)
    for length in (0, shortest - 1, longest + 1):
        assert not task.grammar.accepts([1] * length)


def test_lengths_are_counted_where_their_probability_underflows() -> None:
    """200 symbols, each with one of 100 rules that makes it longer: one in 1e400 sentences."""
    grammar = Grammar([[[[0] * 200]], [[[0, 0], *([symbol] for symbol in range(99))]]])  # type: ignore[arg-type]
    assert grammar.length_distribution[-1] == 0
    assert grammar.lengths[0] == 200
    assert grammar.lengths[2] == 400
    assert grammar.accepts([1] * 400)


def test_integers_of_numpy_are_symbols() -> None:
    rules = [[[[np.int64(0), np.int8(1)], [np.uint8(1)]]]]
    grammar = Grammar(rules)  # type: ignore[arg-type]
    assert grammar == Grammar(((((0, 1), (1,)),),))
    assert {type(symbol) for side in grammar.rules[0][0] for symbol in side} == {int}


def test_chance_is_a_bound_for_strings_of_uniform_terminals() -> None:
    task, generator = Lano(), rng()
    p = task.grammar.length_distribution
    lengths = generator.choice(len(p), 400, p=p)
    accepted = np.mean([task.grammar.accepts(generator.integers(1, 4, n)) for n in lengths])
    assert accepted <= task.chance + 5 * (task.chance / 400) ** 0.5
    assert task.chance < 0.01


def test_a_sentence_ends_at_the_next_bos() -> None:
    task = Lano(SMALL)
    bos = task.vocabulary.id("<bos>")
    good = next(iter(sentences(SMALL)))
    assert task.right([bos], [*good, bos])
    assert task.right([bos], [*good, bos, 1, 1, 1])
    assert not task.right([bos], good)
    batch = task.batch(rng(), 50, packed=False)
    assert all(a[-1] == bos for a in batch.references())
    assert (batch.loss_mask == batch.valid)[:, 1:].all()
    assert task.solve([bos])[-1] == bos
    assert len(task.solve([bos])) == SMALL.lengths[0] + 1


ONE_ROOT = "rules must have at least one level, the first with one symbol"
NUMBERS = "a symbol on the right in rules of level 0 must be an integer"


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ([], ONE_ROOT),
        ([[]], ONE_ROOT),
        ([[[[0, 0]], [[1, 1]]]], ONE_ROOT),
        ([[[[0, 1], [0, 1]]]], "rules of level 0 must not hold a right-hand side twice"),
        ([[[]]], "rules of level 0 must give every symbol a right-hand side, none empty"),
        ([[[[0], []]]], "rules of level 0 must give every symbol a right-hand side, none empty"),
        ([[[[0, 2]]], [[[0, 1]], [[1, 1]]]], f"{NUMBERS} from 0 to 1, got 2"),
        ([[[[0, "a"]]]], f"{NUMBERS} of at least 0, got 'a'"),
        ([[[[0, [1]]]]], f"{NUMBERS} of at least 0, got \\[1\\]"),
        ([[[[0, True]]]], f"{NUMBERS} of at least 0, got True"),
    ],
)
def test_bad_grammars_get_a_sentence(rules: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Grammar(rules)


def test_bad_calls_get_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"grammar must be a Grammar, got int\."):
        Lano(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"context must hold the longest instance, \d+ tokens, got 9\."):
        Lano(context=9)
    with pytest.raises(ValueError, match=r"depth must be an integer from 1 to 7, got 0\."):
        Grammar.draw(rng(), 0)
    with pytest.raises(ValueError, match=r"most must be an integer from 3 to 12, got 2\."):
        Grammar.draw(rng(), most=2)
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator"):
        Grammar.draw(0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rules must be nested as levels, .*; got 0 for a list\."):
        Grammar([[[0, 1]]])  # type: ignore[arg-type,list-item]
    with pytest.raises(TypeError, match="sentence must be one-dimensional and hold integers"):
        SMALL.accepts("12")
