"""Gradients, layouts, half precision and memory of depth_mix."""

import numpy as np
import pytest
import torch
from test_depth_mix_laws import CPU_RUNGS, FORMS, arguments

from t2lib.bench._measure import peak_of_arrays, peak_of_tensors
from t2lib.ops import _claims_depth, depth_mix
from t2lib.ops._laws import error, random


def leaves(form, dtype=torch.float64):
    states, weights, token_weights, outputs = arguments(form)
    found = [*states, *(w for w in (weights, token_weights) if w is not None)]
    tensors = [torch.from_numpy(x).to(dtype).requires_grad_() for x in found]

    def call(*tensors):
        rest = list(tensors[5:])
        static = None if weights is None else rest.pop(0)
        return depth_mix(tensors[:5], static, rest.pop(0) if rest else None, outputs=outputs)

    return call, tensors


@pytest.mark.parametrize("form", FORMS)
def test_finite_differences(form):
    call, tensors = leaves(form)
    assert torch.autograd.gradcheck(call, tensors)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_gradients_that_are_asked_for(form):
    """Each input alone has the gradient it has among all."""
    call, tensors = leaves(form)
    above = torch.ones_like(call(*tensors))
    want = torch.autograd.grad(call(*tensors), tensors, above)
    for place, gradient in enumerate(want):
        alone = [x.detach().requires_grad_(at == place) for at, x in enumerate(tensors)]
        (got,) = torch.autograd.grad(call(*alone), alone[place], above)
        assert torch.equal(got, gradient)


@pytest.mark.parametrize("form", FORMS)
def test_upstream_gradients_of_any_stride(form):
    call, tensors = leaves(form)
    z = call(*tensors)
    buffer = torch.full([n + 2 for n in z.shape], float("nan"), dtype=z.dtype)
    sliced = buffer[tuple(slice(1, -1) for _ in z.shape)]
    sliced.copy_(torch.randn(z.shape, generator=torch.Generator().manual_seed(0)))
    for above in (torch.ones((), dtype=z.dtype).expand(z.shape), sliced, sliced.mT.contiguous().mT):
        got = torch.autograd.grad(call(*tensors), tensors, above)
        want = torch.autograd.grad(call(*tensors), tensors, above.contiguous())
        assert max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True)) < 1e-13


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("layout", _claims_depth.LAYOUTS)
def test_layouts(layout, rung):
    assert _claims_depth._layout("depth_mix", rung, layout) < 1e-12


@pytest.mark.parametrize("shape", [(1,), (16,), (24,), (64,), (1, 1), (2, 17), (3, 700, 64), (700, 3, 65)])
def test_blocks_of_any_size_meet(shape, monkeypatch):
    """Blocks far smaller than the tokens, with a ragged tail, and rows that are larger than a block."""
    import sys

    states, weights = list(random(3, *shape)), random(2, 3, shape[-1], seed=1)
    want = np.einsum("cnd,n...d->c...d", weights, np.stack(states))
    for budget in (1, 4096, 1 << 17):
        for rung in ("arrays", "eager"):
            monkeypatch.setattr(sys.modules[f"t2lib.ops.depth_mix.{rung}"], "BLOCK", budget)
            assert error(depth_mix(states, weights, outputs=2, rung=rung), want) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_half_precision_sums_in_float32(rung, dtype):
    """1 + 256 small terms: summed in half precision, each would be lost against the 1."""
    small = 2.0**-12
    states = [torch.ones(2, 4, dtype=dtype)] + [torch.full((2, 4), small, dtype=dtype)] * 256
    z = depth_mix(states, torch.ones(257, dtype=dtype), rung=rung)
    assert z.dtype == dtype
    assert torch.equal(z, torch.full((2, 4), 1 + 256 * small, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_gradients(form, dtype):
    call, tensors = leaves(form, dtype)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    got = torch.autograd.grad(call(*tensors), tensors, torch.ones_like(call(*tensors)))
    want = torch.autograd.grad(call(*wide), wide, torch.ones_like(call(*wide)))
    unit = torch.finfo(dtype).eps
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() <= unit * b.abs().max()


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_weights_in_float32_beside_states_in_half_precision(rung):
    states = [torch.ones(2, 4, dtype=torch.bfloat16)] * 2
    z = depth_mix(states, torch.tensor([1.0, 2.0**-9]), rung=rung)
    assert z.dtype == torch.bfloat16


def test_no_copy_of_the_list():
    """24 states: beside the result a call holds less than one more; backward, little but their gradients."""
    states = [torch.randn(2048, 512) for _ in range(24)]
    one, weights = states[0].nbytes, torch.randn(24)
    arrays = [x.numpy() for x in states]
    assert peak_of_arrays(lambda: depth_mix(arrays, weights.numpy())) < 2 * one
    assert peak_of_tensors(lambda: depth_mix(states, weights)) < 2 * one
    half = [x.to(torch.bfloat16).requires_grad_() for x in states]
    w = weights.requires_grad_()
    held = peak_of_tensors(lambda: torch.autograd.grad(depth_mix(half, w).sum(), [*half, w]))
    assert held < (24 + 4) * half[0].nbytes
