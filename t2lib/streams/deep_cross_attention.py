"""DeepCrossAttention: every block rebuilds its query, key and value inputs from all earlier block outputs.

    G = [f_0, f_1, ..., f_{l-1}]              the embedding and what each block added, oldest first
    GRN(G) = Σ_j (b_j + s_j) ⊙ f_j            s_j = ReLU(w · f_j), one number a source and token
    q, k, v = GRN_q(G), GRN_k(G), GRN_v(G)
    a = Attention(q, k, v),   f_l = a + MLP(a + q)
    output = GRN_out([f_0, ..., f_L])

There is no running residual: the query stream is what the MLP reads beside the attention output, and it is
no part of f_l. At b = 1 and w = 0 every GRN is the plain sum, and the network is the pre-norm decoder.
Source: arXiv 2502.06785; lucidrains/deep-cross-attention (third party) where `selection` and `inner_norm`
say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_choice, check_eps, check_flag, check_integer
from t2lib.streams.cost import Cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass

Held = Callable[[Tensor], Tensor]

VERSIONS = ("v1", "v2", "v3")
SELECTIONS = ("sum", "first_last")
GATES = ("relu", "half")


class GRN(nn.Module):
    """`outputs` generalised residual sums over one list of sources, (..., d) each -> (outputs, ..., d).

    version  "v1": b_j is a number; "v2": a number a channel; "v3": a number a channel, plus the gate s_j
    gate     "relu": ReLU with the usual derivative 0 at 0. With w = 0 every argument is exactly 0, so w gets
             no gradient and never leaves 0. "half": the same function, max(x, 0), with derivative 1/2 at the
             tie
    eps      with a number, w · f_j becomes w · (gain ⊙ RMS(f_j)), the third-party form; None is the paper's

    Given fewer sources than it has weights for, it takes the first rows.
    """

    def __init__(
        self, width: int, sources: int, outputs: int, version: str, gate: str, eps: float | None
    ) -> None:
        super().__init__()
        self.outputs, self.gate, self.eps = outputs, gate, eps
        channels = () if version == "v1" else (width,)
        self.static = nn.Parameter(torch.ones(outputs, sources, *channels))
        dynamic = version == "v3"
        self.dynamic = nn.Parameter(torch.zeros(outputs, width)) if dynamic else None
        self.gain = nn.Parameter(torch.ones(width)) if dynamic and eps is not None else None

    def initialise(self) -> None:
        nn.init.ones_(self.static)
        if self.dynamic is not None:
            nn.init.zeros_(self.dynamic)
        if self.gain is not None:
            nn.init.ones_(self.gain)

    def gates(self, sources: tuple[Tensor, ...]) -> Tensor | None:
        """s_j of every output, (..., outputs, n); None where there are none."""
        if self.dynamic is None:
            return None
        scores = []
        for source in sources:
            if self.gain is not None:
                source = F.rms_norm(source, source.shape[-1:], self.gain, self.eps)
            # Under autocast the product is half precision, the states are not.
            scores.append(F.linear(source, self.dynamic).to(source.dtype))
        score = torch.stack(scores, -1)
        # The maximum of two equal tensors hands half of the gradient to each.
        return score.relu() if self.gate == "relu" else torch.maximum(score, torch.zeros_like(score))

    def forward(self, sources: tuple[Tensor, ...], held: Held) -> Tensor:
        gates = self.gates(sources)
        static, gates = self.static[:, : len(sources)], None if gates is None else held(gates)
        mixed: Tensor = depth_mix(sources, static, gates, outputs=self.outputs)
        return mixed


class Content(NamedTuple):
    """What is kept of the block outputs, and what the block under way reads."""

    first: tuple[Tensor, ...]
    middle: Tensor | None
    recent: tuple[Tensor, ...]
    reads: tuple[Tensor, ...]
    attention: Tensor | None = None

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The stack G, oldest first."""
        return (*self.first, *(() if self.middle is None else (self.middle,)), *self.recent)


class DeepCrossAttention(Stream):
    """DeepCrossAttention and its ablations; `window=k` is k-DCA.

    window      None keeps all outputs apart; k keeps the embedding, the last k outputs, and the sum of the
                others as one more source: at most k + 2 sources
    version     "v1", "v2" or "v3": see `GRN`
    multiway    one GRN each for query, key and value; False feeds the three from one, as in the paper's
                ablations
    selection   "sum" is the paper's k-DCA; "first_last" is the third-party code's, which keeps the first k
                and the last k outputs and drops the others. It is no longer the pre-norm decoder at the
                start
    gate        "relu" as prescribed, dead at the start; "half" avoids that: see `GRN`
    inner_norm  the third-party form of the gate, with an RMSNorm inside
    """

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        window: int | None = None,
        version: str = "v3",
        multiway: bool = True,
        selection: str = "sum",
        gate: str = "relu",
        inner_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(width, blocks)
        self.window = None if window is None else check_integer("window", window, 1)
        check_choice("version", version, VERSIONS)
        self.selection = check_choice("selection", selection, SELECTIONS)
        check_choice("gate", gate, GATES)
        self.multiway = check_flag("multiway", multiway)
        eps = check_eps("norm_eps", norm_eps) if check_flag("inner_norm", inner_norm) else None
        if version != "v3" and (gate != "relu" or inner_norm):
            raise ValueError(f"gate and inner_norm are read with version='v3' only; got version={version!r}.")
        self.identity_at_start = self.selection == "sum" or len(self.members(blocks + 1)) == blocks + 1

        def grn(outputs: int, ways: int) -> GRN:
            return GRN(width, len(self.members(outputs)), ways, version, gate, eps)

        self.grns = nn.ModuleList(grn(block + 1, 3 if self.multiway else 1) for block in range(blocks))
        self.grn_out = grn(blocks + 1, 1)
        self.mixing = "number" if version == "v1" else "channel"

    def initialise(self) -> None:
        for grn in (*self.grns, self.grn_out):
            grn.initialise()

    def ways(self, i: int) -> tuple[str, ...]:
        return ("query", "key", "value") if self.multiway and i % 2 == 0 else ("x",)

    def members(self, outputs: int) -> list[tuple[int, ...]]:
        """Which of f_0 ... f_{outputs-1} each source is the sum of, oldest first."""
        k = self.window
        alone: list[tuple[int, ...]] = [(j,) for j in range(outputs)]
        if k is None:
            return alone
        if self.selection == "first_last":
            return alone if outputs <= 2 * k else alone[:k] + alone[-k:]
        if outputs <= k + 1:
            return alone
        return [(0,), tuple(range(1, outputs - k)), *alone[-k:]]

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return self._ready(Content((embedding,), None, (), ()), 0)

    def _read(self, content: Content, i: int) -> Tensor | dict[str, Tensor]:
        if i % 2:
            assert content.attention is not None
            return content.attention + content.reads[0]
        return dict(zip(self.ways(i), content.reads, strict=True)) if self.multiway else content.reads[0]

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        if i % 2 == 0:
            return content._replace(attention=y)
        assert content.attention is not None
        return self._ready(self._append(content, content.attention + y), i // 2 + 1)

    def _finish(self, content: Content, place: int) -> Tensor:
        if content.attention is not None:
            content = self._append(content, content.attention)
        output: Tensor = self.grn_out(content.sources, self.held)[0]
        return output

    def _ready(self, content: Content, block: int) -> Content:
        """With the inputs of the coming block, which its two sublayers share; none after the last block."""
        if block == self.blocks:
            return content._replace(reads=(), attention=None)
        return content._replace(reads=self.grns[block](content.sources, self.held).unbind(0), attention=None)

    def _append(self, content: Content, output: Tensor) -> Content:
        """Add the output of a block to what is kept."""
        first, middle, recent, k = content.first, content.middle, (*content.recent, output), self.window
        if k is None:
            return content._replace(recent=recent)
        if self.selection == "first_last":
            if len(first) < k:
                return content._replace(first=(*first, output))
            return content._replace(recent=recent[-k:])
        if len(recent) > k:
            middle = recent[0] if middle is None else middle + recent[0]
        return content._replace(middle=middle, recent=recent[-k:])

    def cost(self) -> Cost:
        """5d FLOPs a source and GRN with the gate, 2d without, and d for every output that joins the sum.

        Vectors: a block reads its sources once, writes its ways, makes the input of the MLP (read two, write
        one) and its output (the same); joining the sum takes three more. One last read of all sources makes
        the output.
        """
        ways = 3 if self.multiway else 1
        sources = [len(self.members(block + 1)) for block in range(self.blocks)]
        last = len(self.members(self.blocks + 1))
        summed = self.selection == "sum" and self.window is not None
        joins = max(0, self.blocks - (self.window or 0) - 1) if summed else 0
        visit = 5 if self.grn_out.dynamic is not None else 2
        return Cost(
            flops=visit * self.width * (ways * sum(sources) + last) + self.width * joins,
            parameters=sum(parameter.numel() for parameter in self.parameters()),
            vectors=sum(sources) + (ways + 6) * self.blocks + 3 * joins + last + 1,
            live=last,
            cache=0,
            boundary=tuple(sources[1:]),
        )
