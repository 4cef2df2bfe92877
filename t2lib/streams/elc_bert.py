"""ELC-BERT: no skip connection; each block reads a learned convex combination of all earlier outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_choice
from t2lib.streams import cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass

VARIANTS = ("base", "zero", "normalized", "weighted_output")


class Content(NamedTuple):
    sources: tuple[Tensor, ...]
    x: Tensor
    attention: Tensor | None


class ELCBert(Stream):
    """x_l = Σ_i softmax(a_l)_i h_i over the embedding h_0 and the outputs h_1 ... h_{l-1} of earlier blocks.

    The block is the unit. With A and F for attention and MLP, each behind its norm, and A = A(x):

        variant            logits at the start  h_l                      output
        "base"             0, ..., 0, 1         A + F(A)                 h_L
        "zero"             0                    A + F(x + A)             h_L
        "normalized"       0                    LayerNorm(A + F(x + A))  h_L
        "weighted_output"  0                    A + F(x + A)             Σ softmax(a_out)_i h_i

    x itself never reaches h_l by addition. The LayerNorm has no gain, no bias and eps = 1e-7. The only
    logit of block 1 is dead: a softmax over one entry is 1.

    At levels below the last, "weighted_output" takes the output logits of the sources that are there.

    Parameters  L(L+1)/2 logits, L + 1 more for "weighted_output"
    Cost        2d FLOPs a source; L + 1 live states
    Source      arXiv 2311.02265; the variants as in ltgoslo/elc-bert
    """

    def __init__(self, width: int, blocks: int, *, variant: str = "zero") -> None:
        super().__init__(width, blocks)
        self.variant = check_choice("variant", variant, VARIANTS)
        # Taking the mean away mixes the channels.
        self.mixing = "matrix" if variant == "normalized" else "number"
        self.logits = nn.ParameterList(nn.Parameter(torch.empty(block + 1)) for block in range(blocks))
        if variant == "weighted_output":
            self.output_logits = nn.Parameter(torch.empty(blocks + 1))
        self.initialise()

    def initialise(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        if self.variant == "base":
            with torch.no_grad():
                for logits in self.logits:
                    logits[-1] = 1.0

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return self._next((embedding,))

    def _next(self, sources: tuple[Tensor, ...]) -> Content:
        """Before a block: what it reads."""
        return Content(sources, convex(sources, self.logits[len(sources) - 1]), None)

    def _read(self, content: Content, i: int) -> Tensor:
        if content.attention is None:
            return content.x
        return content.attention if self.variant == "base" else content.x + content.attention

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        if content.attention is None:
            return content._replace(attention=y)
        h = content.attention + y
        if self.variant == "normalized":
            wide = h if h.dtype == torch.float64 else h.float()
            wide = wide - wide.mean(-1, keepdim=True)
            scale = self.held(torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-7))
            h = (wide * scale).to(h.dtype)
        sources = (*content.sources, h)
        return self._next(sources) if i + 1 < self.sublayers else Content(sources, h, None)

    def _finish(self, content: Content, place: int) -> Tensor:
        if content.attention is not None:
            return self._read(content, place)
        if self.variant != "weighted_output":
            return content.sources[-1]
        return convex(content.sources, self.output_logits[: len(content.sources)])

    def cost(self) -> cost.Cost:
        return cost.elc_bert(self.width, self.blocks, output=self.variant == "weighted_output")


def convex(sources: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    """Σ softmax(logits)_i sources_i."""
    mixed: Tensor = depth_mix(sources, torch.softmax(logits, -1).to(sources[0].dtype))
    return mixed
