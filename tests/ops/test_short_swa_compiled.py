"""The compiled rung: few shapes, since each new kind of shape compiles for seconds."""

import pytest
import torch

from t2lib.bench._measure import peak_bytes
from t2lib.ops import RungUnavailable, _compile, short_swa


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def agrees_with_eager(shape, key_shape=None, **arguments):
    key_shape = key_shape or shape
    inputs = draw(*shape, seed=1), draw(*key_shape, seed=2), draw(*key_shape, seed=3)
    z, want = (short_swa(*inputs, rung=rung, **arguments) for rung in ("compiled", "eager"))
    assert torch.allclose(z, want, rtol=0, atol=1e-12)
    cotangent = torch.randn_like(want)
    gradients, wanted = (torch.autograd.grad(out, inputs, cotangent) for out in (z, want))
    for one, other in zip(gradients, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-11)


TOKENS = 4096


def test_strict_windows_and_their_gradients_in_linear_memory():
    agrees_with_eager((2, TOKENS, 3, 4), window=5, axis=1)
    inputs = [draw(2, TOKENS, 3, 4, seed=seed) for seed in (1, 2, 3)]
    peak = peak_bytes(lambda: short_swa(*inputs, window=5, axis=1, rung="compiled").sum().backward())
    # Neither a T × T array, even of single bytes, nor a copy of every window in either pass.
    assert peak < TOKENS * TOKENS
    assert peak < 20 * inputs[0].nbytes


@pytest.mark.equation("eq-duality")
def test_one_compilation_serves_all_lengths_and_any_axis():
    def forward(*shape, axis):
        inputs = [draw(*shape, seed=seed).detach() for seed in (1, 2, 3)]
        z, want = (short_swa(*inputs, window=5, axis=axis, rung=rung) for rung in ("compiled", "eager"))
        assert torch.allclose(z, want, rtol=0, atol=1e-12)

    forward(2, TOKENS, 3, 4, axis=1)
    forward(2, 71, 3, 4, axis=1)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for length in (6, 37, 90, 1000):
        forward(2, length, 3, 4, axis=1)
    # Layers between two axes of tokens: to the code it is nothing else.
    forward(2, 9, 3, 4, axis=1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_labels_chunks_shared_heads_and_a_late_start():
    n_k, start = 29, 10
    agrees_with_eager(
        (2, 4, n_k - start, 4),
        (2, 2, n_k, 4),
        window=3,
        axis=2,
        window_type="chunk",
        lookback=1,
        head_axis=1,
        query_start=start,
        documents=torch.arange(n_k).reshape(1, 1, -1) // 11,
        valid=(torch.arange(n_k) % 7 > 0).reshape(1, 1, -1),
    )


def test_a_failing_compiler_is_no_silent_fallback(monkeypatch):
    def broken(*arguments):
        raise torch._dynamo.exc.TorchDynamoException("no compiler\nand a long trace")

    monkeypatch.setattr(_compile, "_compiled", lambda function, dynamic: broken)
    x = torch.ones(4, 2)
    sentence = (
        "rung='compiled' cannot run here: torch.compile failed with TorchDynamoException, no compiler; "
    )
    with pytest.raises(RungUnavailable) as raised:
        short_swa(x, x, x, window=2, axis=0, rung="compiled")
    assert str(raised.value) == sentence + "rung='eager' computes the same."


def test_second_order_is_refused():
    inputs = [draw(2, TOKENS, 3, 4, seed=seed) for seed in (1, 2, 3)]
    z = short_swa(*inputs, window=5, axis=1, rung="compiled")
    (gradient,) = torch.autograd.grad(z, inputs[:1], draw(*z.shape), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
