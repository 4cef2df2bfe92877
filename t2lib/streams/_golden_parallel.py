"""Golden vectors of the designs with n parallel streams: Hyper-Connections, free and on the manifold."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from t2lib import golden
from t2lib.streams import build
from t2lib.streams._golden import (
    Case,
    Pairs,
    Vectors,
    affine_branches,
    backward,
    gradient_of,
    load,
    stacked,
    tensors,
)

# Parameter of the stream, and what the vectors call it.
FREE = {
    "alpha": "alpha",
    "beta": "beta",
    "alpha_weight": "alpha_fn",
    "beta_weight": "beta_fn",
    "alpha_scale": "s_alpha",
    "beta_scale": "s_beta",
}


def _free(name: str, **options: Any) -> Pairs:
    vectors = tensors(name)
    stream: Any = build("hyper_connections", width=8, blocks=2, streams=4, **options).double()
    pairs: Pairs = {}
    for start in ("alpha", "beta"):
        made = getattr(stream, start).detach().clone()
        pairs[f"start of {start}"] = (made, stacked(vectors, f"{start}_init"))
    names = {mine: theirs for mine, theirs in FREE.items() if hasattr(stream, mine)}
    if stream.dynamic:
        names |= (
            {"norm_gain": "norm_gain"} if stream.norm == "rms" else {"norm_gain": "ln_w", "norm_bias": "ln_b"}
        )
    for mine, theirs in names.items():
        load(getattr(stream, mine), stacked(vectors, theirs))
    out, reads, streams = _streams(stream, vectors)
    return pairs | {
        "output": (out, vectors["out"]),
        "reads": (reads, vectors["reads"]),
        "streams": (streams, vectors["H"]),
        "gradient of the embedding": (gradient_of(vectors["x0"]), vectors["grad_x0"]),
        "gradient of alpha": (gradient_of(stream.alpha), stacked(vectors, "grad_alpha")),
        "gradient of beta": (gradient_of(stream.beta), stacked(vectors, "grad_beta")),
    }


def _manifold(name: str, **options: Any) -> Pairs:
    vectors, setting = tensors(name), golden.sidecar(name)["setting"]
    stream: Any = build(
        "manifold_hyper_connections", width=8, blocks=2, streams=4,
        norm_eps=setting["rms_eps"], iterations=setting["t_max"], **options,
    ).double()  # fmt: skip
    parts = ("pre", "post", "res")
    load(stream.phi, torch.cat([stacked(vectors, f"phi_{part}") for part in parts], -1))
    load(stream.scales, torch.stack([stacked(vectors, f"a_{part}") for part in parts], -1))
    for part in parts:
        load(getattr(stream, f"bias_{part}"), stacked(vectors, f"b_{part}"))
    if stream.head == "learned":
        for mine, theirs in (("phi", "head_phi"), ("scale", "head_a"), ("bias", "head_b")):
            load(getattr(stream, f"head_{mine}"), vectors[theirs])
    pairs: Pairs = {}
    for i in range(4):
        read, mix, write = stream.coefficients(vectors["streams"][i], i)
        for part, coefficient in zip(parts, (read, write, mix), strict=True):
            pairs[f"H_{part} {i}"] = (coefficient, vectors[f"H_{part}{i}"])
    out, reads, streams = _streams(stream, vectors)
    return pairs | {
        "output": (out, vectors["out"]),
        "reads": (reads, vectors["reads"]),
        "streams": (streams, vectors["streams"]),
        "gradient of the embedding": (gradient_of(vectors["x0"]), vectors["grad_x0"]),
        "gradient of b_res": (gradient_of(stream.bias_res), stacked(vectors, "grad_b_res")),
    }


def _streams(stream: Any, vectors: Vectors) -> tuple[Tensor, Tensor, Tensor]:
    """Output, reads, and the streams before each sublayer and at the end."""
    state = stream.start(vectors["x0"])
    found, reads = [state.content.streams], []
    for i, branch in enumerate(affine_branches(vectors, "0123")):
        reads.append(stream.read(state, i))
        state = stream.write(state, i, branch(reads[-1]))
        found.append(state.content.streams)
    out = stream.finish(state)
    backward(out, vectors["cotangent"])
    return out, torch.stack(reads), torch.stack(found)


CASES: dict[str, tuple[Case, ...]] = {
    "hc static": (partial(_free, "hc_static", dynamic=False),),
    "hc": (partial(_free, "hc_dynamic_layernorm"),),
    "hc rms": (partial(_free, "hc_dynamic", norm="rms"),),
    "mhc": (partial(_manifold, "mhc"),),
    "mhc released": (partial(_manifold, "mhc_deepseek_v4", numerics="released", head="learned"),),
}
