"""FLOPs of the routed and rewritten streams, counted on the modules, against their closed forms."""

import pytest
import torch
from test_routed_and_rewritten import built
from test_stream_cost import POINTWISE, REDUCTIONS
from torch.utils.flop_counter import FlopCounterMode

TOKENS = 4


def counted(stream):
    """FLOPs a token of one pass: matrix products, and operations on whole vectors; branches cost nothing."""
    shapes = ((stream.width,), (stream.width, getattr(stream, "channels", 1)))

    def whole(shape):
        return any(shape[-len(end) :] == end for end in shapes)

    def pointwise(each):
        return lambda *_, out_shape, **__: each * out_shape.numel() if whole(out_shape) else 0

    def reduction(each):
        return lambda shape, *_, **__: each * shape.numel() if whole(shape) else 0

    mapping = {op: pointwise(each) for op, each in POINTWISE.items()}
    mapping |= {op: reduction(each) for op, each in REDUCTIONS.items()}
    x = torch.randn(TOKENS, stream.width, dtype=torch.float64)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        state = stream.start(x)
        for i in range(stream.sublayers):
            read = stream.read(state, i)
            normed = read["query"] if isinstance(read, dict) else read
            state = stream.write(state, i, torch.ones_like(x), normed)
        stream.finish(state)
    return counter.get_total_flops() / TOKENS


# What one pass does beyond the closed form, in vectors of width d, for L blocks. N products take N - 1 sums:
# every mix is one below. The adds of the plain stream, 2L, count where the design has them. What is done once
# for all tokens is spread over them.
BEYOND = {
    "dca": lambda L: 2 * L - (3 * L + 1),
    "dca window 1": lambda L: 2 * L - (3 * L + 1),
    "dca v1 one way": lambda L: 2 * L - (L + 1),
    # The norm before W1 takes 3.
    "muddformer": lambda L: 2 * L + 3 * L - (4 * L - 3),
    # A norm with a gain takes 4: one a source, a way, and before W1. Each way is added to the newest.
    "muddformer prepost": lambda L: 2 * L + 4 * L + 4 * (L + 1) + 5 * (4 * L - 3) - (4 * L - 3),
    # The first read is the identity; the others fold their gain into the query.
    "attnres": lambda L: -6 - 2 * L + 2 * L / TOKENS,
    "ddl": lambda L: 0,
    # CC makes its weights from kernel and pool; the counter does not see the convolution of the embedding.
    "ddl cc ec": lambda L: (2 * L + 1) * (2 * 3 * 3 / TOKENS - 1) - 2 * 4 * 3,
    # Nor those of TC.
    "ddl tc": lambda L: (2 * L + 1) * (-1 - 2 * 4 * 2),
    "ddl write-only": lambda L: (2 * L + 1) * (2 * 2 * 2 / TOKENS - 1),
}


@pytest.mark.parametrize("blocks", [3, 6])
@pytest.mark.parametrize("variant", BEYOND)
def test_flops_are_those_counted_on_the_module(variant, blocks):
    stream = built(variant, width=64, blocks=blocks)
    assert counted(stream) - stream.cost().flops == 64 * BEYOND[variant](blocks)
    assert stream.cost().parameters == sum(p.numel() for p in stream.parameters())


def test_two_phases_and_projected_queries_stay_within_their_closed_forms():
    """The closed form counts a norm a query, which the first phase shares among its queries."""
    for variant in ("attnres block 3 two-phase", "attnres input query"):
        stream = built(variant, width=64, blocks=6)
        assert 0.9 < counted(stream) / stream.cost().flops < 1.1
