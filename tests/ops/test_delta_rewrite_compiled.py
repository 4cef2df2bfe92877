"""The compiled rung of delta_rewrite, and eager inside another torch.compile."""

import pytest
import torch
from stream_cases import draw

from t2lib.ops import Tape, delta_rewrite


def inputs(tokens, d, d_v, transposed=False):
    X = draw(2, tokens, d, d_v, seed=1).detach()
    X = X.mT.contiguous().mT if transposed else X
    return (
        X.requires_grad_(),
        draw(2, tokens, d, seed=2),
        draw(2, tokens, d_v, seed=3),
        draw(2, tokens, seed=4),
    )


def agrees_with_eager(given, cotangent=None, make_tape=lambda: None, **options):
    found = []
    for rung in ("compiled", "eager"):
        out = delta_rewrite(*given, rung=rung, tape=make_tape(), **options)
        upstream = (
            torch.linspace(-1, 1, out.numel()).reshape(out.shape).double() if cotangent is None else cotangent
        )
        found.append((out, *torch.autograd.grad(out, given, upstream)))
    assert all((a - b).abs().max() <= 1e-12 for a, b in zip(*found, strict=True))
    return found[0][0]


@pytest.mark.parametrize("transposed", [False, True])
def test_both_layouts_and_all_lengths_share_their_compilations(transposed):
    """So do tapes and upstream gradients of stride 0. 16 rows of 3 are whole vectors of any processor."""
    given = inputs(7, 16, 3, transposed)
    assert agrees_with_eager(given).stride() == given[0].stride()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    agrees_with_eager(inputs(12, 16, 3, transposed))
    agrees_with_eager(given, make_tape=Tape)
    if not transposed:
        agrees_with_eager(given, torch.ones(1, 1, 1, 1, dtype=torch.float64).expand(2, 7, 16, 3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_write_only_and_rows_that_are_no_whole_vectors():
    agrees_with_eager(inputs(7, 5, 3), erase=False)


def test_eager_in_one_graph():
    given = inputs(5, 6, 2)

    def step(X, k, v, beta):
        X = delta_rewrite(X, k, v, beta, rung="eager")
        return delta_rewrite(X, k, v, beta, rung="eager").square().sum()

    whole = torch.compile(step, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(f(*given), given) for f in (whole, step)]
    assert all((a - b).abs().max() <= 1e-12 for a, b in zip(*found, strict=True))
