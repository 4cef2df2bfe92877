"""Golden vectors of the streams that choose: DeepCrossAttention and MUDDFormer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib.streams import build
from t2lib.streams._golden import (
    Branches,
    Case,
    Pairs,
    Vectors,
    attention,
    backward,
    gradient_of,
    load,
    named,
    rms_norm,
    swiglu,
    tensors,
)
from t2lib.streams.deep_cross_attention import GRN
from t2lib.streams.stream import every_way, run


def _attend(w: Vectors, eps: Any, read: Any, rope: bool = False) -> Tensor:
    """Attention with query, key and value each from its own way behind its own norm."""
    ways = ("query", "key", "value")
    q, k, v = (F.linear(rms_norm(every_way(read, x), w[f"n{x[0]}"], eps), w[f"W{x[0]}"]) for x in ways)
    return F.linear(attention(q, k, v, 2, rope), w["Wo"])


def _cross_branches(vectors: Vectors) -> Branches:
    eps = vectors["eps"]
    found: Branches = []
    for block in range(4):
        w = named(vectors, f"blk{block}_")

        def mlp(x: Any, w: Vectors = w) -> Tensor:
            hidden = F.gelu(F.linear(rms_norm(x, w["nf"], eps), w["W1"], w["c1"]))
            return F.linear(hidden, w["W2"], w["c2"])

        found += [partial(_attend, w, eps), mlp]
    return found


def _cross(case: str, prefix: str = "", **options: Any) -> Pairs:
    """The network; `prefix` names the static weights where a window has its own."""
    vectors = tensors("dca")
    eps = float(vectors["eps"])
    stream: Any = build("deep_cross_attention", width=8, blocks=4, norm_eps=eps, **options).double()
    for grn, name in zip([*stream.grns, stream.grn_out], (*_BLOCKS, "fin"), strict=True):
        # A window takes the first rows of the full weights.
        load(grn.static, vectors[f"{prefix}{name}_b"][:, : grn.static.shape[1]])
        load(grn.dynamic, vectors[f"{name}_w"])
        if grn.gain is not None:
            load(grn.gain, vectors[f"{name}_ggain"])
    record = run(stream, vectors["x"], _cross_branches(vectors))
    backward(record.out, vectors["cot"])
    pairs = {
        "output": (record.out, vectors[f"{case}_out"]),
        "gradient of the embedding": (gradient_of(vectors["x"]), vectors[f"{case}_grad_x"]),
    }
    if f"{case}_f" in vectors:
        added = [a + b for a, b in zip(record.branches[::2], record.branches[1::2], strict=True)]
        pairs["block outputs"] = (torch.stack([vectors["x"], *added]), vectors[f"{case}_f"])
    return pairs


_BLOCKS = ("blk0", "blk1", "blk2", "blk3")


def _cross_start(**options: Any) -> Pairs:
    """As prescribed at the start it is the plain transformer."""
    vectors = tensors("dca")
    stream = build("deep_cross_attention", width=8, blocks=4, **options).double()
    out = run(stream, vectors["x"], _cross_branches(vectors)).out
    return {"output at the start": (out, vectors["init_out"])}


def _generalised_sum(version: str) -> Pairs:
    vectors = tensors("dca")
    grn = GRN(8, 5, 1, version, "relu", None).double()
    load(grn.static, vectors["op_b_v1" if version == "v1" else "op_b_v2"][None])
    if version == "v3":
        load(grn.dynamic, vectors["op_w"][None])
    out = grn(vectors["op_G"].unbind(0), lambda gates: gates)[0]
    backward(out, vectors["cot"])
    return {
        "one sum": (out, vectors[f"op_{version}_out"]),
        "gradient of its sources": (gradient_of(vectors["op_G"]), vectors[f"op_{version}_grad_G"]),
    }


def _mudd_branches(vectors: Vectors, rope: bool = False) -> Branches:
    eps = vectors["eps"]
    found: Branches = []
    for block in range(4):
        w = named(vectors, f"L{block}_")

        def mlp(x: Any, w: Vectors = w) -> Tensor:
            return swiglu(rms_norm(x, w["nf"], eps), w["w1"], w["w3"], w["w2"])

        found += [partial(_attend, w, eps, rope=rope), mlp]
    return found


def _mudd_stream(vectors: Vectors, variant: str) -> Any:
    stream: Any = _fresh_mudd(vectors, variant)
    for block, aggregate in enumerate(stream.aggregates):
        load(aggregate.inner, vectors[f"L{block}_da_w1"])
        load(aggregate.outer, vectors[f"L{block}_da_w2"])
        load(aggregate.prior, vectors[f"L{block}_da_a"])
        if variant != "plain":
            load(aggregate.gain, vectors[f"gdw_{block}"])
            post = stream.post[block]
            code = variant == "prepost_code"
            recorded = vectors[f"gpost_{block}"][None] if code else vectors[f"gpost4_{block}"]
            load(post, recorded[: len(post)])
    for source, gain in enumerate(stream.pre):
        load(gain, vectors[f"gpre_{source}"])
    return stream


def _fresh_mudd(vectors: Vectors, variant: str) -> Any:
    eps = float(vectors["eps"])
    return build("muddformer", width=8, blocks=4, variant=variant, norm_eps=eps).double()


def _mudd(variant: str, prefix: str = "", rope: bool = False) -> Pairs:
    vectors = tensors("muddformer")

    def finished(stream: Any) -> Tensor:
        record = run(stream, vectors["x"], _mudd_branches(vectors, rope))
        return rms_norm(record.out, vectors["final_gain"], vectors["eps"])

    out = finished(_mudd_stream(vectors, variant))
    backward(out, vectors["cot"])
    pairs = {
        f"{prefix}output": (out, vectors[f"{prefix}out"]),
        f"gradient of the embedding {prefix}": (gradient_of(vectors["x"]), vectors[f"{prefix}grad_x"]),
    }
    if not rope:
        pairs["output at the start"] = (finished(_fresh_mudd(vectors, variant)), vectors["init_out"])
    return pairs


def _mudd_inside() -> Pairs:
    """States, weights and ways after each block."""
    vectors, pairs = tensors("muddformer"), {}
    stream = _mudd_stream(vectors, "plain")
    state = stream.start(vectors["x"])
    for i, branch in enumerate(_mudd_branches(vectors)):
        state = stream.write(state, i, branch(stream.read(state, i)))
        if i % 2:
            block, sources = i // 2, state.content.sources
            aggregate = stream.aggregates[block]
            weights = (aggregate.weights(sources[-1]) + aggregate.prior).movedim(-2, 0)
            pairs[f"states {block}"] = (torch.stack(sources), vectors["X_states"][: block + 2])
            pairs[f"weights {block}"] = (weights, vectors[f"dw_{block}"])
            pairs[f"ways {block}"] = (torch.stack(state.content.reads), vectors[f"streams_{block}"])
    return pairs


CASES: dict[str, tuple[Case, ...]] = {
    "dca": (partial(_cross, "full_paper"), _cross_start, partial(_generalised_sum, "v3")),
    "dca v1": (partial(_generalised_sum, "v1"), partial(_cross_start, version="v1")),
    "dca v2": (partial(_generalised_sum, "v2"), partial(_cross_start, version="v2")),
    "dca one way": (partial(_cross_start, version="v1", multiway=False),),
    "dca inner norm": (partial(_cross, "full_normed", inner_norm=True),),
    "dca half gate": (partial(_cross, "full_paper", gate="half"),),
    "dca k=1": (partial(_cross, "k1_paper", window=1), partial(_cross_start, window=1)),
    "dca k=2": (partial(_cross, "k2_paper", window=2), partial(_cross_start, window=2)),
    "dca k=2 first+last": (
        partial(_cross, "k2_lucid", "k2", inner_norm=True, window=2, selection="first_last"),
    ),
    "mudd": (partial(_mudd, "plain"), partial(_mudd, "plain", "rope_", rope=True), _mudd_inside),
    "mudd prepost code": (partial(_mudd, "prepost_code", "prepost_jax_"),),
    "mudd prepost paper": (partial(_mudd, "prepost_paper", "prepost_paper_"),),
}
