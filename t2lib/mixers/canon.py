"""Canon layers: a short convolution with a skip at up to four points of a block.

    Canon(z)_t = z_t + Σ_{j=0}^{K-1} w_j ⊙ z_{t-j},     z_{t<0} = 0

Source: arXiv 2512.17351; facebookresearch/PhysicsLM4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2lib.mixers.mixer import INITIAL, Mixer, Site, Taps, Ways
from t2lib.ops._checks import check_choice, check_flag, check_integer
from t2lib.ops.short_conv import WIDTHS
from t2lib.token_pass import Pass


class Canon(Mixer):
    """Canon at any of the positions A, B, C and D of `t2lib.mixers.mixer`.

    positions  "ABCD", or any part of it. A and C have d channels, B the 3d of q | k | v, D the two times
               `hidden` of gate | up
    residual   with the leading z_t; without it ("no-res") the taps alone
    kernel     K, 2 to 8; the last tap belongs to the token itself
    initial    "uniform" in (-1/√K, 1/√K), the current token included, on which the author insists; "plain"
               starts as the block without Canon

    A read by ways passes A way by way, with the same taps. With Canon the author turns a quarter of the
    channels only by rotary positions; this decoder turns all or none.

    Parameters  K (2d + 3d + 2 hidden) a block with all four; FLOPs twice that a token
    """

    def __init__(
        self,
        site: Site,
        *,
        positions: str = "ABCD",
        residual: bool = True,
        kernel: int = 4,
        initial: str = "uniform",
    ) -> None:
        super().__init__(site)
        known = set("ABCD")
        if not isinstance(positions, str) or not positions or not set(positions) <= known:
            raise ValueError(f"positions must be letters of 'ABCD', at least one; got {positions!r}.")
        if len(set(positions)) != len(positions):
            raise ValueError(f"positions must name each letter once; got {positions!r}.")
        self.residual = check_flag("residual", residual)
        self.initial = check_choice("initial", initial, INITIAL)
        if check_integer("kernel", kernel, WIDTHS[0]) > WIDTHS[-1]:
            raise ValueError(f"kernel must lie in {WIDTHS[0]} to {WIDTHS[-1]}; got {kernel}.")
        d = site.width
        channels = {"A": d, "B": 3 * d, "C": d, "D": 2 * site.hidden}
        self.taps = nn.ModuleDict(
            {letter: Taps(channels[letter], kernel, bias=False) for letter in sorted(positions)}
        )
        self.initialise()

    def initialise(self) -> None:
        for taps in self.taps.values():
            assert isinstance(taps, Taps)
            taps.initialise(self.initial, self.residual)

    def attention_input(self, x: Ways, tokens: Pass) -> Ways:
        if isinstance(x, Tensor):
            return self._at("A", x, tokens)
        return {way: self._at("A", read, tokens, way) for way, read in x.items()}

    def projections(self, q: Tensor, k: Tensor, v: Tensor, tokens: Pass) -> tuple[Tensor, Tensor, Tensor]:
        if "B" not in self.taps:
            return q, k, v
        q, k, v = self._at("B", torch.cat([q, k, v], -1), tokens).chunk(3, -1)
        return q, k, v

    def mlp_input(self, x: Tensor, tokens: Pass) -> Tensor:
        return self._at("C", x, tokens)

    def gate_and_up(self, gate: Tensor, up: Tensor, tokens: Pass) -> tuple[Tensor, Tensor]:
        if "D" not in self.taps:
            return gate, up
        gate, up = self._at("D", torch.cat([gate, up], -1), tokens).chunk(2, -1)
        return gate, up

    def _at(self, letter: str, z: Tensor, tokens: Pass, way: str = "") -> Tensor:
        if letter not in self.taps:
            return z
        taps = self.taps[letter]
        assert isinstance(taps, Taps)
        mixed = tokens.short_conv((self.site.block, letter, way), z, taps.weight)
        return z + mixed if self.residual else mixed
