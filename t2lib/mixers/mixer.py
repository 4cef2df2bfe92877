"""Where a local mixer can stand in a block, and the mixer that stands nowhere.

    s = h + sublayer(h)                                   before attention, behind a norm of its own
    x = attention_input(Norm(s))                          A
    q, k, v = projections(x W_Q, x W_K, x W_V)            B, before rotary positions
    u = s + W_O Attention(q, k, v)
    x = mlp_input(Norm(u))                                C
    g, p = gate_and_up(x W_g, x W_u)                      D, before the non-linearity
    h' = u + W_d (silu(g) ⊙ p)

A, B, C and D are the letters of Canon (arXiv 2512.17351). With another stream than the plain one, h is what
attention reads, and sublayer and attention write their sum as one output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from t2lib.token_pass import Pass

Ways = Tensor | dict[str, Tensor]

# How a mixer starts: "plain" leaves the block as it would be without the mixer.
INITIAL = ("uniform", "plain")


class Site(NamedTuple):
    """The block that a mixer stands in: its number, and the sizes of what passes through it."""

    block: int
    blocks: int
    width: int
    heads: int
    hidden: int
    rope_base: float | None
    norm_eps: float


class Mixer(nn.Module):
    """A local mixer of one block. What a mixer leaves out here is the identity, without parameters.

    Every method takes the pass over the tokens, from which it gets documents, positions and cache.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def initialise(self) -> None:
        """Set every parameter to its value at the start of training."""

    def sublayer(self, read: Ways, tokens: Pass) -> Tensor | None:
        """What an own sublayer adds, (..., T, d), from what attention reads; None if there is none."""
        return None

    def attention_input(self, x: Ways, tokens: Pass) -> Ways:
        return x

    def projections(self, q: Tensor, k: Tensor, v: Tensor, tokens: Pass) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def mlp_input(self, x: Tensor, tokens: Pass) -> Tensor:
        return x

    def gate_and_up(self, gate: Tensor, up: Tensor, tokens: Pass) -> tuple[Tensor, Tensor]:
        return gate, up


class NoMixer(Mixer):
    """The plain block."""


class Taps(nn.Module):
    """Taps of one short convolution of `channels` channels, with its bias and its start."""

    def __init__(self, channels: int, taps: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def initialise(self, initial: str, residual: bool) -> None:
        """U(-1/√K, 1/√K), as of a depthwise convolution; or what makes the whole the identity."""
        taps = self.weight.shape[1]
        if initial == "uniform":
            nn.init.uniform_(self.weight, -(taps**-0.5), taps**-0.5)
            if self.bias is not None:
                nn.init.uniform_(self.bias, -(taps**-0.5), taps**-0.5)
            return
        with torch.no_grad():
            self.weight.zero_()
            if not residual:
                self.weight[:, -1] = 1.0
            if self.bias is not None:
                self.bias.zero_()
