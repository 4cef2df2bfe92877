"""Vertical Attention, reconstructed: each block reads a softmax-weighted sum of normalised levels.

The paper's equations were not found. What stands here is put together from its abstract and its public
reviews, and was never compared with the authors' method: do not quote it as theirs. The reviews agree that
the weights are learned numbers, the same for all tokens, under a softmax, on sources divided by their norm;
what they leave open is a switch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_choice, check_flag, check_number
from t2lib.streams import cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass


class Content(NamedTuple):
    sources: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]
    x: Tensor
    # Within a block: what its MLP reads, and what it adds to.
    u: Tensor | None = None
    onto: Tensor | None = None


class VerticalAttentionReconstruction(Stream):
    """r_l = Σ_j softmax(a_l)_j h_j / norm(h_j);  u = r_l + A(r_l),  h_{l+1} = u + F(u);  output h_L.

    A and F are attention and MLP behind their norms. The scale of the stream is set anew at every block.

    Switches, first the default
        norm    "rms": sqrt(mean(h²) + eps); "l2": sqrt(sum(h²)); "none": 1
        source  "block": h_{l+1} as above; "branch": A + F alone, and a last read makes the output
        skip    True; False: h_{l+1} = A + F
        start   "uniform": all logits 0; "last": 1 for the newest source

    The plain decoder is out of reach: even with all weight on h_l the read is h_l / norm(h_l).

    Parameters  L(L+1)/2 logits; (L+1)(L+2)/2 with a last read
    Cost        2d FLOPs a source, 3d a level for its norm; L + 1 live states
    Source      OpenReview A6uabXKiXc: abstract and reviews. The switches are ours.
    """

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        norm: str = "rms",
        source: str = "block",
        skip: bool = True,
        start: str = "uniform",
        eps: float = 1e-6,
    ) -> None:
        super().__init__(width, blocks)
        self.norm = check_choice("norm", norm, ("rms", "l2", "none"))
        self.source = check_choice("source", source, ("block", "branch"))
        self.skip = check_flag("skip", skip)
        self.newest = check_choice("start", start, ("uniform", "last")) == "last"
        self.eps = check_number("eps", eps)
        if eps < 0:
            raise ValueError(f"eps must be at least 0; got {eps}.")
        reads = blocks + (source == "branch")
        self.logits = nn.ParameterList(nn.Parameter(torch.empty(read + 1)) for read in range(reads))
        self.initialise()

    def initialise(self) -> None:
        with torch.no_grad():
            for logits in self.logits:
                logits.zero_()
                logits[-1] = float(self.newest)

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return self._next((), (), embedding)

    def _next(self, sources: tuple[Tensor, ...], scales: tuple[Tensor, ...], h: Tensor) -> Content:
        """One more source, and what the next block reads; h itself where nothing is read any more."""
        sources = (*sources, h)
        if len(sources) > len(self.logits):
            return Content(sources, scales, h)
        scales = (*scales, self._scale(h))
        weights = torch.softmax(self.logits[len(sources) - 1], -1)
        weights = weights * torch.stack(scales, -1).to(weights.dtype)
        return Content(sources, scales, depth_mix(sources, token_weights=weights.to(h.dtype)))

    def _scale(self, h: Tensor) -> Tensor:
        """1 / norm(h) of every token."""
        wide = h if h.dtype == torch.float64 else h.float()
        if self.norm == "none":
            return torch.ones_like(wide[..., 0])
        square = wide.square()
        size = square.sum(-1) if self.norm == "l2" else square.mean(-1) + self.eps
        return self.held(torch.rsqrt(size))

    def _read(self, content: Content, i: int) -> Tensor:
        return content.x if content.u is None else content.u

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        if content.onto is None:
            u = content.x + y
            # The branches alone never hold x: taken off again, it would leave its rounding behind.
            alone = not self.skip or self.source == "branch"
            return content._replace(u=u, onto=y if alone else u)
        return self._next(content.sources, content.scales, content.onto + y)

    def _finish(self, content: Content, place: int) -> Tensor:
        if content.u is not None:
            return content.u
        return content.x if self.source == "branch" else content.sources[-1]

    def cost(self) -> cost.Cost:
        return cost.vertical_attention(
            self.width, self.blocks, norm=self.norm != "none", output=self.source == "branch"
        )
