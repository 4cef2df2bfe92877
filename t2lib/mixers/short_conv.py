"""A causal depthwise short convolution, as a sublayer of its own or on the branches of attention.

    y_t = φ( b + Σ_{j=0}^{K-1} w_{K-1-j} ⊙ x_{t-j} )

Source: the short filter of Primer (arXiv 2109.08668), H3 (2212.14052) and Mamba (2312.00752).
"""

from __future__ import annotations

import torch
from torch import Tensor

from t2lib.layers import RMSNorm
from t2lib.mixers.mixer import INITIAL, Mixer, Site, Taps, Ways
from t2lib.ops._checks import check_choice, check_flag, check_integer
from t2lib.ops.short_conv import WIDTHS
from t2lib.token_pass import Pass

PLACEMENTS = ("sublayer", "branch")


class ShortConv(Mixer):
    """A short convolution of `kernel` taps a channel.

    placement   "sublayer": s = h + ShortConv(Norm(h)) before attention; of a read by ways it takes the value
                way. "branch": on the projections q, k and v, without a skip, as in Primer and Mamba
    kernel      K, 2 to 8; the last tap belongs to the token itself
    activation  None or "silu"
    bias        one a channel
    initial     "uniform" in (-1/√K, 1/√K), as of a depthwise convolution; "plain" starts as the block without
                it: zero taps in a sublayer, the token itself on a branch (which "silu" cannot)

    Parameters  K d in a sublayer, and d for its norm; 3 K d on the branches. FLOPs 2 K a channel and token
    """

    def __init__(
        self,
        site: Site,
        *,
        placement: str = "sublayer",
        kernel: int = 4,
        activation: str | None = None,
        bias: bool = False,
        initial: str = "uniform",
    ) -> None:
        super().__init__(site)
        self.own = check_choice("placement", placement, PLACEMENTS) == "sublayer"
        if check_integer("kernel", kernel, WIDTHS[0]) > WIDTHS[-1]:
            raise ValueError(f"kernel must lie in {WIDTHS[0]} to {WIDTHS[-1]}; got {kernel}.")
        if activation not in (None, "silu"):
            raise ValueError(f"activation must be None or 'silu'; got {activation!r}.")
        self.initial = check_choice("initial", initial, INITIAL)
        if initial == "plain" and activation is not None and not self.own:
            raise ValueError("initial must be 'uniform' on a branch with an activation; got 'plain'.")
        self.activation = activation
        channels = site.width if self.own else 3 * site.width
        self.taps = Taps(channels, kernel, check_flag("bias", bias))
        self.norm = RMSNorm(site.width, site.norm_eps) if self.own else None
        self.initialise()

    def initialise(self) -> None:
        self.taps.initialise(self.initial, residual=self.own)
        if self.norm is not None:
            torch.nn.init.ones_(self.norm.gain)

    def sublayer(self, read: Ways, tokens: Pass) -> Tensor | None:
        if self.norm is None:
            return None
        return self._filtered(self.norm(read if isinstance(read, Tensor) else read["value"]), tokens)

    def projections(self, q: Tensor, k: Tensor, v: Tensor, tokens: Pass) -> tuple[Tensor, Tensor, Tensor]:
        if self.own:
            return q, k, v
        q, k, v = self._filtered(torch.cat([q, k, v], -1), tokens).chunk(3, -1)
        return q, k, v

    def _filtered(self, x: Tensor, tokens: Pass) -> Tensor:
        weight, bias = self.taps.weight, self.taps.bias
        return tokens.short_conv((self.site.block, "short_conv"), x, weight, bias, activation=self.activation)
