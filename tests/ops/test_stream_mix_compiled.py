"""The compiled rung of stream_mix and sinkhorn, and eager inside another torch.compile."""

import torch
from stream_cases import draw

from t2lib.ops import sinkhorn, stream_mix


def step(X, logits, write, branch, read, *, rung):
    """One step of mHC, with what the next sublayer reads."""
    mix = sinkhorn(logits, iterations=2, rung=rung)
    new, h = stream_mix(X, mix=mix, write=write, branch=branch, read=read, rung=rung)
    return (new * new).sum() + h.sum()


def given(tokens):
    return (draw(2, tokens, 4, 6, seed=1), draw(2, tokens, 4, 4, seed=2), draw(2, tokens, 4, seed=3),
            draw(2, tokens, 6, seed=4), draw(4, seed=5))  # fmt: skip


def agree(one, other, leaves):
    found = [(f(*leaves), *torch.autograd.grad(f(*leaves), leaves)) for f in (one, other)]
    assert all((a - b).abs().max() <= 1e-11 for a, b in zip(*found, strict=True))


def test_it_equals_eager_and_lengths_share_their_compilations():
    def compiled(*leaves):
        return step(*leaves, rung="compiled")

    def eager(*leaves):
        return step(*leaves, rung="eager")

    agree(compiled, eager, given(5))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    agree(compiled, eager, given(9))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_eager_in_one_graph():
    def eager(*leaves):
        return step(*leaves, rung="eager")

    agree(torch.compile(eager, fullgraph=True, backend="aot_eager"), eager, given(5))
