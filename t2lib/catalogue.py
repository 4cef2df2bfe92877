"""Designs by name, without loading torch before one is built: what the lists of streams and mixers share."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One design: the module and the class where it is written, and the paper it comes from."""

    module: str
    cls: str
    source: str

    def load(self) -> Any:
        """The class itself; this imports torch."""
        return getattr(importlib.import_module(self.module), self.cls)


class Catalogue(dict[str, Entry]):
    """The designs of one kind by name; `kind` is what its sentences call one of them."""

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        super().__init__(entries)
        self.kind = kind

    def entry(self, name: Any) -> Entry:
        """The entry of that name, or one sentence that lists the names."""
        if not isinstance(name, str) or name not in self:
            raise ValueError(f"{self.kind} must be one of {', '.join(map(repr, self))}; got {name!r}.")
        return self[name]

    def options_of(self, name: str) -> dict[str, Any]:
        """The options of a design, each with its default; this imports torch."""
        parameters = inspect.signature(self.entry(name).load().__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check_options(self, name: str, options: Mapping[str, Any]) -> None:
        """Options that the design takes, or one sentence that lists them."""
        known = self.options_of(name)
        for option in options:
            if option not in known:
                takes = ", ".join(map(repr, known)) or "none"
                raise ValueError(f"options of {self.kind} {name!r} are {takes}; got {option!r}.")

    def build(self, name: str, *arguments: Any, **options: Any) -> Any:
        """One of that name, from what all of its kind take and from its own options."""
        self.check_options(name, options)
        return self[name].load()(*arguments, **options)
