"""The two small functions that attention of every kind needs: the norm and the rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x * gain / sqrt(mean(x^2) + eps) over the last axis, (..., d) -> (..., d).

    The mean is taken in float32 for half precision and in float64 for float64. Source: arXiv 1910.07467.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.double() if x.dtype == torch.float64 else x.float()
        unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return unit.to(x.dtype) * self.gain


def rotate(x: Tensor, base: float, start: int = 0) -> Tensor:
    """Rotary positions on x (..., T, D), half-split: channel i turns with channel i + D/2.

    The pair at position t turns by the angle t * base^(-2i/D), so the product of a query at t with a key
    at s depends on t - s alone. The first entry of x stands at position `start`. Angles are float64 for
    float64 input, float32 otherwise. Source: arXiv 2104.09864.
    """
    length, width = x.shape[-2:]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    rates = base ** (-torch.arange(0, width, 2, dtype=dtype, device=x.device) / width)
    angles = torch.arange(start, start + length, dtype=dtype, device=x.device)[:, None] * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
