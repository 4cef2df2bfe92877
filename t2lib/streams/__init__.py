"""Residual streams by name: what a sublayer reads of the earlier ones, and how its output is written.

`STREAMS` names the designs without loading torch; `build("denseformer", width=96, blocks=8, period=2)` makes
one, a `Stream` that the decoder can carry (`Decoder(stream="denseformer")`) or that you can walk by hand.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from t2lib.streams.stream import Stream

__all__ = ["STREAMS", "Design", "build", "check_name", "check_options", "options_of"]


class Design(NamedTuple):
    """One design: its class, where it is written, and the paper it comes from."""

    file: str
    cls: str
    source: str

    def load(self) -> type[Stream]:
        """The class itself; this imports torch."""
        found: type[Stream] = getattr(importlib.import_module(f"t2lib.streams.{self.file}"), self.cls)
        return found


STREAMS: dict[str, Design] = {
    "prenorm": Design("prenorm", "PreNorm", "arXiv 2002.04745"),
    "elc_bert": Design("elc_bert", "ELCBert", "arXiv 2311.02265"),
    "denseformer": Design("denseformer", "DenseFormer", "arXiv 2402.02622"),
    "vertical_attention_reconstruction": Design(
        "vertical_attention", "VerticalAttentionReconstruction", "OpenReview A6uabXKiXc, from its reviews"
    ),
    "hyper_connections": Design("hyper_connections", "HyperConnections", "arXiv 2409.19606"),
    "manifold_hyper_connections": Design(
        "manifold_hyper_connections", "ManifoldHyperConnections", "arXiv 2512.24880"
    ),
    "deep_cross_attention": Design("deep_cross_attention", "DeepCrossAttention", "arXiv 2502.06785"),
    "muddformer": Design("muddformer", "MUDDFormer", "arXiv 2502.12170"),
    "attention_residuals": Design("attention_residuals", "AttentionResiduals", "arXiv 2603.15031"),
    "depth_window": Design("depth_window", "DepthWindow", "arXiv 2603.16039"),
    "deep_delta": Design("deep_delta", "DeepDelta", "arXiv 2601.00417"),
}


def build(name: str, *, width: int, blocks: int, **options: Any) -> Stream:
    """The stream of that name for states of `width` channels and a decoder of `blocks` blocks.

    `options` are those of the design, see `options_of(name)` and its class. An unknown name or option is a
    ValueError that lists the known ones.
    """
    check_options(name, options)
    return STREAMS[name].load()(width, blocks, **options)


def check_name(name: str) -> str:
    """A name of `STREAMS`, or one sentence that lists them."""
    if not isinstance(name, str) or name not in STREAMS:
        raise ValueError(f"stream must be one of {', '.join(map(repr, STREAMS))}; got {name!r}.")
    return name


def check_options(name: str, options: dict[str, Any]) -> None:
    """Options that the design takes, or one sentence that lists them."""
    known = options_of(check_name(name))
    for option in options:
        if option not in known:
            takes = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"options of stream {name!r} are {takes}; got {option!r}.")


def options_of(name: str) -> dict[str, Any]:
    """The options of a design, each with its default; this imports torch."""
    parameters = inspect.signature(STREAMS[check_name(name)].load().__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
