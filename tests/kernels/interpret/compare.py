"""What the tests of this folder share: inputs, and the comparison of result and gradients with float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops import short_swa
from t2lib.ops._kernel_cases import TOLERANCE


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def sliced(x: Tensor) -> Tensor:
    """The same numbers inside a buffer of NaN."""
    buffer = torch.full([size + 3 for size in x.shape], float("nan"), dtype=x.dtype)
    inner = buffer[tuple(slice(1, -2) for _ in x.shape)]
    inner.copy_(x)
    return inner


def turned(x: Tensor) -> Tensor:
    """The same numbers with the axes in memory the other way around."""
    return x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))


def inputs(
    shape: tuple[int, ...],
    *,
    axis: int,
    n_q: int | None = None,
    value_width: int | None = None,
    share: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """q, k, v; `share` is (head axis, query heads a key head)."""
    query, key = list(shape), list(shape)
    query[axis] = n_q or shape[axis]
    if share is not None:
        key[share[0]] //= share[1]
    value = [*key[:-1], value_width or key[-1]]
    return [normal(*s, seed=seed, dtype=dtype) for seed, s in enumerate((query, key, value))]


def result_and_gradients(
    rung: str,
    tensors: list[Tensor],
    upstream: Tensor | None = None,
    dtype: torch.dtype | None = None,
    **call: Any,
) -> dict[str, Tensor]:
    """out, dq, dk, dv of one rung. The leaves are the tensors themselves, in the layout they came in."""
    leaves = [x.detach() if dtype is None else x.detach().to(dtype) for x in tensors]
    leaves = [x.requires_grad_() for x in leaves]
    out = short_swa(*leaves, rung=rung, **call)
    weights = normal(*out.shape, seed=9, dtype=out.dtype) if upstream is None else upstream.to(out.dtype)
    gradients = torch.autograd.grad(out, leaves, weights)
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *gradients), strict=True))


def assert_close(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Every array by its root-mean-square error relative to that of the truth, and every NaN in its place."""
    for name, truth in want.items():
        value = got[name].double()
        assert value.shape == truth.shape, name
        assert torch.equal(value.isnan(), truth.isnan()), f"{name}: NaN in other places"
        error = (value - truth).nan_to_num().pow(2).mean().sqrt()
        size = truth.nan_to_num().pow(2).mean().sqrt()
        limit = TOLERANCE[got[name].dtype] * max(float(size), 0.1)
        assert error <= limit, f"{name}: error {error:.1e}, limit {limit:.1e}"


def check(tensors: list[Tensor], upstream: Tensor | None = None, **call: Any) -> None:
    """The kernels against `eager` in float64: the result and every gradient."""
    want = result_and_gradients("eager", tensors, upstream, torch.float64, **call)
    assert_close(result_and_gradients("kernels", tensors, upstream, **call), want)
