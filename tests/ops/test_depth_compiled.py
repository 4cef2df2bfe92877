"""The compiled rung of depth_mix and depth_attention, and both in a compiled model. Each takes seconds."""

import pytest
import torch

from t2lib.golden.replay_depth import Operators
from t2lib.ops import RungUnavailable, depth_attention, depth_attention_partial, depth_mix, merge
from t2lib.ops.depth_mix import compiled


def leaves(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def results_and_gradients(call, tensors):
    results = call(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    gradients = torch.autograd.grad(sum((z * torch.cos(z.detach())).sum() for z in results), tensors)
    return [z.detach() for z in results] + list(gradients)


def agree(call, tensors):
    got, want = (
        results_and_gradients(lambda *x, rung=rung: call(Operators(rung), *x), tensors)
        for rung in ("compiled", "eager")
    )
    return max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))


def test_a_list_longer_than_a_group_per_channel_and_token():
    n = compiled.GROUP + 2

    def call(op, *x):
        return op.depth_mix(x[:n], x[n], x[n + 1], outputs=2)

    for tokens in (5, 3):
        assert agree(call, leaves(*[(2, tokens, 24)] * n, (2, n, 24), (2, tokens, 2, n))) < 1e-10


def test_a_read_with_all_it_has():
    def call(op, *x):
        return op.depth_attention(x[:3], x[3], gain=x[4], query=x[5], return_lse=True)

    assert agree(call, leaves(*[(2, 5, 24)] * 3, (24,), (24,), (2, 5, 24))) < 1e-10


def test_two_phases():
    def call(op, *x):
        parts = [op.depth_attention_partial(x[:2], x[2], gains=x[3]) for _ in range(2)]
        return op.merge(parts, return_lse=True)

    assert agree(call, leaves(*[(5, 24)] * 2, (2, 24), (2, 24))) < 1e-10


def test_the_second_phase():
    def call(op, *x):
        part, rest = (x[5], x[6]), {"norm_gain": x[7], "norm_eps": 1e-3, "return_lse": True}
        return op.depth_attention(x[:2], x[2], gain=x[3], query=x[4], parts=[part], **rest)

    shapes = [(5, 24)] * 2 + [(24,), (24,), (5, 24), (5, 24), (5,), (24,)]
    assert agree(call, leaves(*shapes)) < 1e-10


def test_half_precision_is_rounded_once():
    """A group ends in float32; a running sum in float16 would lose the small terms."""
    small, n = 2.0**-12, 4 * compiled.GROUP
    states = [torch.ones(2, 8).half()] + [torch.full((2, 8), small).half()] * n
    z = depth_mix(states, torch.ones(n + 1).half(), rung="compiled")
    assert torch.equal(z, torch.full((2, 8), 1 + n * small).half())


def test_inside_a_compiled_model_without_a_break():
    """The rung that "auto" takes, traced in one graph together with what is around it."""

    def model(x, w, b):
        states = [x, torch.tanh(x), x * x]
        mixed = depth_mix(states, b)
        reads, lses = depth_attention_partial(states, w[None])
        own, lse = depth_attention([mixed], w, return_lse=True)
        first = (reads[0], lses[0])
        z, normed = depth_attention([mixed], w, parts=[first], norm_gain=w)
        return merge([first, (own, lse)]) + depth_attention([*states, mixed], w) + z * normed

    tensors = leaves((2, 5, 8), (8,), (3,))
    want = results_and_gradients(model, tensors)
    got = results_and_gradients(torch.compile(model, fullgraph=True), tensors)
    assert max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True)) < 1e-10


def test_no_compiler_no_rung(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(RungUnavailable, match="TORCHDYNAMO_DISABLE is set"):
        depth_mix([torch.ones(3)], torch.ones(1), rung="compiled")
