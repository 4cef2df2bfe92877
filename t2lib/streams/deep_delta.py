"""Deep Delta Learning: every sublayer reads the state along one direction and writes a gated difference back.

    u = C(X),  c = Norm(u),  k̃ = F(c)         the branch output is the direction, not the content
    k = k̃ / sqrt(|k̃|² + ε²)
    X' = X + β k (vᵀ − kᵀX)

X is (d, d_v) per token: an ordinary stream for d_v = 1, where C is the identity. β lies in (0, 2) and v in
R^{d_v}; both come from small heads.
Source: arXiv 2601.00417; yifanzhang-pro/deep-delta-learning.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops import Tape, delta_rewrite
from t2lib.ops._checks import check_choice, check_flag, check_integer, check_number
from t2lib.ops.delta_rewrite import GUARDS
from t2lib.streams.compressors import (
    COMPRESSORS,
    ChannelConv,
    ChannelMix,
    EmbeddingConv,
    Repeat,
    TokenConv,
    check_taps,
    taps_of,
)
from t2lib.streams.cost import Cost, constant
from t2lib.streams.delta_heads import Heads
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass


class Content(NamedTuple):
    """The state X (..., d, d_v), what the next sublayer reads of it, and the pass over the tokens."""

    X: Tensor
    read: Tensor
    tokens: Pass
    tape: Tape | None


class DeepDelta(Stream):
    """Deep Delta Learning, scalar (`value_channels=1`) and expanded.

    value_channels  d_v
    compressor      "cc" (released), "cc_paper" (the same functions, other parameters) or "tc"; see
                    `compressors`
    kernel          taps of the compressor: d_v for "cc", which serves no other, and 4 for "tc"
    expand          "repeat" or "convolution" (EC), with `expand_kernel` taps, 4 by default
    gate            "linear" or "two_layer" with `gate_hidden` units; `gate_start` is β before training, in
                    (0, 2)
    value_head      "sigmoid4" is the released default, v = 4σ(W u + b) from the read u itself; "linear" is
                    the paper's, v = W c from the normalised read, without a bias. Which of them made the
                    published tables is not known. `value_input` ("read" or "context") and `value_bias`
                    choose the rest by hand
    shared          "block": attention and MLP of a block share a compressor, as released; "sublayer": one
                    each
    initial         "released", which is far from the identity: the first sublayer multiplies the norm of the
                    state. "near_identity" is ours: compressors that return the mean, gate weights zero, β =
                    0.01
    erase           False is the write-only control, X' = X + β k vᵀ
    guard           of the direction: "eager", or "kernel" as in the fused released kernel; see
                    `delta_rewrite`
    rewind          the backward pass rebuilds states instead of keeping them; a state can then be written
                    once only. Under torch.compile the graph keeps what it likes
    """

    needs_normed = True

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        value_channels: int = 1,
        compressor: str = "cc",
        kernel: int | None = None,
        expand: str = "repeat",
        expand_kernel: int | None = None,
        gate: str = "linear",
        gate_hidden: int = 128,
        gate_start: float | None = None,
        value_head: str = "sigmoid4",
        value_input: str | None = None,
        value_bias: bool | None = None,
        shared: str = "block",
        initial: str = "released",
        erase: bool = True,
        guard: str = "eager",
        eps: float = 1e-5,
        rewind: bool = False,
    ) -> None:
        super().__init__(width, blocks)
        d_v = self.channels = check_integer("value_channels", value_channels, 1)
        check_choice("compressor", compressor, COMPRESSORS)
        check_choice("expand", expand, ("repeat", "convolution"))
        taps = taps_of(compressor, kernel, d_v)
        if compressor != "cc" and d_v == 1:
            raise ValueError(
                f"compressor must be 'cc' with value_channels=1, unused there; got {compressor!r}."
            )
        self.expands = expand == "convolution"
        expand_taps = check_taps("expand_kernel", 4 if expand_kernel is None else expand_kernel)
        if expand_kernel is not None and not self.expands:
            raise ValueError(f"expand_kernel is read with expand='convolution' only; got {expand_kernel!r}.")
        units: int | None = check_integer("gate_hidden", gate_hidden, 1)
        if check_choice("gate", gate, ("linear", "two_layer")) == "linear":
            units = None
        bounded = check_choice("value_head", value_head, ("sigmoid4", "linear")) == "sigmoid4"
        self.value_input = ("read" if bounded else "context") if value_input is None else value_input
        check_choice("value_input", self.value_input, ("read", "context"))
        bias = bounded if value_bias is None else check_flag("value_bias", value_bias)
        self.shared = check_choice("shared", shared, ("block", "sublayer"))
        self.released = check_choice("initial", initial, ("released", "near_identity")) == "released"
        self.gate_start = (1.0 if self.released else 0.01) if gate_start is None else gate_start
        if not 0 < check_number("gate_start", self.gate_start) < 2:
            raise ValueError(f"gate_start must lie strictly between 0 and 2; got {gate_start!r}.")
        self.erase = check_flag("erase", erase)
        self.guard = check_choice("guard", guard, GUARDS[:2])
        self.eps, self.rewind = check_number("eps", eps), check_flag("rewind", rewind)
        if self.eps <= 0:
            raise ValueError(f"eps must be a number above 0; got {eps!r}.")

        def compress() -> nn.Module:
            if compressor == "tc":
                return TokenConv(width, d_v, taps)
            return ChannelConv(width, d_v) if compressor == "cc" else ChannelMix(width, d_v)

        per_block = 1 if self.shared == "block" else 2
        self.heads = nn.ModuleList(Heads(width, d_v, units, bounded, bias) for _ in range(self.sublayers))
        self.expander = EmbeddingConv(width, d_v, expand_taps) if self.expands else Repeat(d_v)
        # The last one reads the state out.
        count = per_block * blocks + 1 if d_v > 1 else 0
        self.compressors = nn.ModuleList(compress() for _ in range(count))
        self.reads_tokens = d_v > 1 and compressor == "tc"
        # With a convolution along the tokens, no matrix of one token tells what was read.
        self.mixing = "mixes tokens" if self.expands or self.reads_tokens else "matrix"
        self.initialise()

    def initialise(self) -> None:
        for heads in self.heads:
            assert isinstance(heads, Heads)
            heads.initialise(self.gate_start, self.released)
        self.expander.initialise()
        for compressor in self.compressors:
            assert isinstance(compressor, (ChannelMix, ChannelConv, TokenConv))
            compressor.initialise(self.released)

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        X = self.expander(embedding, tokens, ("stream", "embedding"))
        return self._compressed(Content(X, embedding, tokens, self._tape()), 0)

    def _tape(self) -> Tape | None:
        # Without gradients there is nothing to go back for, and a compiled graph decides what it keeps.
        keeps = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return Tape() if self.rewind and keeps else None

    def _read(self, content: Content, i: int) -> Tensor:
        return content.read

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        heads = self.heads[i]
        assert isinstance(heads, Heads)
        # Under autocast the heads put out half precision; the state stays as wide as it is.
        beta = heads.beta(normed).to(content.X.dtype)
        v = heads.target(content.read if self.value_input == "read" else normed).to(content.X.dtype)
        if self._holding:
            return self._compressed(content._replace(X=self._held_rewrite(content.X, y, v, beta)), i + 1)
        rewrite = partial(
            delta_rewrite, content.X, y, v, beta,
            guard=self.guard, eps=self.eps, erase=self.erase, tape=content.tape,
        )  # fmt: skip
        compressor = self._compressor(i + 1)
        if isinstance(compressor, (ChannelMix, ChannelConv)):
            # The next read in the same pass over the state, where a kernel makes it.
            X, read = rewrite(compress=compressor.weights())
            return content._replace(X=X, read=read)
        return self._compressed(content._replace(X=rewrite()), i + 1)

    def _finish(self, content: Content, place: int) -> Tensor:
        if place == self.sublayers or self.channels == 1:
            return content.read
        if self.reads_tokens and content.tokens.start:
            raise ValueError("level must have the whole text in one call for compressor='tc'; got a cache.")
        level: Tensor = self.compressors[-1](content.X, content.tokens.apart(), "level")
        return level

    def _compressed(self, content: Content, i: int) -> Content:
        """With what sublayer i reads of the state, or the output for i = 2L."""
        compressor = self._compressor(i)
        if compressor is None:
            return content._replace(read=content.X[..., 0])
        # A key a read: the two sublayers of a block share a compressor, but read different states.
        return content._replace(read=compressor(content.X, content.tokens, ("stream", i)))

    def _compressor(self, i: int) -> nn.Module | None:
        """Through which sublayer i reads, or the output for i = 2L; none reads the one channel there is."""
        if self.channels == 1:
            return None
        last = len(self.compressors) - 1
        return self.compressors[last if i == self.sublayers else (i // 2 if self.shared == "block" else i)]

    def _held_rewrite(self, X: Tensor, y: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        """The rewrite as a linear map of the state and of the branch output: k, v and β are constants."""
        floor = self.eps**2 * (self.width if self.guard == "kernel" else 1)
        length = self.held((y.square().sum(-1, keepdim=True) + floor).sqrt())
        k, v, beta = self.held(y / length), self.held(v), self.held(beta)[..., None, None]
        after = X + beta * (y / length)[..., None] * v[..., None, :]
        return after - beta * k[..., None] * (k[..., None, :] @ X) if self.erase else after

    def cost(self) -> Cost:
        """(6d_v + 5)d FLOPs a sublayer for heads and rewrite, and 2d_v d for CC or (2d_v + 2k d_v)d for TC
        to read.

        A two-layer gate of m units takes 2md + 2m in place of 2d; without the erase there are 2d_v d fewer.
        Reading the state out once more and a convolution of the embedding come on top. Vectors: 4 a sublayer
        for d_v = 1, 3d_v + 4 otherwise, with d_v + 1 for each of the two extras.
        """
        d, d_v, R = self.width, self.channels, self.sublayers
        heads = self.heads[0]
        assert isinstance(heads, Heads)
        rewrite = (6 * d_v + 5) * d - (0 if self.erase else 2 * d_v * d)
        if heads.gate_in is not None:
            m = heads.gate_in.out_features
            rewrite += 2 * m * (d + 1) - 2 * d
        read = cache = 0
        if d_v > 1:
            read = 2 * d_v * d
            tokens = self.compressors[0]
            if isinstance(tokens, TokenConv):
                taps = tokens.kernel.shape[1]
                read, cache = read + 2 * taps * d_v * d, (taps - 1) * d * d_v * (R + 1)
        flops = (rewrite + read) * R + read
        vectors = 4 * R if d_v == 1 else (3 * d_v + 4) * R + d_v + 1
        if isinstance(self.expander, EmbeddingConv):
            taps = self.expander.kernel.shape[1]
            flops, vectors, cache = flops + 2 * taps * d * d_v, vectors + d_v + 1, cache + (taps - 1) * d
        parameters = sum(parameter.numel() for parameter in self.parameters())
        return Cost(flops, parameters, vectors, d_v, cache, constant(self.blocks, d_v))
