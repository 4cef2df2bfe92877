"""ELC-BERT: convexity, start."""

import pytest
import torch
from sublayers import close

from t2lib.streams import build


def test_reads_are_convex():
    """Weights are positive and sum to 1; block l of a fresh "base" gives its predecessor e/(e + l - 1)."""
    stream = build("elc_bert", width=4, blocks=6, variant="base").double()
    outputs = [torch.zeros(2, 4).double()] * 12
    matrix = stream.mixing_matrix(outputs[0], outputs)[..., 0]
    # Source 2l is what the MLP of block l put out, and it stands for the whole output of the block.
    reads = matrix[:12:2, ::2][:, :6]
    assert (reads >= 0).all()
    close(reads.sum(-1), torch.ones(6).double())
    e = torch.tensor(1.0).exp().double()
    close(reads.diagonal(), torch.stack([e / (e + block) for block in range(6)]), 1e-7)
    # Attention and MLP of a block always have the same weight in what later blocks read.
    assert torch.equal(matrix[2::2, 1::2].tril(), matrix[2::2, 2::2].tril())


def test_only_the_unit_is_the_block():
    stream = build("elc_bert", width=4, blocks=2, variant="base").double()
    x, a = torch.randn(2, 3, 4).double()
    state = stream.write(stream.start(x), 0, a)
    assert torch.equal(stream.read(state, 1), a)
    zero = build("elc_bert", width=4, blocks=2, variant="zero").double()
    state = zero.write(zero.start(x), 0, a)
    assert torch.equal(zero.read(state, 1), x + a)


def test_parameter_counts():
    for variant, count in (("zero", 78), ("weighted_output", 91)):
        stream = build("elc_bert", width=8, blocks=12, variant=variant)
        assert sum(p.numel() for p in stream.parameters()) == count == stream.cost().parameters


def test_unknown_variant():
    with pytest.raises(ValueError, match=r"variant must be one of 'base', .* got 'one'"):
        build("elc_bert", width=8, blocks=2, variant="one")


def test_normalized_takes_its_statistics_in_float32():
    """In float16 the square of a small output is 0, and the norm would divide by nothing."""
    stream = build("elc_bert", width=64, blocks=2, variant="normalized").half()
    small = 2.0**-13 * torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(0))
    y = small.half().requires_grad_()
    state = stream.start(torch.zeros(1, 3, 64).half())
    for i in range(2):
        state = stream.write(state, i, y)
    h = state.content.sources[-1]
    h.float().square().sum().backward()
    wide = 2 * y.detach().double()
    wide = wide - wide.mean(-1, keepdim=True)
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-7).sqrt()
    assert (h.double() - want).abs().max() < 2e-3 * want.abs().max()
    assert y.grad.isfinite().all()
