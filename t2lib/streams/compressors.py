"""How Deep Delta Learning widens an embedding to d_v value channels, and reads a state of that kind back to
width d.

    repeat   X_ij = x_i
    EC       X_tij = Σ_s E_{ij, k-1-s} x_{t-s, i}                    a causal convolution along the tokens
    CC       u_i = Σ_j c_ij X_ij                                      along the value channels, within a token
    TC       u_ti = Σ_j p_j Σ_s W_{ij, k-1-s} X_{t-s, ij}             along the tokens

CC has two parameterisations of one function. The paper's is c itself. The released code convolves the
channels with same-padding, k = d_v taps w, and pools the d_v results with p, which is c_ij = Σ_m p_m w_{i,
j-m+⌊(k-1)/2⌋}, indices outside 0 ... k-1 left out: `mixing_of` and `kernel_of` go there and back.
Source: arXiv 2601.00417; yifanzhang-pro/deep-delta-learning.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_integer
from t2lib.ops.short_conv import WIDTHS
from t2lib.token_pass import Pass

COMPRESSORS = ("cc", "cc_paper", "tc")


def mixing_of(kernel: Tensor, pool: Tensor) -> Tensor:
    """c of a released CC compressor: kernel (d, k) and pool (k,) -> (d, k), in their dtype."""
    with torch.autocast(kernel.device.type, enabled=False):
        mixing: Tensor = kernel @ _bands(pool).mT
    return mixing


def kernel_of(mixing: Tensor, pool: Tensor) -> Tensor:
    """The kernel whose `mixing_of` is c: (d, k) and pool (k,) -> (d, k).

    Unique where the map is invertible, as it is at a uniform pool for k = 4; a ValueError where it is not.
    """
    # In float64: there is no linear algebra in half precision, and this is done once.
    bands = _bands(pool.double())
    if int(torch.linalg.matrix_rank(bands)) < len(pool):
        raise ValueError(f"pool must make the map from kernel to mixing invertible; got {pool.tolist()}.")
    kernel: Tensor = torch.linalg.solve(bands, mixing.mT.double())
    return kernel.mT.to(mixing.dtype)


def _bands(pool: Tensor) -> Tensor:
    """The matrix R with c = R w: R_jn = p_m for n = j - m + ⌊(k-1)/2⌋."""
    k = len(pool)
    places = torch.arange(k, device=pool.device)
    m = places[:, None] - places[None, :] + (k - 1) // 2
    return torch.where((m >= 0) & (m < k), pool[m.clamp(0, k - 1)], 0)


class ChannelMix(nn.Module):
    """CC as the paper prints it: d · d_v free weights."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.empty(width, channels))

    def initialise(self, released: bool) -> None:
        """The distribution that the released parameterisation starts from, or the mean of the channels."""
        width, channels = self.mixing.shape
        with torch.no_grad():
            pool = torch.full_like(self.mixing[0], 1 / channels)
            kernel = torch.randn_like(self.mixing) * (0.5 / width**0.5)
            self.mixing.copy_(mixing_of(kernel, pool) if released else pool.expand_as(self.mixing))

    def weights(self) -> Tensor:
        """c (d, d_v)."""
        return self.mixing

    def forward(self, X: Tensor, tokens: Pass, key: Hashable) -> Tensor:
        return pooled(X, self.weights().mT)


class ChannelConv(nn.Module):
    """CC as released: kernel and pool."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(width, channels))
        self.pool = nn.Parameter(torch.empty(channels))

    def initialise(self, released: bool) -> None:
        """A small random gain a feature, as released (it overwrites the module's own start), or the mean."""
        width, channels = self.kernel.shape
        nn.init.constant_(self.pool, 1 / channels)
        if released:
            nn.init.normal_(self.kernel, std=0.5 / width**0.5)
            return
        with torch.no_grad():
            self.kernel.copy_(kernel_of(torch.full_like(self.kernel, 1 / channels), self.pool))

    def weights(self) -> Tensor:
        """c (d, d_v)."""
        return mixing_of(self.kernel, self.pool)

    def forward(self, X: Tensor, tokens: Pass, key: Hashable) -> Tensor:
        return pooled(X, self.weights().mT)


class TokenConv(nn.Module):
    """TC: a causal convolution of each feature and channel along the tokens, then the pool."""

    def __init__(self, width: int, channels: int, taps: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(width * channels, taps))
        self.pool = nn.Parameter(torch.empty(channels))
        self.width = width

    def initialise(self, released: bool) -> None:
        """Random taps, as released, or the current token alone; the mean over the channels."""
        nn.init.constant_(self.pool, 1 / len(self.pool))
        if released:
            nn.init.normal_(self.kernel, std=0.5 / self.width**0.5)
        else:
            current_token(self.kernel)

    def forward(self, X: Tensor, tokens: Pass, key: Hashable) -> Tensor:
        mixed = tokens.short_conv(key, X.flatten(-2), self.kernel)
        return pooled(mixed.reshape(X.shape), self.pool)


class Repeat(nn.Module):
    """Every value channel starts as the embedding."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def initialise(self) -> None:
        pass

    def forward(self, x: Tensor, tokens: Pass, key: Hashable) -> Tensor:
        return x[..., None].expand(*x.shape, self.channels)


class EmbeddingConv(nn.Module):
    """EC: each value channel starts as its own causal filter of the embedding; as initialised, that is
    Repeat."""

    def __init__(self, width: int, channels: int, taps: int) -> None:
        super().__init__()
        self.channels = channels
        self.kernel = nn.Parameter(torch.empty(width * channels, taps))

    def initialise(self) -> None:
        current_token(self.kernel)

    def forward(self, x: Tensor, tokens: Pass, key: Hashable) -> Tensor:
        # All channels of a feature have the same past: the cache keeps it once.
        spread = tokens.short_conv(key, x, self.kernel, copies=self.channels)
        return spread.reshape(*x.shape, self.channels)


def pooled(X: Tensor, weights: Tensor) -> Tensor:
    """Σ_j weights_j ⊙ X_j over the value channels of X (..., d, d_v); weights (d_v,) or (d_v, d)."""
    mixed: Tensor = depth_mix(X.unbind(-1), weights)
    return mixed


def current_token(kernel: Tensor) -> None:
    """Set a causal kernel (channels, taps) to the identity: one on the last tap."""
    with torch.no_grad():
        kernel.zero_()
        kernel[:, -1] = 1.0


def taps_of(compressor: str, kernel: int | None, channels: int) -> int:
    """The taps of a compressor; a ValueError for a kernel that it cannot serve."""
    if compressor == "tc":
        return 4 if kernel is None else check_taps("kernel", kernel)
    if kernel is not None and check_integer("kernel", kernel, 1) != channels:
        raise ValueError(
            f"kernel of compressor={compressor!r} must be value_channels={channels}; got {kernel}."
        )
    return channels


def check_taps(name: str, taps: int) -> int:
    if check_integer(name, taps, WIDTHS[0]) > WIDTHS[-1]:
        raise ValueError(f"{name} must lie in {WIDTHS[0]} to {WIDTHS[-1]}; got {taps}.")
    return taps
