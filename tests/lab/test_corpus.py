"""The corpus is split without a leak, and the trigram is a probability."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from t2lib.lab import baseline
from t2lib.lab.corpus import (
    SHARED_PARAGRAPH,
    Corpus,
    families,
    load_corpus,
    normalised,
    paragraphs,
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def long_paragraphs(topics: dict[str, str]) -> list[str]:
    found = [normalised(part) for text in topics.values() for part in paragraphs(text)]
    return [part for part in found if len(part) >= SHARED_PARAGRAPH]


def test_sides_share_no_topic_and_no_paragraph(corpus: Corpus) -> None:
    """Topics repeat each other word for word; what is held out must not stand in the training text."""
    assert not corpus.train_topics.keys() & corpus.validation_topics.keys()
    train, validation = long_paragraphs(corpus.train_topics), long_paragraphs(corpus.validation_topics)
    assert not set(train) & set(validation)
    assert len(set(train)) == len(train)
    assert len(validation) > 50


def test_both_sides_have_a_useful_size(corpus: Corpus) -> None:
    assert len(corpus.train) > 250_000
    assert 5_000 < len(corpus.validation) < len(corpus.train) / 3


def test_hash_is_that_of_the_bytes(corpus: Corpus) -> None:
    assert corpus.sha256["train"] == hashlib.sha256(corpus.train).hexdigest()
    assert corpus.sha256 == load_corpus().sha256


def test_split_by_hand() -> None:
    """Topics joined through a chain of shared paragraphs go together; the order given does not matter."""
    first, second, third = (letter * SHARED_PARAGRAPH for letter in "xyz")
    topics = {
        "b": f"B\n\n{first}\n\n{second}",
        "c": f"C\n\n{second[:30]}{second[30:]}\n\n{third}",
        "a": f"A\n\n{first}",
        "d": "D\n\n" + "w" * SHARED_PARAGRAPH,
    }
    assert families(topics) == {"a": "a", "b": "a", "c": "a", "d": "d"}
    split = load_corpus(topics)
    kept = {**split.train_topics, **split.validation_topics}
    assert kept == {"a": topics["a"], "b": f"B\n\n{second}", "c": f"C\n\n{third}", "d": topics["d"]}
    assert load_corpus(dict(reversed(topics.items()))) == split


def test_a_topic_said_elsewhere_is_dropped() -> None:
    text = "x" * SHARED_PARAGRAPH
    split = load_corpus({"a": f"A\n\n{text}", "b": f"B\n\n{text}"})
    assert {**split.train_topics, **split.validation_topics} == {"a": f"A\n\n{text}"}


def test_trigram_sums_to_one(corpus: Corpus) -> None:
    """Also after contexts that the text does not hold."""
    trigram = baseline.count(corpus.train[:20_000], (1.0, 4.0, 2.0))
    for before, last in [(116, 104), (32, 97), (0, 0), (255, 32), (101, 7)]:
        p = trigram.probabilities(before, last)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert (p > 0).all()


def test_trigram_by_hand() -> None:
    """abab: one byte, then two, then three, each mixed with the shorter context by its pull."""
    trigram = baseline.count(b"abab", (1.0, 1.0, 1.0))
    # 'a' twice of four, two kinds of byte, so a pull of 2 towards 1/256.
    one = (2 + 2 / 256) / (4 + 2)
    # After 'b' came 'a', once, one kind; after 'ab' came 'a', once.
    two = (1 + one) / 2
    assert trigram.probabilities(ord("a"), ord("b"))[ord("a")] == pytest.approx((1 + two) / 2)


def test_trigram_loss_is_the_mean_of_its_probabilities(corpus: Corpus) -> None:
    trigram = baseline.count(corpus.train[:20_000], (1.0, 4.0, 2.0))
    text = corpus.validation[:60]
    losses = [
        -np.log(trigram.probabilities(a, b)[c]) for a, b, c in zip(text, text[1:], text[2:], strict=False)
    ]
    assert trigram.loss(text) == pytest.approx(np.mean(losses), abs=1e-12)


def test_tuning_helps(corpus: Corpus) -> None:
    tuned = baseline.fit(corpus.train)
    assert tuned.loss(corpus.validation) < baseline.count(corpus.train).loss(corpus.validation)
    assert tuned.loss(corpus.train) < tuned.loss(corpus.validation)


def test_bits() -> None:
    assert baseline.bits(np.log(2)) == pytest.approx(1.0)


def test_trigram_refuses_a_text_without_a_third_byte() -> None:
    with pytest.raises(ValueError, match="text must be at least 3 bytes long, got 2"):
        baseline.count(b"abc").loss(b"ab")
