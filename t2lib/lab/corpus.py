"""The lab's corpus: the language-reference text that every CPython carries, as bytes. No download.

`pydoc_data.topics.topics` maps a topic key to the text that `help("topic")` prints. Some topics contain
others word for word (the chapter on special methods holds the topic "attribute-access"), so a split by
topic alone would put the same paragraph on both sides. Therefore topics that share a paragraph form a
family, a family goes to one side as a whole, and a shared paragraph is kept once.

The text differs a little between Python releases; `Corpus.sha256` says which one it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

VALIDATION_SHARE = 0.1
# A paragraph this long does not recur by chance; shorter ones are headings and one-line examples.
SHARED_PARAGRAPH = 60


@dataclass(frozen=True)
class Corpus:
    """Topic texts after removal of repeated paragraphs, on two sides that share no topic."""

    train_topics: dict[str, str]
    validation_topics: dict[str, str]

    @cached_property
    def train(self) -> bytes:
        return join(self.train_topics)

    @cached_property
    def validation(self) -> bytes:
        return join(self.validation_topics)

    @property
    def sha256(self) -> dict[str, str]:
        """The digest of each side, in hexadecimal."""
        return {
            "train": hashlib.sha256(self.train).hexdigest(),
            "validation": hashlib.sha256(self.validation).hexdigest(),
        }


def load_corpus(topics: Mapping[str, str] | None = None) -> Corpus:
    """Split `topics` (default: those of this Python) by families, the same way on every machine.

    A family is held out when the hash of its alphabetically first key falls below the validation share,
    which is about a tenth of the families. A topic left empty, because all of it stands elsewhere in
    its family, is dropped.
    """
    if topics is None:
        from pydoc_data.topics import topics as shipped

        topics = shipped
    family = families(topics)
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    seen: set[str] = set()
    for key in sorted(topics):
        text = without_repeats(topics[key], seen)
        if text:
            sides[position(family[key]) < VALIDATION_SHARE][key] = text
    return Corpus(*sides)


def families(topics: Mapping[str, str]) -> dict[str, str]:
    """Map each topic to the first topic, in alphabetical order, that it is linked to by shared paragraphs."""
    first = {key: key for key in topics}

    def root(key: str) -> str:
        while first[key] != key:
            key = first[key]
        return key

    owner: dict[str, str] = {}
    for key in sorted(topics):
        for paragraph in map(normalised, paragraphs(topics[key])):
            if len(paragraph) >= SHARED_PARAGRAPH:
                low, high = sorted((root(key), root(owner.setdefault(paragraph, key))))
                first[high] = low
    return {key: root(key) for key in topics}


def without_repeats(text: str, seen: set[str]) -> str:
    """`text` less the long paragraphs in `seen`; adds its own to `seen`."""
    kept = []
    for paragraph in paragraphs(text):
        key = normalised(paragraph)
        if len(key) < SHARED_PARAGRAPH or key not in seen:
            kept.append(paragraph)
        if len(key) >= SHARED_PARAGRAPH:
            seen.add(key)
    # Headings and one-line examples whose paragraphs all went carry nothing by themselves.
    return "\n\n".join(kept) if any(len(normalised(p)) >= SHARED_PARAGRAPH for p in kept) else ""


def paragraphs(text: str) -> list[str]:
    return text.strip("\n").split("\n\n")


def normalised(paragraph: str) -> str:
    """The paragraph without its line breaks and indentation, which differ between copies."""
    return " ".join(paragraph.split())


def position(key: str) -> float:
    """A fixed pseudo-random number in [0, 1) for a topic key."""
    digest = hashlib.sha256(f"split:{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def join(topics: Mapping[str, str]) -> bytes:
    return "\n\n\n".join(topics[key] for key in sorted(topics)).encode()
