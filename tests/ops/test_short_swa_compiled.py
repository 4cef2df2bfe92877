"""The compiled rung: few shapes, since each new kind of shape compiles for seconds."""

import pytest
import torch

from t2lib.bench._measure import peak_bytes
from t2lib.ops import RungUnavailable, short_swa
from t2lib.ops.short_swa import compiled


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


@pytest.mark.equation("eq-duality")
def test_both_axes_lengths_and_windows_share_their_compilations():
    agrees_with_eager((2, 37, 3, 4), window=5, axis=1)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    agrees_with_eager((2, 71, 3, 4), window=9, axis=1)
    agrees_with_eager((2, 23, 5, 6), window=4, axis=1)
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


def test_memory_is_linear_in_the_length():
    """After the compilations above: no array as large as T × T, nor one with a copy of every window."""
    peaks = []
    for tokens in (1024, 2048, 4096):
        inputs = [draw(2, tokens, 3, 4, seed=seed) for seed in (1, 2, 3)]

        def step(inputs=inputs):
            short_swa(*inputs, window=64, axis=1, rung="compiled").sum().backward()

        step()
        peaks.append(peak_bytes(step))
    assert peaks[1] <= 2.1 * peaks[0]
    assert peaks[2] <= 2.1 * peaks[1]
    assert peaks[2] < 30 * inputs[0].nbytes


def test_a_failing_compiler_is_no_silent_fallback(monkeypatch):
    def broken(*arguments):
        raise torch._dynamo.exc.TorchDynamoException("no compiler\nand a long trace")

    monkeypatch.setattr(compiled, "_compiled", lambda function: broken)
    x = torch.ones(4, 2)
    sentence = (
        "rung='compiled' cannot run here: torch.compile failed with TorchDynamoException, no compiler; "
    )
    with pytest.raises(RungUnavailable) as raised:
        short_swa(x, x, x, window=2, axis=0, rung="compiled")
    assert str(raised.value) == sentence + "rung='eager' computes the same."


def test_second_order_is_refused():
    inputs = [draw(2, 37, 3, 4, seed=seed) for seed in (1, 2, 3)]
    z = short_swa(*inputs, window=5, axis=1, rung="compiled")
    (gradient,) = torch.autograd.grad(z.square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
