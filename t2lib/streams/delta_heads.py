"""The gate and the target of Deep Delta Learning."""

from __future__ import annotations

import math

from torch import Tensor, nn


class Heads(nn.Module):
    """The two small heads of one sublayer: the gate β (...) and the target v (..., d_v).

    β = 2σ(w·c + b), or with `hidden` 2σ(w₂·tanh(W₁ c) + b); v = 4σ(W u + b) if `bounded`, else W u.
    """

    def __init__(self, width: int, channels: int, hidden: int | None, bounded: bool, bias: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.gate_in = None if hidden is None else nn.Linear(width, hidden, bias=False)
        self.gate = nn.Linear(width if hidden is None else hidden, 1)
        self.value = nn.Linear(width, channels, bias=bias)

    def initialise(self, gate_start: float, released: bool) -> None:
        width = self.value.in_features
        probability = min(max(gate_start / 2, 1e-6), 1 - 1e-6)
        nn.init.constant_(self.gate.bias, math.log(probability / (1 - probability)))
        nn.init.normal_(self.value.weight, std=0.5 / width**0.5)
        if self.gate_in is not None:
            nn.init.normal_(self.gate_in.weight, std=0.5 / width**0.5)
        if released:
            nn.init.normal_(self.gate.weight, std=0.5 / width**0.5)
        else:
            nn.init.zeros_(self.gate.weight)
        if self.value.bias is not None:
            nn.init.uniform_(self.value.bias, -(width**-0.5), width**-0.5)

    def beta(self, context: Tensor) -> Tensor:
        hidden = context if self.gate_in is None else self.gate_in(context).tanh()
        gate: Tensor = self.gate(hidden)
        return 2 * gate[..., 0].sigmoid()

    def target(self, source: Tensor) -> Tensor:
        value: Tensor = self.value(source)
        return 4 * value.sigmoid() if self.bounded else value
