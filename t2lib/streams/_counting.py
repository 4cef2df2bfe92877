"""FLOPs of the streams counted on the modules by torch, and what a closed form leaves out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from t2lib.streams._variants import built
from t2lib.streams.stream import Stream

TOKENS, WIDTH = 4, 64
aten = torch.ops.aten
# What an operation on whole vectors costs an element of its output. The counter itself knows the products of
# matrices, but not that with a vector. A layer norm is 3, as in the closed forms.
POINTWISE = {aten.add: 1, aten.sub: 1, aten.mul: 1, aten.div: 1, aten.addcmul: 2, aten.addcmul_: 2}
POINTWISE |= {aten.square: 1, aten.pow: 1}
# An element of its input.
REDUCTIONS = {aten.sum: 1, aten.mean: 1, aten.linalg_vector_norm: 2, aten.native_layer_norm: 3}


def counted(stream: Stream) -> float:
    """FLOPs a token of one pass, with branches that cost nothing."""
    shapes = ((stream.width,), (stream.width, getattr(stream, "channels", 1)))

    def whole(shape: Any) -> bool:
        # Numbers a token, such as softmax weights, are no vectors: they are left out.
        return any(shape[-len(end) :] == end for end in shapes)

    def pointwise(each: int) -> Callable[..., int]:
        return lambda *_, out_shape, **__: each * out_shape.numel() if whole(out_shape) else 0

    def reduction(each: int) -> Callable[..., int]:
        return lambda shape, *_, **__: each * shape.numel() if whole(shape) else 0

    mapping: dict[Any, Any] = {op: pointwise(each) for op, each in POINTWISE.items()}
    mapping |= {op: reduction(each) for op, each in REDUCTIONS.items()}
    mapping[aten.mv] = lambda matrix, *_, **__: 2 * matrix.numel()
    x = torch.randn(TOKENS, stream.width, dtype=torch.float64)
    y = torch.ones_like(x)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        state = stream.start(x)
        for i in range(stream.sublayers):
            read = stream.read(state, i)
            state = stream.write(state, i, y, read["query"] if isinstance(read, dict) else read)
        stream.finish(state)
    return float(counter.get_total_flops() / TOKENS)


def joins(L: int, size: int) -> int:
    """The sublayers that add to a running sum."""
    return 2 * L - -(-2 * L // size)


def two_phases(L: int, size: int, schedule: int) -> float:
    """A first phase of Q queries over c sources normalises them once, not Q times; a merge takes 3."""
    found, sublayers = joins(L, size) - 1 + 1 / TOKENS, 2 * L
    for first in range(0, sublayers, schedule):
        served, covered = min(schedule, sublayers - first), 1 + first // size
        found -= 2 * covered * (served - 1) + served - served / TOKENS
        later = [i for i in range(first, first + served) if 1 + -(-i // size) > covered]
        found += len(later) * (2 + 1 / TOKENS)
    return found


# What one pass does beyond the closed form, in vectors of width d, for L blocks: the adds of the plain
# stream, 2L, where the design has them; one less for every mix, since N products take N - 1 sums; and what
# the lines say. What is done once for all tokens is spread over them.
BEYOND: dict[str, Callable[[int], float]] = {
    "prenorm": lambda L: 2 * L,
    "elc_bert base": lambda L: L - L,
    "elc_bert zero": lambda L: L - L + L,  # x + A
    "elc_bert normalized": lambda L: L - L + L + 5 * L,  # and mean, difference, square, mean, product
    "elc_bert weighted_output": lambda L: L - L + L - 1,
    "denseformer 1x1": lambda L: 2 * L - L,
    "denseformer 2x1": lambda L: 2 * L - L,
    "denseformer 1x2": lambda L: 2 * L - L // 2,
    "denseformer 2x3": lambda L: 2 * L - L // 3,
    "denseformer 4x5": lambda L: 2 * L - L // 5,
    "vertical": lambda L: 2 * L - L - L,  # the division of the norm is done on the weights
    "vertical no skip": lambda L: 2 * L - L - L,
    "vertical branch": lambda L: 2 * L - 2 * (L + 1),
    "vertical l2": lambda L: 2 * L - L - L,
    "vertical no norm": lambda L: 2 * L - L,
    "vertical from the last": lambda L: 2 * L - L - L,
    "window 1": lambda L: 2 * L - L + L,  # the read is added
    "window 2": lambda L: 2 * L - L + L,
    "window all": lambda L: 2 * L - L + L,
    "window 3 owned": lambda L: 2 * L - L + L,
    "window 3 replace": lambda L: 2 * L - L,
    "hc static": lambda L: 4,  # the sum of the streams
    "hc": lambda L: 4,
    "hc rms": lambda L: 4 + 2 * L * 4 * 2,  # and 5 operations in the norm, not 3
    "hc no tanh": lambda L: 2 + 2 * L * 2 * 2,
    "mhc": lambda L: 4,
    "mhc released": lambda L: 0,
    "mhc no spread": lambda L: 3,
    "dca": lambda L: 2 * L - (3 * L + 1),
    "dca v1": lambda L: 2 * L - (3 * L + 1),
    "dca v2": lambda L: 2 * L - (3 * L + 1),
    "dca one way": lambda L: 2 * L - (L + 1),
    # Each source is normalised with a gain, 4, in every sum that reads it.
    "dca inner norm": lambda L: 2 * L - (3 * L + 1) + 4 * sum(range(1, L + 2)),
    "dca k=2 first+last": lambda L: 2 * L - (3 * L + 1) + 4 * sum(min(n, 4) for n in range(1, L + 2)),
    "dca half gate": lambda L: 2 * L - (3 * L + 1),
    "dca k=1": lambda L: 2 * L - (3 * L + 1),
    "dca k=2": lambda L: 2 * L - (3 * L + 1),
    # The norm before W1 takes 3.
    "mudd": lambda L: 2 * L + 3 * L - (4 * L - 3),
    # A norm with a gain takes 4: one a source, a way, and before W1. Each way is added to the newest.
    "mudd prepost code": lambda L: 2 * L + 4 * L + 4 * (L + 1) + 4 * L + (4 * L - 3) - (4 * L - 3),
    "mudd prepost paper": lambda L: 2 * L + 4 * L + 4 * (L + 1) + 5 * (4 * L - 3) - (4 * L - 3),
    # The first read is the identity; the others fold their gain into the query.
    "attnres": lambda L: -6 - 2 * L + 2 * L / TOKENS,
    "attnres block 4": lambda L: -6 - 2 * L + 2 * L / TOKENS + joins(L, 4),
    "attnres block 3": lambda L: -6 - 2 * L + 2 * L / TOKENS + joins(L, 3),
    "attnres two-phase": lambda L: two_phases(L, 1, 4),
    "attnres block 4 two-phase": lambda L: two_phases(L, 4, 4),
    "attnres block 3 two-phase": lambda L: two_phases(L, 3, 3),
    # Nor is a query projected for the first read. For the others a second product with every source, and the
    # gain of a query a token.
    "attnres input query": lambda L: (
        -6
        - 2 * WIDTH
        - 2 * L
        + joins(L, 2)
        + 2 * L * (1 + 1 / TOKENS)
        + 2 * sum(2 + i // 2 for i in range(2 * L))
    ),
    "ddl": lambda L: 0,
    "ddl two-layer gate": lambda L: 0,
    "ddl linear value": lambda L: 0,
    "ddl write-only": lambda L: 0,
    # CC makes its weights from kernel and pool.
    "ddl cc": lambda L: (2 * L + 1) * (2 * 4 * 4 / TOKENS - 1),
    "ddl cc of the paper": lambda L: -(2 * L + 1),
    # The counter does not see the convolutions along the tokens.
    "ddl cc + ec": lambda L: (2 * L + 1) * (2 * 4 * 4 / TOKENS - 1) - 2 * 4 * 4,
    "ddl tc": lambda L: (2 * L + 1) * (-1 - 2 * 4 * 4),
    "ddl tc + ec": lambda L: (2 * L + 1) * (-1 - 2 * 4 * 4) - 2 * 4 * 4,
    "ddl tc a sublayer": lambda L: (2 * L + 1) * (-1 - 2 * 4 * 2),
}
for _name in (
    "a sublayer",
    "two-layer gate",
    "linear value",
    "write-only",
    "kernel guard",
    "near identity",
    "rewind",
):
    BEYOND[f"ddl cc {_name}"] = BEYOND["ddl cc"]


def flops_beyond(variant: str, blocks: int) -> float:
    """Counted FLOPs of one pass, less its closed form and what `BEYOND` says of it: 0 if all three agree."""
    stream = built(variant, width=WIDTH, blocks=blocks)
    return counted(stream) - stream.cost().flops - WIDTH * BEYOND[variant](blocks)
