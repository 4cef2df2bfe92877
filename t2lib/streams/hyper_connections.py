"""Hyper-Connections: n parallel streams, which small matrices around a sublayer read, mix and write."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib.ops import stream_mix
from t2lib.ops._checks import check_choice, check_flag, check_integer
from t2lib.streams import cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass


class Content(NamedTuple):
    """The streams (..., n, d), how the next sublayer writes to them, and what it reads."""

    streams: Tensor
    mix: Tensor | None
    write: Tensor | None
    x: Tensor | None


class Streams(Stream):
    """n streams that start as copies of the embedding; a design says how a sublayer deals with them."""

    def __init__(self, width: int, blocks: int, *, streams: int) -> None:
        super().__init__(width, blocks)
        self.streams = check_integer("streams", streams, 1)

    @abstractmethod
    def coefficients(self, streams: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """How sublayer i reads (n), mixes (out, in) and writes (n), or with an axis in front a token each."""

    def collapse(self, streams: Tensor) -> Tensor:
        """One vector out of n, for the final norm: their sum."""
        return streams.sum(-2)

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        copies = embedding[..., None, :].expand(*embedding.shape[:-1], self.streams, self.width)
        return self._next(copies, 0)

    def _next(self, streams: Tensor, i: int) -> Content:
        read, mix, write = (self.held(part) for part in self.coefficients(streams, i))
        return Content(streams, mix, write, stream_mix(streams, read=read))

    def _read(self, content: Content, i: int) -> Tensor:
        assert content.x is not None
        return content.x

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        streams = stream_mix(content.streams, mix=content.mix, write=content.write, branch=y)
        return self._next(streams, i + 1) if i + 1 < self.sublayers else Content(streams, None, None, None)

    def _finish(self, content: Content, place: int) -> Tensor:
        return self.collapse(content.streams)


class HyperConnections(Streams):
    """h_0 = A_mᵀ H,  y = f(h_0),  H' = A_rᵀ H + B yᵀ;  H (n, d) a token, output the sum of the streams.

    Static: A_m (n), A_r (n, n), B (n) of each sublayer are learned numbers. Dynamic: with H̄ the norm of each
    stream by itself,

        A_m + s_α tanh(H̄ W_m),    A_r + s_α tanh(H̄ W_r),    B + s_β tanh(H̄ W_β)

    so that row s of every coefficient depends on stream s alone.

    Options
        streams  n
        dynamic  False leaves out the second part
        tanh     False leaves out the tanh
        norm     "layer": LayerNorm, eps = 1e-5, gain and bias, as the paper; "rms": x / rms(x), no eps, gain

    Start: A_m one-hot at stream k mod n of sublayer k, A_r = I, B = 1, W = 0, s = 0.01. All streams stay the
    plain stream, and the output is n times it, which the final norm takes away.

    Unrolled, a block of the mixing matrix below the diagonal has rank n at most.

    Parameters  n(n+2) a sublayer, dynamic d(n+2) + 2 more and those of the norm
    Cost        2nd(n+2) FLOPs a sublayer, dynamic as many again and the norm; n live states
    Source      arXiv 2409.19606
    """

    identity_at_start = True

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        streams: int = 4,
        dynamic: bool = True,
        tanh: bool = True,
        norm: str = "layer",
    ) -> None:
        super().__init__(width, blocks, streams=streams)
        self.dynamic, self.tanh = check_flag("dynamic", dynamic), check_flag("tanh", tanh)
        self.norm = check_choice("norm", norm, ("layer", "rms"))
        sublayers = self.sublayers
        # As in the paper: the first column of alpha is A_m, the others A_r, column 1 + j into stream j.
        self.alpha = nn.Parameter(torch.empty(sublayers, streams, 1 + streams))
        self.beta = nn.Parameter(torch.empty(sublayers, streams))
        if dynamic:
            self.alpha_weight = nn.Parameter(torch.empty(sublayers, width, 1 + streams))
            self.beta_weight = nn.Parameter(torch.empty(sublayers, width))
            self.alpha_scale = nn.Parameter(torch.empty(sublayers))
            self.beta_scale = nn.Parameter(torch.empty(sublayers))
            self.norm_gain = nn.Parameter(torch.empty(sublayers, width))
            if norm == "layer":
                self.norm_bias = nn.Parameter(torch.empty(sublayers, width))
        self.initialise()

    def initialise(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            for i in range(self.sublayers):
                self.alpha[i, i % self.streams, 0] = 1.0
                self.alpha[i, :, 1:] = torch.eye(self.streams)
            self.beta.fill_(1.0)
            if self.dynamic:
                self.alpha_scale.fill_(0.01)
                self.beta_scale.fill_(0.01)
                self.norm_gain.fill_(1.0)

    def coefficients(self, streams: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        alpha, beta = self.alpha[i], self.beta[i]
        if self.dynamic:
            unit = self._normalised(streams, i)
            change_alpha, change_beta = unit @ self.alpha_weight[i], unit @ self.beta_weight[i]
            if self.tanh:
                change_alpha, change_beta = change_alpha.tanh(), change_beta.tanh()
            alpha = alpha + self.alpha_scale[i] * change_alpha
            beta = beta + self.beta_scale[i] * change_beta
        alpha, beta = alpha.to(streams.dtype), beta.to(streams.dtype)
        return alpha[..., 0], alpha[..., 1:].transpose(-1, -2), beta

    def _normalised(self, streams: Tensor, i: int) -> Tensor:
        if self.norm == "layer":
            return F.layer_norm(streams, (self.width,), self.norm_gain[i], self.norm_bias[i], eps=1e-5)
        return F.normalize(streams, dim=-1) * math.sqrt(self.width) * self.norm_gain[i]

    def cost(self) -> cost.Cost:
        closed = cost.hyper_connections(self.width, self.blocks, streams=self.streams, dynamic=self.dynamic)
        affine = (2 if self.norm == "layer" else 1) * self.width * self.sublayers * self.dynamic
        return replace(closed, parameters=closed.parameters + affine)
