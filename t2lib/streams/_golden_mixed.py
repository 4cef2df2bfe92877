"""Golden vectors of the streams that mix by numbers: the plain one, averages over depth, windows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib import golden
from t2lib.streams import build
from t2lib.streams._golden import (
    Branches,
    Case,
    Pairs,
    Vectors,
    affine_branches,
    attention,
    backward,
    bottleneck_branches,
    gradient_of,
    load,
    rms_norm,
    swiglu,
    tensors,
)
from t2lib.streams.stream import Record, run


def _prenorm() -> Pairs:
    """Blocks of the reference: RMSNorm, attention without positions, SwiGLU."""
    vectors, setting = tensors("prenorm"), golden.sidecar("prenorm")["setting"]
    eps = setting["rms_eps"]
    branches: Branches = []
    for block in range(setting["L"]):

        def attend(x: Any, at: str = f"l{block}.") -> Tensor:
            unit = rms_norm(x, vectors[f"{at}input_layernorm.weight"], eps)
            q, k, v = (F.linear(unit, vectors[f"{at}self_attn.{part}_proj.weight"]) for part in "qkv")
            mixed = attention(q, k, v, setting["heads"])
            return F.linear(mixed, vectors[f"{at}self_attn.o_proj.weight"])

        def mlp(x: Any, at: str = f"l{block}.") -> Tensor:
            unit = rms_norm(x, vectors[f"{at}post_attention_layernorm.weight"], eps)
            gate, up, down = (vectors[f"{at}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
            return swiglu(unit, gate, up, down)

        branches += [attend, mlp]
    record, pairs = _plain(vectors, branches)
    outputs = torch.stack(record.branches)
    return pairs | {
        "attention outputs": (outputs[::2], vectors["attn_out"]),
        "MLP outputs": (outputs[1::2], vectors["mlp_out"]),
        "half levels": (torch.stack(record.levels[1::2]), vectors["U"]),
    }


def _prenorm_layernorm() -> Pairs:
    """Blocks of torch: LayerNorm, attention with biases, GELU."""
    vectors, setting = tensors("prenorm_layernorm"), golden.sidecar("prenorm_layernorm")["setting"]

    def linear(x: Tensor, name: str, joint: str = ".") -> Tensor:
        return F.linear(x, vectors[f"{name}{joint}weight"], vectors[f"{name}{joint}bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        gain, bias = vectors[f"{name}.weight"], vectors[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], gain, bias, setting["ln_eps"])

    branches: Branches = []
    for block in range(setting["L"]):

        def attend(x: Any, at: str = f"l{block}.") -> Tensor:
            q, k, v = linear(norm(x, f"{at}norm1"), f"{at}self_attn.in_proj", "_").chunk(3, -1)
            return linear(attention(q, k, v, setting["heads"]), f"{at}self_attn.out_proj")

        def mlp(x: Any, at: str = f"l{block}.") -> Tensor:
            return linear(F.gelu(linear(norm(x, f"{at}norm2"), f"{at}linear1")), f"{at}linear2")

        branches += [attend, mlp]
    return _plain(vectors, branches)[1]


def _plain(vectors: Vectors, branches: Branches) -> tuple[Record, Pairs]:
    stream = build("prenorm", width=8, blocks=4)
    record = run(stream, vectors["x0"], branches)
    backward(record.out, vectors["cotangent"])
    levels = torch.stack(record.levels[::2])
    pairs = {
        "output": (record.out, vectors["out"]),
        "levels": (levels, vectors["H"]),
        "gradient of the embedding": (gradient_of(vectors["x0"]), vectors["grad_x0"]),
    }
    return record, pairs


def _elc_bert(variant: str) -> Pairs:
    vectors = tensors(f"elc_bert_{variant}")
    stream: Any = build("elc_bert", width=8, blocks=4, variant=variant).double()
    pairs: Pairs = {}
    for block, logits in enumerate(stream.logits):
        pairs[f"start of logits {block}"] = (logits.detach().clone(), vectors[f"logits_init{block}"])
        load(logits, vectors[f"logits{block}"])
    if variant == "weighted_output":
        start = stream.output_logits.detach().clone()
        pairs["start of output logits"] = (start, vectors["logits_out_init"])
        load(stream.output_logits, vectors["logits_out"])
    record = run(stream, vectors["x0"], affine_branches(vectors, _halves(4)))
    backward(record.out, vectors["cotangent"])
    # With a read at the end, levels are no block outputs.
    levels = torch.stack(record.levels[::2] if variant != "weighted_output" else record.levels[:1])
    pairs |= {
        "output": (record.out, vectors["out"]),
        "levels": (levels, vectors["H"][: len(levels)]),
        "gradient of the embedding": (gradient_of(vectors["x0"]), vectors["grad_x0"]),
    }
    for block, logits in enumerate(stream.logits):
        pairs[f"gradient of logits {block}"] = (gradient_of(logits), vectors[f"grad_logits{block}"])
    return pairs


def _halves(blocks: int) -> list[str]:
    """a0, m0, a1, m1, ...: what the vectors call attention and MLP of each block."""
    return [f"{kind}{block}" for block in range(blocks) for kind in "am"]


def _elc_normalised_embedding() -> Pairs:
    """The states of the normalised variant, from a normalised embedding, with other sublayers."""
    vectors = tensors("vertical_attention")
    stream: Any = build("elc_bert", width=8, blocks=4, variant="normalized").double()
    for block, logits in enumerate(stream.logits):
        load(logits, vectors[f"a_{block}"])
    embedding = F.layer_norm(vectors["x"], (8,), eps=1e-7)
    levels = run(stream, embedding, bottleneck_branches(vectors)).levels[::2]
    return {"levels from a normalised embedding": (torch.stack(levels), vectors["elc_norm_states"])}


def _denseformer(name: str) -> Pairs:
    vectors, setting = tensors(name), golden.sidecar(name)["setting"]
    blocks = setting["L"]
    stream: Any = build(
        "denseformer", width=8, blocks=blocks, dilation=setting["k"], period=setting["p"]
    ).double()
    recorded = {key[5:] for key in vectors if key.startswith("alpha") and key[5:].isdigit()}
    if set(stream.averages) != recorded:
        raise ValueError(f"averages stand after blocks {set(stream.averages)}, recorded are {recorded}")
    pairs: Pairs = {}
    for i, weights in stream.averages.items():
        pairs[f"start of average {i}"] = (weights.detach().clone(), vectors[f"alpha_init{i}"])
        load(weights, vectors[f"alpha{i}"])
    record = run(stream, vectors["x0"], affine_branches(vectors, _halves(blocks)))
    backward(record.out, vectors["cotangent"])
    pairs |= {
        "output": (record.out, vectors["out"]),
        "levels": (torch.stack(record.levels[::2]), vectors["Y"]),
        "gradient of the embedding": (gradient_of(vectors["x0"]), vectors["grad_x0"]),
    }
    for i, weights in stream.averages.items():
        pairs[f"gradient of average {i}"] = (gradient_of(weights), vectors[f"grad_alpha{i}"])
    return pairs


def _vertical(case: str, **options: Any) -> Pairs:
    vectors = tensors("vertical_attention")
    name, eps = "vertical_attention_reconstruction", float(vectors["eps"])
    stream: Any = build(name, width=8, blocks=4, eps=eps, **options).double()
    for read, logits in enumerate(stream.logits):
        load(logits, vectors[f"a_{read}"])
    record = run(stream, vectors["x"], bottleneck_branches(vectors))
    backward(record.out, vectors["cot"])
    recorded = vectors[f"{case}_reads"]
    reads = torch.stack([*record.reads[::2], record.out])[: len(recorded)]  # type: ignore[list-item]
    return {
        "output": (record.out, vectors[f"{case}_out"]),
        "reads": (reads, recorded),
        "gradient of the embedding": (gradient_of(vectors["x"]), vectors[f"{case}_grad_x"]),
    }


def _window(name: str) -> Pairs:
    """The depth reads of a recorded stack: it is given, so what a read would add is not fed back."""
    vectors, constants = tensors(name), golden.sidecar(name)["constants"]
    shared = constants["parameters"] == "shared over depth"
    stream: Any = build("depth_window", width=8, blocks=5, window=constants["K"], shared=shared).double()
    matrices = {"W_Q": stream.query, "W_K": stream.key, "W_V": stream.value}
    for key, parameter in matrices.items():
        recorded = vectors[f"par__{key}"]
        load(parameter, recorded[None] if shared else recorded)
    below: tuple[Any, ...] = ()
    reads = []
    for level, h in enumerate(vectors["in__H"].unbind()):
        z, below = stream.depth_read(below, h, level)
        reads.append(z)
    backward(torch.stack(reads), vectors["cotangent"])
    pairs = {
        "reads": (torch.stack(reads), vectors["out"]),
        "gradient of the levels": (gradient_of(vectors["in__H"]), vectors["grad__H"]),
    }
    for key, parameter in matrices.items():
        recorded = vectors[f"grad__{key}"]
        pairs[f"gradient of {key}"] = (gradient_of(parameter).reshape(recorded.shape), recorded)
    return pairs


CASES: dict[str, tuple[Case, ...]] = {
    "prenorm": (_prenorm, _prenorm_layernorm),
    "elc_bert base": (partial(_elc_bert, "base"),),
    "elc_bert zero": (partial(_elc_bert, "zero"),),
    "elc_bert normalized": (partial(_elc_bert, "normalized"), _elc_normalised_embedding),
    "elc_bert weighted_output": (partial(_elc_bert, "weighted_output"),),
    "denseformer 1x1": (partial(_denseformer, "denseformer_1x1_L4"),),
    "denseformer 2x1": (partial(_denseformer, "denseformer_2x1_L4"),),
    "denseformer 1x2": (partial(_denseformer, "denseformer_1x2_L4"),),
    "denseformer 2x3": (partial(_denseformer, "denseformer_2x3_L4"),),
    "denseformer 4x5": (partial(_denseformer, "denseformer_4x5_L10"),),
    "vertical": (partial(_vertical, "default"),),
    "vertical no skip": (partial(_vertical, "noskip", skip=False),),
    "vertical branch": (partial(_vertical, "branch", source="branch"),),
    "vertical l2": (partial(_vertical, "l2", norm="l2"),),
    "vertical no norm": (partial(_vertical, "nonorm", norm="none"),),
    "window 1": (partial(_window, "dual_depth_read_K1"),),
    "window 2": (partial(_window, "dual_depth_read_K2"),),
    "window all": (partial(_window, "dual_depth_read_K5"),),
    "window 3 owned": (partial(_window, "dual_depth_read_perlevel_K3"),),
}
