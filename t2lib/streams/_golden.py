"""Golden vectors run on the streams themselves: what they give beside what reference implementations gave.

A case is a function that returns pairs (got, recorded) by name; the names of gradients begin with "gradient".
The cases of a variant stand in the modules that `cases` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib import golden
from t2lib.golden.replay import rotated

Vectors = dict[str, Tensor]
Pairs = dict[str, tuple[Tensor, Tensor]]
Case = Callable[[], Pairs]
Branches = list[Callable[..., Tensor]]


@cache
def cases() -> dict[str, tuple[Case, ...]]:
    """Variant -> its cases; a variant without one has no reference implementation."""
    from t2lib.streams import (
        _golden_delta,
        _golden_mixed,
        _golden_parallel,
        _golden_residuals,
        _golden_routed,
    )

    modules = (_golden_mixed, _golden_parallel, _golden_routed, _golden_residuals, _golden_delta)
    return {variant: found for module in modules for variant, found in module.CASES.items()}


@cache
def _replayed(case: Case) -> dict[str, float]:
    return {name: error(got.detach(), want.detach()) for name, (got, want) in case().items()}


def errors(variant: str, gradients: bool) -> dict[str, float]:
    """The errors of a variant's outputs, or of its gradients, by name."""
    found: dict[str, float] = {}
    for case in cases()[variant]:
        for name, size in _replayed(case).items():
            if name.startswith("gradient") == gradients:
                found[name] = max(size, found.get(name, 0.0))
    return found


def error(got: Tensor, want: Tensor) -> float:
    """The largest difference relative to the largest recorded entry; below 1e-3 that counts as 1e-3."""
    if got.shape != want.shape:
        raise ValueError(f"got has shape {tuple(got.shape)}, recorded is {tuple(want.shape)}")
    difference = (got - want).detach().abs().max()
    return float(difference / want.detach().abs().max().clamp_min(1e-3))


def tensors(name: str) -> Vectors:
    """The arrays of one golden vector; floating ones as leaves that ask for a gradient."""
    arrays = {key: torch.tensor(x) for key, x in golden.load(name).items()}
    return {key: x.requires_grad_() if x.is_floating_point() and x.ndim else x for key, x in arrays.items()}


def named(vectors: Vectors, prefix: str) -> Vectors:
    """The arrays whose names begin with the prefix, without it."""
    return {key.removeprefix(prefix): x for key, x in vectors.items() if key.startswith(prefix)}


def stacked(vectors: Vectors, name: str, count: int = 4) -> Tensor:
    return torch.stack([vectors[f"{name}{i}"] for i in range(count)])


def load(parameter: Any, values: Tensor) -> nn.Parameter:
    """Put recorded values into a parameter; returns it."""
    assert isinstance(parameter, nn.Parameter)
    if parameter.shape != values.shape:
        raise ValueError(f"parameter has shape {tuple(parameter.shape)}, recorded is {tuple(values.shape)}")
    with torch.no_grad():
        parameter.copy_(values)
    return parameter


def backward(out: Tensor, cotangent: Tensor) -> None:
    (out * cotangent).sum().backward()  # type: ignore[no-untyped-call]


def gradient_of(x: Tensor) -> Tensor:
    """Its gradient; zero if the output does not depend on it."""
    return torch.zeros_like(x) if x.grad is None else x.grad


def rms_norm(x: Tensor, gain: Tensor | None, eps: Any) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], gain, float(eps))


def affine_branches(vectors: Vectors, suffixes: Iterable[str]) -> Branches:
    """The toy sublayers tanh(RMS(x) Wᵀ + b)."""

    def branch(weight: Tensor, bias: Tensor) -> Callable[[Any], Tensor]:
        return lambda x: torch.tanh(rms_norm(x, None, 1e-6) @ weight.T + bias)

    return [branch(vectors[f"W{suffix}"], vectors[f"b{suffix}"]) for suffix in suffixes]


def bottleneck_branches(vectors: Vectors) -> Branches:
    """The toy sublayers tanh(RMS(x) A) B."""

    def branch(first: Tensor, second: Tensor) -> Callable[[Any], Tensor]:
        return lambda x: torch.tanh(rms_norm(x, None, vectors["eps"]) @ first) @ second

    return [branch(a, b) for a, b in zip(vectors["A"], vectors["Bm"], strict=True)]


def attention(
    q: Tensor, k: Tensor, v: Tensor, heads: int, rope: bool = False, gains: tuple[Tensor, ...] = ()
) -> Tensor:
    """Causal attention of projected q, k, v (B, T, d); with gains, q and k are normalised once rotated."""
    q, k, v = (x.reshape(*x.shape[:-1], heads, -1) for x in (q, k, v))
    if rope:
        q, k = rotated(q), rotated(k)
    if gains:
        q, k = (rms_norm(x, gain, 1e-5) for x, gain in zip((q, k), gains, strict=True))
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
