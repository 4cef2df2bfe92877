"""Local mixers along the tokens, by name: what a block does with the few tokens before each one.

`MIXERS` names them without loading torch; the decoder builds one a block: `Decoder(mixer="canon",
mixer_options={"positions": "AC"})`. Every mixer goes with every stream.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from t2lib.mixers.mixer import Mixer, Site

__all__ = ["MIXERS", "Kind", "build", "check_name", "check_options", "options_of"]


class Kind(NamedTuple):
    """One mixer: its class, where it is written, and where it comes from."""

    file: str
    cls: str
    source: str

    def load(self) -> type[Mixer]:
        """The class itself; this imports torch."""
        found: type[Mixer] = getattr(importlib.import_module(f"t2lib.mixers.{self.file}"), self.cls)
        return found


MIXERS: dict[str, Kind] = {
    "none": Kind("mixer", "NoMixer", "the plain block"),
    "short_conv": Kind("short_conv", "ShortConv", "arXiv 2109.08668, 2212.14052, 2312.00752"),
    "canon": Kind("canon", "Canon", "arXiv 2512.17351"),
    "short_swa": Kind("short_swa", "ShortSWA", "arXiv 2603.16039, Algorithm 1"),
}


def build(name: str, site: Site, **options: Any) -> Mixer:
    """The mixer of that name for one block, whose sizes are `site`.

    `options` are those of the mixer, see `options_of(name)` and its class. An unknown name or option is a
    ValueError that lists the known ones.
    """
    check_options(name, options)
    return MIXERS[name].load()(site, **options)


def check_name(name: str) -> str:
    """A name of `MIXERS`, or one sentence that lists them."""
    if not isinstance(name, str) or name not in MIXERS:
        raise ValueError(f"mixer must be one of {', '.join(map(repr, MIXERS))}; got {name!r}.")
    return name


def check_options(name: str, options: dict[str, Any]) -> None:
    """Options that the mixer takes, or one sentence that lists them."""
    known = options_of(check_name(name))
    for option in options:
        if option not in known:
            takes = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"options of mixer {name!r} are {takes}; got {option!r}.")


def options_of(name: str) -> dict[str, Any]:
    """The options of a mixer, each with its default; this imports torch."""
    parameters = inspect.signature(MIXERS[check_name(name)].load().__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
