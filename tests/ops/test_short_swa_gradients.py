"""Gradients of the eager rung: finite differences, both axes, odd layouts, bad values."""

import itertools
from functools import partial

import pytest
import torch

from t2lib.ops import short_swa
from t2lib.ops.short_swa import sees

eager = partial(short_swa, rung="eager")


def leaf(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


CASES = {
    "strict": {"window": 3, "axis": 1},
    "over depth": {"window": 2, "axis": 0},
    "chunk": {"window": 2, "axis": 1, "window_type": "chunk"},
    "labels": {
        "window": 3,
        "axis": 1,
        "documents": torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]]),
        "valid": torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1], [1] * 8], dtype=torch.bool),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_first_order(case):
    q, k, v = leaf(2, 8, 3, seed=1), leaf(2, 8, 3, seed=2), leaf(2, 8, 2, seed=3)
    torch.autograd.gradcheck(partial(eager, **CASES[case]), (q, k, v))


def test_second_order():
    q, k, v = (leaf(5, 2, seed=seed) for seed in (1, 2, 3))
    torch.autograd.gradgradcheck(partial(eager, window=3, axis=0), (q, k, v))


def test_shared_heads_and_several_blocks():
    q, k, v = leaf(70, 4, 2, seed=1), leaf(70, 2, 2, seed=2), leaf(70, 2, 2, seed=3)
    read = partial(eager, window=5, axis=0, head_axis=1)
    torch.autograd.gradcheck(read, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("heads", [None, 1], ids=["own keys", "shared keys"])
@pytest.mark.parametrize("window_type", ["strict", "chunk"])
def test_any_of_the_inputs_may_have_a_gradient(window_type, heads):
    """Longer than a block, so that the keys are cut; the truth is the definition under one softmax."""
    data = [
        torch.randn(70, size, 3, dtype=torch.float64) for size in (4, 2 if heads else 4, 2 if heads else 4)
    ]
    call = {"window": 3, "window_type": window_type, "axis": 0, "head_axis": heads}
    i, j = torch.arange(70)[:, None], torch.arange(70)
    hidden = ~sees(i, j, window=3, window_type=window_type, lookback=1)
    leaves = [x.clone().requires_grad_() for x in data]
    q, k, v = leaves[0], *(x.repeat_interleave(4 // x.shape[1], 1) for x in leaves[1:])
    scores = torch.einsum("ihd,jhd->hij", q, k) / 3**0.5
    truth = torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
    want = torch.autograd.grad(truth.square().sum(), leaves)
    for needs in itertools.product((False, True), repeat=3):
        inputs = [x.clone().requires_grad_(need) for x, need in zip(data, needs, strict=True)]
        z = eager(*inputs, **call)
        assert torch.allclose(z, truth, rtol=0, atol=1e-12)
        if any(needs):
            z.square().sum().backward()
        for x, need, gradient in zip(inputs, needs, want, strict=True):
            assert x.grad is None if not need else torch.allclose(x.grad, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", [33, 90])
def test_a_streaming_read(start):
    """Keys before the first window get no gradient; blocks of keys are cut at places of their own."""
    q, k, v = leaf(100 - start, 2, seed=1), leaf(100, 2, seed=2), leaf(100, 2, seed=3)
    torch.autograd.gradcheck(partial(eager, window=7, axis=0, query_start=start), (q, k, v), fast_mode=True)
    eager(q, k, v, window=7, axis=0, query_start=start).sum().backward()
    assert not v.grad[: start - 6].any()
    assert v.grad[start - 6 :].all()


@pytest.mark.equation("eq-duality")
def test_the_gradient_over_depth_is_the_gradient_over_tokens_swapped():
    over_depth, over_tokens = ([leaf(5, 7, 4, seed=seed) for seed in (1, 2, 3)] for _ in range(2))
    cotangent = torch.randn(5, 7, 4, dtype=torch.float64)
    eager(*over_depth, window=3, axis=0).backward(cotangent)
    z = eager(*(x.transpose(0, 1) for x in over_tokens), window=3, axis=1)
    z.backward(cotangent.transpose(0, 1))
    for one, other in zip(over_depth, over_tokens, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-14)


def test_window_one_has_no_gradient_in_q_and_k():
    q, k, v = (leaf(6, 4, seed=seed) for seed in (1, 2, 3))
    eager(q, k, v, window=1, axis=0).sum().backward()
    assert not q.grad.any()
    assert not k.grad.any()
    assert torch.equal(v.grad, torch.ones_like(v))


def test_an_upstream_gradient_with_stride_zero():
    expanded, written_out = ([leaf(2, 80, 3, 4, seed=seed) for seed in (1, 2, 3)] for _ in range(2))
    eager(*expanded, window=6, axis=1).sum().backward()
    z = eager(*written_out, window=6, axis=1)
    z.backward(torch.ones_like(z).contiguous())
    for one, other in zip(expanded, written_out, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_inputs_sliced_out_of_a_buffer_of_nan():
    buffers = [torch.full((4, 84, 5, 6), float("nan"), dtype=torch.float64) for _ in range(3)]
    plain = [leaf(2, 80, 3, 4, seed=seed) for seed in (1, 2, 3)]
    for buffer, x in zip(buffers, plain, strict=True):
        buffer[1:3, 2:82, 1:4, 1:5] = x.detach()
        buffer.requires_grad_()
    inner = [buffer[1:3, 2:82, 1:4, 1:5] for buffer in buffers]
    eager(*inner, window=6, axis=1).sum().backward()
    eager(*plain, window=6, axis=1).sum().backward()
    for buffer, x in zip(buffers, plain, strict=True):
        assert torch.allclose(buffer.grad[1:3, 2:82, 1:4, 1:5], x.grad, rtol=0, atol=1e-14)
        assert buffer.grad.count_nonzero() == x.grad.count_nonzero()


@pytest.mark.parametrize("place", range(3))
def test_a_bad_entry_reaches_the_gradients_of_its_own_window_only(place):
    """A bad key or value reaches the rows that see it, and through them the keys that those rows see."""
    data = [leaf(20, 4, seed=seed).detach() for seed in (1, 2, 3)]
    data[place][10] = float("nan")
    q, k, v = (x.requires_grad_() for x in data)
    z = eager(q, k, v, window=3, axis=0)
    z.sum().backward()
    # Rows 10, 11 and 12 see key 10 (row 10 alone has the query); they see keys 8 to 12.
    rows = {10} if place == 0 else {10, 11, 12}
    reached = set(range(8, 11)) if place == 0 else set(range(8, 13))
    for x in (q, k):
        bad = set(x.grad.isnan().any(-1).nonzero().flatten().tolist())
        assert bad <= rows | reached
        assert bad
    assert z.isnan().any(-1).nonzero().flatten().tolist() == sorted(rows)
