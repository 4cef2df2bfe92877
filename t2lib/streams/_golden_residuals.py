"""Golden vectors of Attention Residuals: full and in blocks, in one phase and in two."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from t2lib.ops import depth_attention
from t2lib.streams import build
from t2lib.streams._golden import (
    Case,
    Pairs,
    Vectors,
    backward,
    bottleneck_branches,
    gradient_of,
    load,
    tensors,
)
from t2lib.streams.stream import run

SIZES = {"full": 1, "block4": 4, "block3": 3}


def _residuals(case: str, **options: Any) -> Pairs:
    vectors = tensors("attnres")
    stream = _residual_stream(vectors, case, **options)
    record = run(stream, vectors["x"], bottleneck_branches(vectors))
    backward(record.out, vectors["cot"])
    reads = torch.stack([*record.reads, record.out])  # type: ignore[list-item]
    return {
        "output": (record.out, vectors[f"{case}_out"]),
        "reads": (reads, vectors[f"{case}_reads"]),
        "gradient of the embedding": (gradient_of(vectors["x"]), vectors[f"{case}_grad_x"]),
        "gradient of the queries": (gradient_of(stream.pseudo_queries), vectors[f"{case}_grad_W"]),
    }


def _residual_stream(vectors: Vectors, case: str, **options: Any) -> Any:
    options = {"block_size": SIZES[case], "norm_eps": float(vectors["eps"]), **options}
    stream: Any = build("attention_residuals", width=8, blocks=4, **options).double()
    load(stream.pseudo_queries, vectors["W"])
    load(stream.gains, vectors["G"])
    return stream


def _softmax_weights(case: str) -> Pairs:
    vectors, pairs = tensors("attnres"), {}
    stream = _residual_stream(vectors, case)
    state = stream.start(vectors["x"])
    for i, branch in enumerate([*bottleneck_branches(vectors), None]):
        weights = stream.weights(state.content.sources, i).movedim(-1, 0)
        want = vectors[f"{case}_alpha"][i]
        # Sources that are not there yet are recorded as zero.
        pairs[f"weights {i}"] = (F.pad(weights, (0, 0, 0, 0, 0, len(want) - len(weights))), want)
        if branch is not None:
            state = stream.write(state, i, branch(stream.read(state, i)))
    return pairs


def _zero_queries(case: str) -> Pairs:
    vectors = tensors("attnres")
    fresh = {"block_size": SIZES[case], "norm_eps": float(vectors["eps"])}
    stream = build("attention_residuals", width=8, blocks=4, **fresh).double()
    out = run(stream, vectors["x"], bottleneck_branches(vectors)).out
    return {"output at zero queries": (out, vectors[f"zeroq_{case}_out"])}


def _both_phases() -> Pairs:
    """The recorded triple (o, m, l) is the read times its sum of exponentials: o/l, and m + log l."""
    vectors = tensors("attnres")
    stream = _residual_stream(vectors, "block4", two_phase=True)
    state, place = stream.start(vectors["x"]), 6
    for i, branch in enumerate(bottleneck_branches(vectors)[:place]):
        state = stream.write(state, i, branch(stream.read(state, i)))
    content, at = state.content, place - 4
    parts = ("o1", "m1", "l1", "o2", "m2", "l2", "partial", "h")
    o1, m1, l1, o2, m2, l2, partial_sum, h = (vectors[f"tp_l6_{part}"] for part in parts)
    query, gain = stream.pseudo_queries[place], stream.gains[place]
    own = depth_attention([content.live], query, gain=gain, eps=stream.eps, return_lse=True)
    return {
        "running sum": (content.live, partial_sum),
        "first read": (content.phase.reads[at], o1 / l1[..., None]),
        "first log-sum-exp": (content.phase.lses[at], m1 + l1.log()),
        "second read": (own[0], o2 / l2[..., None]),
        "second log-sum-exp": (own[1], m2 + l2.log()),
        "merged read": (stream.read(state, place), h),
    }


CASES: dict[str, tuple[Case, ...]] = {
    "attnres": (
        partial(_residuals, "full"),
        partial(_softmax_weights, "full"),
        partial(_zero_queries, "full"),
    ),
    "attnres block 4": (
        partial(_residuals, "block4"),
        partial(_softmax_weights, "block4"),
        partial(_zero_queries, "block4"),
    ),
    "attnres block 3": (partial(_residuals, "block3"), partial(_softmax_weights, "block3")),
    "attnres two-phase": (partial(_residuals, "full", two_phase=True, schedule=4),),
    "attnres block 4 two-phase": (partial(_residuals, "block4", two_phase=True), _both_phases),
    "attnres block 3 two-phase": (partial(_residuals, "block3", two_phase=True),),
}
