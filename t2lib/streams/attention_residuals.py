"""Attention Residuals: every sublayer reads a softmax mixture of the embedding and the earlier branch
outputs.

    read_i = Σ_j a_ij v_j,    a_i = softmax_j( w_i · (g_i ⊙ RMS(v_j)) )

Full: the v_j are the embedding and all branch outputs so far. Block, with S sublayers a block: they are the
embedding, the sums of the finished blocks, and the running sum of the block under way once it has one. The
read replaces the residual: nothing is added to it. S counts sublayers, S = 1 is Full, and the last block may
be short.
Source: arXiv 2603.15031; fla-org/flash-linear-attention; catswe/flash-attention-residuals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops import depth_attention, depth_attention_partial, depth_mix
from t2lib.ops._checks import check_eps, check_flag, check_integer
from t2lib.streams.cost import Cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass


class Phase(NamedTuple):
    """The first phase: reads and log-sum-exps of several sublayers at once, over the sources that stood
    there."""

    first: int
    covered: int
    reads: Tensor
    lses: Tensor


class Content(NamedTuple):
    """The finished sources, the running sum of the block under way, and the first phase if there is one."""

    sealed: tuple[Tensor, ...]
    live: Tensor | None
    phase: Phase | None

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return self.sealed if self.live is None else (*self.sealed, self.live)


class AttentionResiduals(Stream):
    """Attention Residuals, full and block.

    block_size   S, from 1 (Full) to 2L; it need not divide 2L
    two_phase    score the queries of several sublayers against the sources that are finished in one pass,
                 and merge what comes later by the online softmax: the same result, and each finished source
                 is read once
    schedule     how many sublayers a first phase serves; None is block_size, or 8 for Full
    input_query  add a query projected from the newest source, q = v W, per sublayer; W starts at zero. The
                 report's ablation does not say which state it projects; the newest source is our choice.
                 Excludes two_phase

    The pseudo-queries start at zero, so every read is the mean of its sources: the pre-norm stream divided
    by their number. Behind a norm with eps = 0 that is the pre-norm decoder exactly, with eps = 1e-6 nearly.
    `identity_at_start` means this, up to scale and eps. The first read has one source and is the identity:
    its query never matters.
    """

    identity_at_start = True

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        block_size: int = 1,
        two_phase: bool = False,
        schedule: int | None = None,
        input_query: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(width, blocks)
        self.size = check_integer("block_size", block_size, 1)
        if self.size > self.sublayers:
            takes = f"at most 2 * blocks = {self.sublayers}, in sublayers"
            raise ValueError(f"block_size must be {takes}; got {block_size}.")
        self.two_phase = check_flag("two_phase", two_phase)
        if schedule is not None and not two_phase:
            raise ValueError(f"schedule is read with two_phase=True only; got schedule={schedule!r}.")
        default = self.size if self.size > 1 else 8
        self.schedule = default if schedule is None else check_integer("schedule", schedule, 1)
        if check_flag("input_query", input_query) and two_phase:
            raise ValueError(
                "two_phase must be False with input_query=True, whose queries wait for the state."
            )
        self.eps = check_eps("norm_eps", norm_eps)
        self.pseudo_queries = nn.Parameter(torch.empty(self.sublayers + 1, width))
        self.gains = nn.Parameter(torch.empty(self.sublayers + 1, width))
        projections = torch.empty(self.sublayers + 1, width, width) if input_query else None
        self.projections = None if projections is None else nn.Parameter(projections)
        self.initialise()

    def initialise(self) -> None:
        nn.init.zeros_(self.pseudo_queries)
        nn.init.ones_(self.gains)
        if self.projections is not None:
            nn.init.zeros_(self.projections)

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return self._with_phase(Content((embedding,), None, None), 0)

    def _read(self, content: Content, i: int) -> Tensor:
        sources, phase = content.sources, content.phase
        if len(sources) == 1:
            return sources[0]
        if self._holding:
            return self._held_read(sources, i)
        if phase is None:
            return self._attend(sources, i, query=self._query(sources, i))
        before = (phase.reads[i - phase.first], phase.lses[i - phase.first])
        later = sources[phase.covered :]
        if not later:
            return before[0]
        return self._attend(later, i, parts=[before])

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        live = y if content.live is None else content.live + y
        if (i + 1) % self.size and i + 1 < self.sublayers:
            return self._with_phase(content._replace(live=live), i + 1)
        return self._with_phase(content._replace(sealed=(*content.sealed, live), live=None), i + 1)

    def _finish(self, content: Content, place: int) -> Tensor:
        # Whatever the place, the query is that of the output.
        return self._read(content._replace(phase=None), self.sublayers)

    def _attend(self, sources: tuple[Tensor, ...], i: int, **options: Any) -> Tensor:
        read: Tensor = depth_attention(
            sources, self.pseudo_queries[i], gain=self.gains[i], eps=self.eps, **options
        )
        return read

    def _query(self, sources: tuple[Tensor, ...], i: int) -> Tensor | None:
        # Under autocast the product is half precision, the states are not.
        return None if self.projections is None else (sources[-1] @ self.projections[i]).to(sources[-1].dtype)

    def _held_read(self, sources: tuple[Tensor, ...], i: int) -> Tensor:
        """The same read with its weights as constants."""
        weights = self.held(self.weights(sources, i))
        read: Tensor = depth_mix(sources, None, weights)
        return read

    def weights(self, sources: tuple[Tensor, ...], i: int) -> Tensor:
        """The softmax weights with which sublayer i, or the output for i = 2L, reads n sources: (..., n)."""
        own, ask = self._query(sources, i), self.pseudo_queries[i]
        ask = self.gains[i] * (ask if own is None else ask + own)
        scores = [(ask * x).sum(-1) * torch.rsqrt(x.square().mean(-1) + self.eps) for x in sources]
        return torch.softmax(torch.stack(scores, -1), -1)

    def _with_phase(self, content: Content, i: int) -> Content:
        """Start a first phase before sublayer i if the schedule says so; none for the output."""
        if not self.two_phase or self._holding or i % self.schedule or i == self.sublayers:
            return content
        mine = slice(i, min(i + self.schedule, self.sublayers))
        queries, gains = self.pseudo_queries[mine], self.gains[mine]
        reads, lses = depth_attention_partial(content.sealed, queries, gains=gains, eps=self.eps)
        return content._replace(phase=Phase(i, len(content.sealed), reads, lses))

    def cost(self) -> Cost:
        """6d FLOPs a query and source, the read of the output included, and 2d² a query that is projected.

        Vectors, in one phase: a read takes its sources and writes one. In two: a first phase takes the
        finished sources and writes a partial read a query; a read takes that and the later sources, and
        writes one. Adding to a running sum takes three.
        """
        visits = vectors = 0
        for i in range(self.sublayers):
            sealed, live = 1 + i // self.size, int(i % self.size > 0)
            begun = i - i % self.schedule
            covered = 1 + begun // self.size
            visits += sealed + live
            vectors += 3 * live + 1
            if not self.two_phase:
                vectors += sealed + live
            else:
                vectors += 1 + sealed + live - covered
                if i == begun:
                    vectors += covered + min(self.schedule, self.sublayers - i)
        last = 1 + -(-self.sublayers // self.size)
        flops = 6 * self.width * (visits + last)
        if self.projections is not None:
            flops += 2 * self.width**2 * (self.sublayers + 1)
        return Cost(
            flops=flops,
            parameters=sum(parameter.numel() for parameter in self.parameters()),
            vectors=vectors + last + 1,
            live=last,
            cache=0,
            boundary=tuple(1 + -(-2 * block // self.size) for block in range(1, self.blocks)),
        )
