"""Local mixers along the tokens, by name: what a block does with the few tokens before each one.

`MIXERS` names them without loading torch; the decoder builds one a block: `Decoder(mixer="canon",
mixer_options={"positions": "AC"})`. Every mixer goes with every stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from t2lib.catalogue import Catalogue, Entry

if TYPE_CHECKING:
    from t2lib.mixers.mixer import Mixer, Site

__all__ = ["MIXERS", "build", "options_of"]


MIXERS = Catalogue(
    "mixer",
    {
        "none": Entry("t2lib.mixers.mixer", "NoMixer", "the plain block"),
        "short_conv": Entry(
            "t2lib.mixers.short_conv", "ShortConv", "arXiv 2109.08668, 2212.14052, 2312.00752"
        ),
        "canon": Entry("t2lib.mixers.canon", "Canon", "arXiv 2512.17351"),
        "short_swa": Entry("t2lib.mixers.short_swa", "ShortSWA", "arXiv 2603.16039, Algorithm 1"),
    },
)


def build(name: str, site: Site, **options: Any) -> Mixer:
    """The mixer of that name for one block, whose sizes are `site`.

    `options` are those of the mixer, see `options_of(name)` and its class. An unknown name or option is a
    ValueError that lists the known ones.
    """
    mixer: Mixer = MIXERS.build(name, site, **options)
    return mixer


def options_of(name: str) -> dict[str, Any]:
    """The options of a mixer, each with its default; this imports torch."""
    return MIXERS.options_of(name)
