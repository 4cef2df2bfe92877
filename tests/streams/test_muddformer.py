"""MUDDFormer: its start, its ways, its cost."""

import pytest
import torch

from t2lib.decoder import Decoder
from t2lib.streams import build


@pytest.mark.parametrize("variant", ["plain", "prepost_code", "prepost_paper"])
def test_what_learns_first(variant):
    shape = {"blocks": 3, "width": 16, "heads": 2, "hidden": 24}
    torch.manual_seed(0)
    mine = Decoder(**shape, stream="muddformer", stream_options={"variant": variant}).double()
    tokens = torch.randint(256, (2, 7))
    mine(tokens).square().sum().backward()
    # W2 is zero, so W1 waits a step; W2 and the prior do not.
    for aggregate in mine.stream.aggregates:
        assert not aggregate.inner.grad.any()
        assert aggregate.outer.grad.any()
        assert aggregate.prior.grad.any()


def test_mixing_matrix_at_the_start_is_all_ones():
    stream = build("muddformer", width=6, blocks=3).double()
    x = torch.randn(2, 3, 6).double()
    for matrix in stream.mixing_matrix(x, [torch.randn_like(x) for _ in range(6)]).values():
        assert torch.equal(matrix, torch.ones(7, 7).tril().double()[..., None, None].expand_as(matrix))


def test_four_ways_and_one_after_the_last_block():
    stream = build("muddformer", width=8, blocks=3)
    assert [aggregate.ways for aggregate in stream.aggregates] == [4, 4, 1]
    assert [aggregate.inner.shape[1] for aggregate in stream.aggregates] == [8, 12, 16]
    assert [stream.ways(i) for i in (0, 1)] == [("x",), ("x",)]
    assert stream.ways(2) == ("query", "key", "value", "residual")
    rounded = build("muddformer", width=8, blocks=16, round64=True)
    assert {aggregate.inner.shape[1] for aggregate in rounded.aggregates} == {64, 128}
    # Strictly up: 4 * 16 is 64 already, and becomes 128.
    assert rounded.aggregates[14].inner.shape[1] == 128


def test_costs():
    L, d = 12, 768
    stream = build("muddformer", width=d, blocks=L)
    found = stream.cost()
    assert found.parameters == sum(p.numel() for p in stream.parameters())
    flops = parameters = 0
    for n in range(2, L + 2):
        ways, hidden = (1 if n == L + 1 else 4), 4 * n
        flops += 2 * d * hidden + 2 * hidden * ways * n + 2 * d * ways * n
        parameters += d * hidden + hidden * ways * n + ways * n
    assert (found.flops, found.parameters, found.live) == (flops, parameters, L + 1)
    assert found.boundary == tuple(range(2, L + 1))
    # The paper's estimate of the parameter ratio, eta/6 with eta = (L + 3)/d, against 12 L d².
    assert abs(parameters / (12 * L * d**2) / ((L + 3) / d / 6) - 1) < 0.12


def test_bad_input():
    with pytest.raises(ValueError, match="variant must be one of 'plain', 'prepost_code', 'prepost_paper'"):
        build("muddformer", width=8, blocks=3, variant="pre")
    with pytest.raises(TypeError, match="round64 must be True or False"):
        build("muddformer", width=8, blocks=3, round64=64)
