"""Attention Residuals: two phases, convex weights, an input query, costs."""

import pytest
import torch
from sublayers import close

from t2lib.ops import depth_attention_partial
from t2lib.streams import build, cost
from t2lib.streams.mixing import mix
from t2lib.streams.stream import run


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_two_phases_change_nothing(size):
    torch.manual_seed(1)
    one = build("attention_residuals", width=6, blocks=3, block_size=size).double()
    torch.nn.init.normal_(one.pseudo_queries)
    x, ys = torch.randn(2, 4, 6).double(), [lambda h, a=a: torch.sin(a * h) for a in range(1, 7)]
    want = run(one, x, ys)
    for schedule in (1, 2, 4, 6):
        two = build(
            "attention_residuals", width=6, blocks=3, block_size=size, two_phase=True, schedule=schedule
        ).double()
        two.load_state_dict(one.state_dict())
        got = run(two, x, ys)
        for a, b in zip([*got.reads, got.out], [*want.reads, want.out], strict=True):
            close(a, b, 1e-12)


def test_a_first_phase_serves_the_sublayers_of_its_schedule_only():
    stream = build("attention_residuals", width=6, blocks=3, two_phase=True, schedule=4)
    state = stream.start(torch.randn(1, 2, 6))
    assert state.content.phase.reads.shape == (4, 1, 2, 6)
    queries = depth_attention_partial(
        [torch.randn(1, 2, 6)], stream.pseudo_queries[:4], gains=stream.gains[:4]
    )
    assert queries[0].shape == (4, 1, 2, 6)


@pytest.mark.parametrize(
    "options", [{}, {"block_size": 3}, {"block_size": 3, "two_phase": True}, {"input_query": True}]
)
def test_mixing_matrix_is_convex_and_says_what_was_read(options):
    torch.manual_seed(2)
    stream = build("attention_residuals", width=6, blocks=3, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    ys = [lambda h, a=a: torch.sin(a * h) for a in range(1, 7)]
    record = run(stream, torch.randn(2, 4, 6).double(), ys)
    x = record.reads[0]
    matrix = stream.mixing_matrix(x, record.branches)
    assert matrix.shape == (7, 7, 2, 4)
    close(mix(matrix, torch.stack([x, *record.branches])), torch.stack([*record.reads, record.out]))
    assert (matrix >= 0).all()
    size = stream.size
    for reader in range(7):
        # The outputs of one block share a weight; the weights of the embedding and the sums add to one.
        sums = [0, *range(1, reader + 1, size)]
        close(matrix[reader, sums].sum(0), torch.ones(2, 4).double(), 1e-12)
        for source in range(1, reader + 1):
            first = 1 + (source - 1) // size * size
            close(matrix[reader, source], matrix[reader, first], 1e-12)
        assert not matrix[reader, reader + 1 :].any()


def test_an_input_query_starts_as_none_and_then_matters():
    torch.manual_seed(3)
    plain = build("attention_residuals", width=6, blocks=2).double()
    torch.nn.init.normal_(plain.pseudo_queries)
    mine = build("attention_residuals", width=6, blocks=2, input_query=True).double()
    mine.load_state_dict(plain.state_dict(), strict=False)
    x, ys = torch.randn(1, 3, 6).double(), [torch.sin] * 4
    close(run(mine, x, ys).out, run(plain, x, ys).out, 1e-14)
    run(mine, x, ys).out.square().sum().backward()
    assert mine.projections.grad[1:].abs().sum() > 0
    torch.nn.init.normal_(mine.projections)
    assert (run(mine, x, ys).out - run(plain, x, ys).out).abs().max() > 1e-3


def test_costs():
    for blocks, width in ((4, 8), (12, 768)):
        full = build("attention_residuals", width=width, blocks=blocks).cost()
        closed, last = cost.attention_residuals(width, blocks), 2 * blocks + 1
        # The closed forms leave out the read of the output.
        assert full.flops == closed.flops + 6 * width * last
        assert full.vectors == closed.vectors + last + 1
        assert full.parameters == closed.parameters + 2 * width
        assert (full.live, full.cache, full.boundary) == (closed.live, 0, closed.boundary)
        for groups in (1, 2, 4, blocks):
            size = 2 * blocks // groups
            if size == 1 or 2 * blocks % groups:
                continue
            block = build(
                "attention_residuals", width=width, blocks=blocks, block_size=size, two_phase=True
            ).cost()
            closed = cost.block_attention_residuals(width, blocks, groups=groups)
            assert block.flops == closed.flops + 6 * width * (groups + 1)
            assert block.vectors == closed.vectors + groups + 2
            assert (block.live, block.boundary) == (closed.live, closed.boundary)
    stream = build("attention_residuals", width=768, blocks=12, block_size=3, two_phase=True)
    assert stream.cost().vectors - 10 == 172
    assert stream.cost().parameters == sum(p.numel() for p in stream.parameters()) == 2 * 25 * 768


def test_bad_input():
    def sentence(**options):
        with pytest.raises((TypeError, ValueError)) as caught:
            build("attention_residuals", width=8, blocks=3, **options)
        return str(caught.value)

    assert sentence(block_size=0) == "block_size must be an integer of at least 1; got 0."
    assert sentence(block_size=7) == "block_size must be at most 2 * blocks = 6, in sublayers; got 7."
    assert sentence(block_size=2.0) == "block_size must be an integer of at least 1; got 2.0."
    assert "schedule is read with two_phase=True only" in sentence(schedule=2)
    assert "two_phase must be False" in sentence(two_phase=True, input_query=True)
