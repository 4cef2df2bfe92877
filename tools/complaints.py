"""The one type that all rules yield."""

from __future__ import annotations

from typing import NamedTuple


class Complaint(NamedTuple):
    """A broken rule: where, which rule, and one sentence that says what is wrong."""

    place: str
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.place}: [{self.rule}] {self.sentence}"
