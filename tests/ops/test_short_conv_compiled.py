"""The compiled rung of short_conv, and eager inside another torch.compile."""

import torch
from stream_cases import draw

from t2lib.ops import short_conv


def given(length):
    return draw(2, length, 3, seed=1), draw(3, 4, seed=2), draw(3, seed=3), draw(2, 3, 3, seed=4)


def filtered(x, w, b, s, *, rung):
    documents = (torch.arange(x.shape[1]) // 3).reshape(1, -1)
    use = {"axis": 1, "activation": "silu", "documents": documents, "return_state": True, "rung": rung}
    return short_conv(x, w, b, initial_state=s, **use)


def agree(one, other, leaves):
    found = []
    for function in (one, other):
        y, state = function(*leaves)
        found.append((y, state, *torch.autograd.grad(y.square().sum() + state.sum(), leaves)))
    assert all((a - b).abs().max() <= 1e-12 for a, b in zip(*found, strict=True))


def compiled(*leaves):
    return filtered(*leaves, rung="compiled")


def eager(*leaves):
    return filtered(*leaves, rung="eager")


def test_it_equals_eager_and_lengths_share_their_compilations():
    agree(compiled, eager, given(7))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    agree(compiled, eager, given(11))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    # Shorter than the taps, and one entry, as in decoding.
    agree(compiled, eager, given(2))
    agree(compiled, eager, given(1))


def test_eager_in_one_graph():
    agree(torch.compile(eager, fullgraph=True, backend="aot_eager"), eager, given(7))
