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
