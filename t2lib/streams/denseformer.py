"""DenseFormer: after a block, a learned weighted average of its output and all earlier ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_integer
from t2lib.streams import cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass


class Content(NamedTuple):
    outputs: dict[int, Tensor]
    h: Tensor


class DenseFormer(Stream):
    """Y_i = Σ_{j ≤ i, j ≡ i mod k} α_ij X_j after block i if the period p divides i, else Y_i = X_i.

    X_0 is the embedding, X_i = Y_{i-1} + attention + MLP the output of block i, residual included; Y_L goes
    to the final norm. k is the dilation; both count blocks. The weights have any sign and any sum, are the
    same for all tokens and channels, and start at α_ii = 1 and 0 elsewhere: the plain stream exactly. Weight
    decay would pull them to 0, not back to that start.

    Outputs that no later average reaches are let go.

    Parameters  floor(i/k) + 1 after each block i that p divides; L(L+3)/2 for k = p = 1
    Cost        2d FLOPs a source; L + 1 live states for k = p = 1
    Source      arXiv 2402.02622; the period is that of the paper and of the authors' package, not that of
                their experiment code, which stores every p-th output only
    """

    identity_at_start = True

    def __init__(self, width: int, blocks: int, *, dilation: int = 1, period: int = 1) -> None:
        super().__init__(width, blocks)
        self.dilation = check_integer("dilation", dilation, 1)
        self.period = check_integer("period", period, 1)
        averages = range(period, blocks + 1, period)
        if all(len(self.sources(i)) == 1 for i in averages):
            raise ValueError(
                f"dilation and period must let an average reach an earlier output of the {blocks} blocks; "
                f"got dilation={dilation}, period={period}."
            )
        self.averages = nn.ParameterDict(
            {str(i): nn.Parameter(torch.empty(len(self.sources(i)))) for i in averages}
        )
        # After which average an output is wanted no more.
        self.last = [max((i for i in averages if j in self.sources(i)), default=j) for j in range(blocks + 1)]
        self.initialise()

    def sources(self, i: int) -> range:
        """The outputs that the average after block i reads, oldest first."""
        return range(i % self.dilation, i + 1, self.dilation)

    def initialise(self) -> None:
        with torch.no_grad():
            for weights in self.averages.values():
                weights.zero_()
                weights[-1] = 1.0

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return Content({0: embedding}, embedding)

    def _read(self, content: Content, i: int) -> Tensor:
        return content.h

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        h = content.h + y
        if i % 2 == 0:
            return content._replace(h=h)
        block = i // 2 + 1
        outputs = {**content.outputs, block: h}
        if block % self.period == 0:
            weights = self.averages[str(block)].to(h.dtype)
            h = depth_mix([outputs[j] for j in self.sources(block)], weights)
        return Content({j: x for j, x in outputs.items() if self.last[j] > block}, h)

    def _finish(self, content: Content, place: int) -> Tensor:
        return content.h

    def cost(self) -> cost.Cost:
        return cost.denseformer(self.width, self.blocks, dilation=self.dilation, period=self.period)
