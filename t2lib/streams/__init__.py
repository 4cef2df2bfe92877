"""Residual streams by name: what a sublayer reads of the earlier ones, and how its output is written.

`STREAMS` names the designs without loading torch; `build("denseformer", width=96, blocks=8, period=2)` makes
one, a `Stream` that the decoder can carry (`Decoder(stream="denseformer")`) or that you can walk by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from t2lib.catalogue import Catalogue, Entry

if TYPE_CHECKING:
    from t2lib.streams.stream import Stream

__all__ = ["STREAMS", "build", "options_of"]


STREAMS = Catalogue(
    "stream",
    {
        "prenorm": Entry("t2lib.streams.prenorm", "PreNorm", "arXiv 2002.04745"),
        "elc_bert": Entry("t2lib.streams.elc_bert", "ELCBert", "arXiv 2311.02265"),
        "denseformer": Entry("t2lib.streams.denseformer", "DenseFormer", "arXiv 2402.02622"),
        "vertical_attention_reconstruction": Entry(
            "t2lib.streams.vertical_attention",
            "VerticalAttentionReconstruction",
            "OpenReview A6uabXKiXc, from its reviews",
        ),
        "hyper_connections": Entry("t2lib.streams.hyper_connections", "HyperConnections", "arXiv 2409.19606"),
        "manifold_hyper_connections": Entry(
            "t2lib.streams.manifold_hyper_connections", "ManifoldHyperConnections", "arXiv 2512.24880"
        ),
        "deep_cross_attention": Entry(
            "t2lib.streams.deep_cross_attention", "DeepCrossAttention", "arXiv 2502.06785"
        ),
        "muddformer": Entry("t2lib.streams.muddformer", "MUDDFormer", "arXiv 2502.12170"),
        "attention_residuals": Entry(
            "t2lib.streams.attention_residuals", "AttentionResiduals", "arXiv 2603.15031"
        ),
        "depth_window": Entry("t2lib.streams.depth_window", "DepthWindow", "arXiv 2603.16039"),
        "deep_delta": Entry("t2lib.streams.deep_delta", "DeepDelta", "arXiv 2601.00417"),
    },
)


def build(name: str, *, width: int, blocks: int, **options: Any) -> Stream:
    """The stream of that name for states of `width` channels and a decoder of `blocks` blocks.

    `options` are those of the design, see `options_of(name)` and its class. An unknown name or option is a
    ValueError that lists the known ones.
    """
    stream: Stream = STREAMS.build(name, width, blocks, **options)
    return stream


def options_of(name: str) -> dict[str, Any]:
    """The options of a design, each with its default; this imports torch."""
    return STREAMS.options_of(name)
