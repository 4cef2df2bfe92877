"""Gradients, layouts, half precision and memory of depth_attention, its partial form and merge."""

import numpy as np
import pytest
import torch

from t2lib.bench._measure import peak_of_arrays, peak_of_tensors
from t2lib.ops import _claims_depth, depth_attention, depth_attention_partial, merge
from t2lib.ops._laws import random

CPU_RUNGS = ("loops", "arrays", "eager")


def leaves(dtype=torch.float64):
    arrays = _claims_depth.inputs("depth_attention", 2, 3, 5)
    return [torch.from_numpy(x).to(dtype).requires_grad_() for x in arrays]


def read(*x):
    return depth_attention(x[:4], x[4][0])


def read_all(*x):
    return depth_attention(x[:4], x[4][0], gain=x[5][0], query=x[6], return_lse=True)


def read_by_query(*x):
    return depth_attention(x[:4], None, query=x[6], gain=x[5][1], eps=0.1)


def partial(*x):
    return depth_attention_partial(x[:4], x[4], gains=x[5])


def two_phases(*x):
    parts = [depth_attention_partial(some, x[4], gains=x[5]) for some in (x[:1], x[1:4])]
    return merge(parts, return_lse=True)


def second_phase(*x):
    """A read that goes on from another and leaves normalised: all three results."""
    part = depth_attention(x[:2], x[4][0], gain=x[5][0], return_lse=True)
    return depth_attention(
        x[2:4], x[4][0], gain=x[5][0], parts=[part], norm_gain=x[4][1], norm_eps=1e-3, return_lse=True
    )


CALLS = [read, read_all, read_by_query, partial, two_phases, second_phase]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_finite_differences(call):
    assert torch.autograd.gradcheck(call, leaves())


def test_two_phases_have_the_gradients_of_one():
    tensors = leaves()[:6]
    above = [torch.randn(2, 2, 3, 5, dtype=torch.float64), torch.randn(2, 2, 3, dtype=torch.float64)]
    got, want = (torch.autograd.grad(call(*tensors), tensors, above) for call in (two_phases, partial))
    assert max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True)) < 1e-12


def test_only_the_gradients_that_are_asked_for():
    tensors = leaves()
    above = torch.ones(2, 3, 5, dtype=torch.float64)
    want = torch.autograd.grad(read_all(*tensors)[0], tensors, above)
    for place, gradient in enumerate(want):
        alone = [x.detach().requires_grad_(at == place) for at, x in enumerate(tensors)]
        (got,) = torch.autograd.grad(read_all(*alone)[0], alone[place], above)
        assert torch.equal(got, gradient)


def test_a_zero_query_gives_the_gain_no_gradient_and_the_query_one():
    """At the start of Attention Residuals, with all pseudo-queries zero."""
    states = [torch.randn(3, 6, dtype=torch.float64) for _ in range(3)]
    w, gain = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    z = depth_attention(states, w.requires_grad_(), gain=gain.requires_grad_())
    d_w, d_gain = torch.autograd.grad(z.square().sum(), [w, gain])
    assert not d_gain.any()
    assert d_w.abs().min() > 0


def test_one_state_has_a_query_without_effect():
    x, w = torch.randn(3, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    (d_w,) = torch.autograd.grad(depth_attention([x], w.requires_grad_()).square().sum(), w)
    assert d_w.abs().max() < 1e-14


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_upstream_gradients_of_any_stride(call):
    tensors = leaves()
    z = call(*tensors)
    z = z if isinstance(z, torch.Tensor) else z[0]
    used = [
        x
        for x in tensors
        if torch.autograd.grad(z.sum(), x, retain_graph=True, allow_unused=True)[0] is not None
    ]
    buffer = torch.full([n + 2 for n in z.shape], float("nan"), dtype=z.dtype)
    sliced = buffer[tuple(slice(1, -1) for _ in z.shape)]
    sliced.copy_(torch.randn(z.shape, generator=torch.Generator().manual_seed(0)))
    for above in (torch.ones((), dtype=z.dtype).expand(z.shape), sliced, sliced.mT.contiguous().mT):
        got = torch.autograd.grad(z, used, above, retain_graph=True)
        want = torch.autograd.grad(z, used, above.contiguous(), retain_graph=True)
        assert max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True)) < 1e-13


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("layout", _claims_depth.LAYOUTS)
def test_layouts(layout, rung):
    assert _claims_depth._layout("depth_attention", rung, layout) < 1e-12


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, rung):
    """One rounding away from float64 on the same inputs; a score of 100 is no trouble."""
    plain = [torch.from_numpy(x).to(dtype) for x in random(4, 3, 64)]
    w = torch.from_numpy(2 * random(64, seed=1)).to(dtype)
    z, lse = depth_attention(plain, w, return_lse=True, rung=rung)
    want, want_lse = depth_attention([x.double() for x in plain], w.double(), return_lse=True)
    assert (z.dtype, lse.dtype) == (dtype, torch.float32)
    assert (z.double() - want).abs().max() <= torch.finfo(dtype).eps * want.abs().max()
    assert (lse.double() - want_lse).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients(dtype):
    tensors = leaves(dtype)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    got, want = (torch.autograd.grad(read_all(*x)[0].sum(), x) for x in (tensors, wide))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() <= 2 * torch.finfo(dtype).eps * max(1.0, b.abs().max())


def test_no_copy_of_the_list():
    """24 states: beside the result a call holds less than one more of them."""
    states = [torch.randn(1024, 512) for _ in range(24)]
    one, w, gain = states[0].nbytes, torch.randn(512), torch.rand(512)
    arrays = [x.numpy() for x in states]
    used = peak_of_arrays(lambda: depth_attention(arrays, w.numpy(), gain=gain.numpy()))
    assert used < 2 * one
    assert peak_of_tensors(lambda: depth_attention(states, w, gain=gain)) < 2 * one
    leaves = [x.clone().requires_grad_() for x in states]
    held = peak_of_tensors(lambda: torch.autograd.grad(depth_attention(leaves, w).sum(), leaves))
    assert held < (24 + 3) * one


def test_many_queries_read_the_list_once_for_all():
    """Sixteen reads at once hold sixteen results, not sixteen times the list."""
    states = [np.ones((256, 64), np.float32) for _ in range(8)]
    queries = np.ones((16, 64), np.float32)
    assert peak_of_arrays(lambda: depth_attention_partial(states, queries)) < 3 * 16 * states[0].nbytes
