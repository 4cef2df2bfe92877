"""Manifold-constrained Hyper-Connections: n streams whose mixing matrix is doubly stochastic."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from t2lib.ops import sinkhorn
from t2lib.ops._checks import check_choice, check_integer, check_number
from t2lib.streams import cost
from t2lib.streams.hyper_connections import Streams

# What the released code adds to H_pre, to the first column step and to every later sum.
RELEASED_EPS = 1e-6


class ManifoldHyperConnections(Streams):
    """h_0 = Σ_i (H_pre)_i x_i,  y = f(h_0),  x'_o = Σ_i (H_res)_oi x_i + (H_post)_o y;  x (n, d) a token.

    With r the RMS norm over all n d entries of the state, and r φ + b for each of the three with a factor α:

        H_pre = σ(α r φ_pre + b_pre),  H_post = 2 σ(α r φ_post + b_post),  H_res = sinkhorn(α r φ_res + b_res)

    H_res has index (out, in). Sinkhorn ends on rows, so every new stream is a convex combination of the old
    ones exactly; its columns sum to 1 only nearly. No weight of the mixing matrix is negative.

    Options
        streams     n
        numerics    "paper": as above; "released": ε = 1e-6 on H_pre and inside Sinkhorn, as in the V4 code
        head        "sum" of the streams for the output, or "learned": Σ_i (σ(a r φ + b) + ε)_i x_i
        iterations  of Sinkhorn
        norm_eps    inside the RMS norm
        spread      standard deviation of φ at the start; with 0 the start is the plain stream, up to scale

    Start, where the paper names only α = 0.01: b_pre is -1 and +1 at stream k mod n, b_post = 0, b_res = 0
    on the diagonal and -8 off it, as mhc-lite; φ normal. Then H_post is nearly 1 and the streams stay nearly
    equal.

    Parameters  n d (n² + 2n) + n² + 2n + 3 a sublayer; n² d + n + 1 for a learned head
    Cost        2nd(n² + 2n) FLOPs a sublayer for coefficients, 2nd(n+2) to read, mix and write; n live
                states
    Source      arXiv 2512.24880; deepseek-ai/TileKernels and transformers' DeepseekV4HyperConnection
    """

    def __init__(
        self,
        width: int,
        blocks: int,
        *,
        streams: int = 4,
        numerics: str = "paper",
        head: str = "sum",
        iterations: int = 20,
        norm_eps: float = 1e-20,
        spread: float = 0.02,
    ) -> None:
        super().__init__(width, blocks, streams=streams)
        self.eps = (
            0.0 if check_choice("numerics", numerics, ("paper", "released")) == "paper" else RELEASED_EPS
        )
        self.head = check_choice("head", head, ("sum", "learned"))
        self.iterations = check_integer("iterations", iterations, 1)
        self.norm_eps, self.spread = check_number("norm_eps", norm_eps), check_number("spread", spread)
        for name, value in (("norm_eps", norm_eps), ("spread", spread)):
            if value < 0:
                raise ValueError(f"{name} must be at least 0; got {value}.")
        self.identity_at_start = spread == 0 and head == "sum" and numerics == "paper"
        sublayers, n, flat = self.sublayers, streams, streams * width
        # The columns of phi: n for H_pre, n for H_post, n² for H_res, row-major over (out, in).
        self.phi = nn.Parameter(torch.empty(sublayers, flat, n * n + 2 * n))
        self.scales = nn.Parameter(torch.empty(sublayers, 3))
        self.bias_pre = nn.Parameter(torch.empty(sublayers, n))
        self.bias_post = nn.Parameter(torch.empty(sublayers, n))
        self.bias_res = nn.Parameter(torch.empty(sublayers, n, n))
        if head == "learned":
            self.head_phi = nn.Parameter(torch.empty(flat, n))
            self.head_scale = nn.Parameter(torch.empty(()))
            self.head_bias = nn.Parameter(torch.empty(n))
        self.initialise()

    def initialise(self) -> None:
        with torch.no_grad():
            self.phi.normal_(std=self.spread)
            self.scales.fill_(0.01)
            self.bias_pre.fill_(-1.0)
            for i in range(self.sublayers):
                self.bias_pre[i, i % self.streams] = 1.0
            self.bias_post.zero_()
            self.bias_res.copy_(8 * torch.eye(self.streams) - 8)
            if self.head == "learned":
                self.head_phi.normal_(std=self.spread)
                self.head_scale.fill_(0.01)
                self.head_bias.zero_()

    def coefficients(self, streams: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        n, unit = self.streams, self._unit(streams)
        # Doubly stochastic matrices lose their sums in half precision: all of this is at least float32.
        logits = unit @ self.phi[i].to(unit.dtype)
        scales = self.scales[i].to(unit.dtype).unbind()
        parts = zip(torch.split(logits, [n, n, n * n], -1), scales, strict=True)
        pre, post, res = (scale * part for part, scale in parts)
        read = torch.sigmoid(pre + self.bias_pre[i]) + self.eps
        write = 2 * torch.sigmoid(post + self.bias_post[i])
        res = res.reshape(*res.shape[:-1], n, n) + self.bias_res[i]
        mix = sinkhorn(res, iterations=self.iterations, eps=self.eps)
        return read, mix, write

    def collapse(self, streams: Tensor) -> Tensor:
        if self.head == "sum":
            return streams.sum(-2)
        unit = self._unit(streams)
        logits = self.head_scale * (unit @ self.head_phi.to(unit.dtype)) + self.head_bias
        weights = self.held(torch.sigmoid(logits) + self.eps)
        return (weights[..., None] * streams).sum(-2).to(streams.dtype)

    def _unit(self, streams: Tensor) -> Tensor:
        """The RMS norm over all entries of a token's state, (..., n, d) -> (..., n d)."""
        flat = streams.flatten(-2)
        flat = flat if flat.dtype == torch.float64 else flat.float()
        return flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)

    def cost(self) -> cost.Cost:
        closed = cost.manifold_hyper_connections(self.width, self.blocks, streams=self.streams)
        if self.head == "sum":
            return closed
        n, d = self.streams, self.width
        return replace(
            closed,
            flops=closed.flops + 2 * n * d * n + 2 * n * d,
            parameters=closed.parameters + n * d * n + n + 1,
            vectors=closed.vectors + n + 1,
        )
