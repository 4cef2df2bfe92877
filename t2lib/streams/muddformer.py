"""MUDDFormer: after every block, four aggregates of all block outputs, with weights made from the newest one.

    A   = reshape(GELU(RMS(X_l) W1) W2, C × n) + a        per token; a is the static prior
    S^c = Σ_j A_{c,j} X_j,   j = 0 ... l,   n = l + 1      c in query, key, value, residual
    U   = S^residual + Attention(S^query, S^key, S^value),   X_{l+1} = U + MLP(U)

X_0 is the embedding, X_l the full output of block l, residual included. Block 1 reads X_0 everywhere; after
the last block there is one aggregate, the residual, which goes to the final norm. W2 starts at zero and a at
one for the newest source, so the network starts as the pre-norm decoder. Exact GELU, no softmax, no gain in
RMS.
Source: arXiv 2502.12170; Caiyun-AI/MUDDFormer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_choice, check_eps, check_flag
from t2lib.streams.cost import Cost, growing
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass

WAYS = ("query", "key", "value", "residual")
VARIANTS = ("plain", "prepost_code", "prepost_paper")


class Aggregate(nn.Module):
    """The depth-wise aggregate over n sources: (..., d) each -> (ways, ..., d).

    hidden is the width between W1 and W2. gain, for the pre/post variants, is the learned gain of the norm
    before W1.
    """

    def __init__(self, width: int, sources: int, ways: int, hidden: int, gain: bool, eps: float) -> None:
        super().__init__()
        self.ways, self.eps = ways, eps
        self.inner = nn.Parameter(torch.empty(width, hidden))
        self.outer = nn.Parameter(torch.empty(hidden, ways * sources))
        self.prior = nn.Parameter(torch.empty(ways, sources))
        self.gain = nn.Parameter(torch.empty(width)) if gain else None

    def initialise(self) -> None:
        nn.init.normal_(self.inner, std=self.inner.shape[0] ** -0.5)
        nn.init.zeros_(self.outer)
        nn.init.zeros_(self.prior)
        if self.gain is not None:
            nn.init.ones_(self.gain)
        else:
            # The newest source alone; the pre/post variants add it by themselves.
            with torch.no_grad():
                self.prior[:, -1] = 1.0

    def weights(self, newest: Tensor) -> Tensor:
        """A without the prior, (..., ways, n)."""
        unit = F.rms_norm(newest, newest.shape[-1:], self.gain, self.eps)
        made = F.gelu(unit @ self.inner) @ self.outer
        # Under autocast the two products are half precision, the states are not.
        return made.reshape(*made.shape[:-1], self.ways, -1).to(newest.dtype)


class Content(NamedTuple):
    """The list to be mixed (all block outputs, normalised in the pre/post variants), what the block under
    way reads, and after its attention the inner sum U."""

    sources: tuple[Tensor, ...]
    reads: tuple[Tensor, ...]
    inner: Tensor | None = None


class MUDDFormer(Stream):
    """MUDDFormer with four ways, one after the last block.

    variant  "plain" is the published main model. "prepost_code" and "prepost_paper" are two readings of its
             variant for deep and narrow models, S^c = X_l + Post(Σ_j A_{c,j} Pre_j(X_j)): the released JAX
             code has Post on the residual way only, the text on every way. Both are UNVERIFIED: no released
             model that runs has them, and nothing here was compared with one
    round64  the released option that rounds the hidden width of the weight network up to the next multiple
             of 64, strictly: 64 becomes 128
    """

    identity_at_start = True

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        variant: str = "plain",
        round64: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(width, blocks)
        self.variant = check_choice("variant", variant, VARIANTS)
        self.mixing = "number" if variant == "plain" else "channel"
        check_flag("round64", round64)
        self.eps = check_eps("norm_eps", norm_eps)
        self.aggregates = nn.ModuleList()
        self.pre, self.post = nn.ParameterList(), nn.ParameterList()
        for block in range(1, blocks + 1):
            ways, hidden = len(self.ways_after(block)), 4 * (block + 1)
            hidden = (hidden // 64 + 1) * 64 if round64 else hidden
            self.aggregates.append(
                Aggregate(width, block + 1, ways, hidden, self.variant != "plain", norm_eps)
            )
            if self.variant != "plain":
                self.post.append(torch.empty(1 if self.variant == "prepost_code" else ways, width))
        if self.variant != "plain":
            self.pre.extend(torch.empty(width) for _ in range(blocks + 1))
        self.initialise()

    def initialise(self) -> None:
        for aggregate in self.aggregates:
            assert isinstance(aggregate, Aggregate)
            aggregate.initialise()
        for gain in self.pre:
            nn.init.ones_(gain)
        for gain in self.post:
            nn.init.constant_(gain, 1e-3)

    def ways_after(self, block: int) -> tuple[str, ...]:
        """The aggregates formed after block 1 ... L."""
        return WAYS if block < self.blocks else ("residual",)

    def ways(self, i: int) -> tuple[str, ...]:
        return WAYS if i % 2 == 0 and i > 0 else ("x",)

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return Content(self._sources(0, embedding, ()), (embedding,))

    def _read(self, content: Content, i: int) -> Tensor | dict[str, Tensor]:
        if i % 2:
            assert content.inner is not None
            return content.inner
        return dict(zip(WAYS, content.reads, strict=True)) if i else content.reads[0]

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        if i % 2 == 0:
            return content._replace(inner=content.reads[-1] + y)
        assert content.inner is not None
        newest, block = content.inner + y, i // 2 + 1
        sources = self._sources(block, newest, content.sources)
        aggregate = self.aggregates[block - 1]
        assert isinstance(aggregate, Aggregate)
        token_weights = self.held(aggregate.weights(newest))
        mixed = depth_mix(sources, aggregate.prior, token_weights, outputs=aggregate.ways)
        return Content(sources, self._finished(block, newest, mixed))

    def _finish(self, content: Content, place: int) -> Tensor:
        return content.reads[-1] if content.inner is None else content.inner

    def _sources(self, block: int, newest: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The list to be mixed, with the newest output added."""
        if self.variant != "plain":
            newest = self._norm(newest, self.pre[block])
        return (*before, newest)

    def _finished(self, block: int, newest: Tensor, mixed: Tensor) -> tuple[Tensor, ...]:
        """The aggregates as the next block reads them."""
        reads = mixed.unbind(0)
        if self.variant == "plain":
            return reads
        gains = self.post[block - 1]
        # The gains belong to the last ways: to the residual alone, or to all.
        bare = len(reads) - len(gains)
        normed = [
            read if way < bare else self._norm(read, gains[way - bare]) for way, read in enumerate(reads)
        ]
        return tuple(newest + read for read in normed)

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        if not self._holding:
            return F.rms_norm(x, x.shape[-1:], gain, self.eps)
        # Held, the norm is linear: the root of the mean square is a constant.
        return x * self.held(torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)) * gain

    def cost(self) -> Cost:
        """2dK + 2KCn + 2dCn FLOPs after a block, for the two matrices and the mix of C ways over n sources.

        Vectors: after a block, read n sources and write C ways; in it, two adds of three each. The aggregate
        reads the newest output, which the norm of its weights shares with the mix. The pre/post variants are
        not counted.
        """
        d, n_ways = self.width, [(n, len(self.ways_after(n - 1))) for n in range(2, self.blocks + 2)]
        flops = 0
        for (n, ways), aggregate in zip(n_ways, self.aggregates, strict=True):
            assert isinstance(aggregate, Aggregate)
            hidden = aggregate.inner.shape[1]
            flops += 2 * d * hidden + 2 * hidden * ways * n + 2 * d * ways * n
        return Cost(
            flops=flops,
            parameters=sum(parameter.numel() for parameter in self.parameters()),
            vectors=sum(n + ways for n, ways in n_ways) + 6 * self.blocks,
            live=self.blocks + 1,
            cache=0,
            boundary=growing(self.blocks),
        )
