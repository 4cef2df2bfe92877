"""Golden vectors of Deep Delta Learning: one update, the compressors, whole stacks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib.streams._golden import (
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
from t2lib.streams._variants import DELTA
from t2lib.streams.compressors import ChannelConv, ChannelMix, EmbeddingConv, TokenConv, mixing_of
from t2lib.streams.stream import run
from t2lib.token_pass import Pass

Named = dict[str, nn.Parameter]


def _heads(heads: Any, recorded: Vectors) -> Named:
    """Put the recorded gate and value head into ours; our parameters by their recorded names."""
    pairs = {"v_proj.weight": heads.value.weight}
    if heads.value.bias is not None:
        pairs["v_proj.bias"] = heads.value.bias
    if heads.gate_in is None:
        pairs |= {"beta.weight": heads.gate.weight, "beta.bias": heads.gate.bias}
    else:
        pairs |= {"beta_in.weight": heads.gate_in.weight}
        pairs |= {"beta_out.weight": heads.gate.weight, "beta_out.bias": heads.gate.bias}
    return {name: load(parameter, recorded[name]) for name, parameter in pairs.items()}


def _compressor(compressor: Any, recorded: Vectors) -> Named:
    """The same for a compressor. The paper's form of CC has other parameters, and no recorded gradients."""
    name = "weight" if "weight" in recorded else "shortconv.weight"
    if isinstance(compressor, ChannelMix):
        load(compressor.mixing, mixing_of(recorded[name], recorded["read"]))
        return {}
    return {name: load(compressor.kernel, recorded[name]), "read": load(compressor.pool, recorded["read"])}


def _update(name: str, variant: str) -> Pairs:
    """One sublayer from a given state, whose compressed read is given apart where it is."""
    vectors = tensors(name)
    x, direction, context = vectors["in__x"], vectors["in__k_in"], vectors["in__context"]
    stream: Any = DELTA[variant].build(8, 1).to(x.dtype)
    parameters = _heads(stream.heads[0], named(vectors, "par__"))
    content = stream.start(torch.zeros_like(direction)).content
    expanded = x.ndim == direction.ndim + 1
    given = vectors.get("in__v_in", None if expanded else x)
    content = content._replace(X=x if expanded else x[..., None], read=given)
    after = stream._write(content, 0, direction, context).X
    after = after if expanded else after[..., 0]
    backward(after, vectors["cotangent"])
    pairs = {"update": (after, vectors["out"])}
    for part in ("x", "k_in", "v_in", "context"):
        if f"grad__{part}" in vectors:
            pairs[f"gradient of {part}"] = (gradient_of(vectors[f"in__{part}"]), vectors[f"grad__{part}"])
    for part, parameter in parameters.items():
        pairs[f"gradient of {part}"] = (gradient_of(parameter), vectors[f"grad__{part}"])
    return pairs


def _compression(name: str) -> Pairs:
    """A compressor, or the convolution of the embedding, by itself."""
    vectors = tensors(name)
    recorded = named(vectors, "par__")
    module: Any
    if name == "ddl_expand_ec":
        module = EmbeddingConv(8, 4, 4).double()
        parameters = {"conv.weight": load(module.kernel, recorded["conv.weight"][:, 0])}
    else:
        module = (ChannelConv(8, 4) if name == "ddl_compress_cc" else TokenConv(8, 4, 4)).double()
        parameters = _compressor(module, recorded)
    out = module(vectors["in__x"], Pass(), "compressor")
    backward(out, vectors["cotangent"])
    pairs = {
        "compressor": (out, vectors["out"]),
        "gradient of its input": (gradient_of(vectors["in__x"]), vectors["grad__x"]),
    }
    for part, parameter in parameters.items():
        recorded_gradient = vectors[f"grad__{part}"].reshape(parameter.shape)
        pairs[f"gradient of {part}"] = (gradient_of(parameter), recorded_gradient)
    if name == "ddl_compress_cc":
        pairs["mixing"] = (mixing_of(module.kernel, module.pool), vectors["w_eff"])
    return pairs


def _stack(name: str, variant: str) -> Pairs:
    """A network of four blocks with the recorded attention and MLP."""
    vectors = tensors(name)
    recorded = named(vectors, "par__")
    stream: Any = DELTA[variant].build(8, 4).double()
    ours: Named = {}
    branches: list[Any] = []
    norms: list[Any] = []
    shares = len(stream.compressors) == 5
    for block in range(4):
        at = f"transformer.h.{block}."
        w = named(recorded, at)
        for place, part in enumerate(("ddl_attn.", "ddl_mlp.")):
            found = _heads(stream.heads[2 * block + place], named(w, part))
            ours |= {at + part + name: parameter for name, parameter in found.items()}
        own = [block] if shares else [2 * block, 2 * block + 1]
        for compressor in [stream.compressors[i] for i in own] if stream.compressors else []:
            found = _compressor(compressor, named(w, "compress."))
            # Two copies of a shared compressor split its gradient.
            ours |= {f"{at}compress.{name}": x for name, x in found.items()} if shares else {}
        branches += [partial(_attend, w), partial(_mlp, w)]
        norms += [partial(rms_norm, gain=w[f"ln_{n}.weight"], eps=1e-5) for n in (1, 2)]
    if stream.compressors:
        found = _compressor(stream.compressors[-1], named(recorded, "readout."))
        ours |= {f"readout.{name}": parameter for name, parameter in found.items()}
    if stream.expands:
        kernel = recorded["input_embed.conv.weight"][:, 0]
        ours["input_embed.conv.weight"] = load(stream.expander.kernel, kernel)
    record = run(stream, vectors["in__x_emb"], branches, norms)
    out = rms_norm(record.out, recorded["ln_f.weight"], 1e-5)
    backward(out, vectors["cotangent"])
    pairs = {
        "output": (out, vectors["out"]),
        "gradient of the embedding": (gradient_of(vectors["in__x_emb"]), vectors["grad__x_emb"]),
    }
    # Norms, attention and MLP use the recorded parameters themselves.
    theirs = {name: x for name, x in recorded.items() if any(part in name for part in _BACKBONE)}
    for part, parameter in {**theirs, **ours}.items():
        want = vectors[f"grad__{part}"].reshape(parameter.shape)
        pairs[f"gradient of {part}"] = (gradient_of(parameter), want)
    return pairs


_BACKBONE = (".attn.", ".mlp.", "ln_")


def _attend(w: Vectors, c: Tensor) -> Tensor:
    q, k, v = (F.linear(c, w[f"attn.c_{way}.weight"]) for way in "qkv")
    gains = (w["attn.q_rms.weight"], w["attn.k_rms.weight"])
    return F.linear(attention(q, k, v, 2, rope=True, gains=gains), w["attn.c_proj.weight"])


def _mlp(w: Vectors, c: Tensor) -> Tensor:
    return swiglu(c, w["mlp.c_fc1.weight"], w["mlp.c_fc2.weight"], w["mlp.c_proj.weight"])


def _served(variant: str, *names: str) -> tuple[Case, ...]:
    """The vectors that a variant reproduces, by what follows "ddl_" in their names."""
    found: list[Case] = []
    for name in names:
        if name.startswith("stack"):
            found.append(partial(_stack, f"ddl_{name}_L4", variant))
        elif name.startswith(("compress", "expand")):
            found.append(partial(_compression, f"ddl_{name}"))
        else:
            found.append(partial(_update, f"ddl_{name}", variant))
    return tuple(found)


SERVED: dict[str, tuple[str, ...]] = {
    "ddl": ("stack_dv1", "update_code_dv1"),
    "ddl cc": ("stack_cc", "update_code_dv4", "compress_cc"),
    "ddl cc + ec": ("stack_cc_ec", "expand_ec"),
    "ddl cc of the paper": ("stack_cc",),
    "ddl tc": ("stack_tc", "compress_tc"),
    "ddl tc + ec": ("stack_tc_ec",),
    "ddl cc a sublayer": ("stack_cc",),
    "ddl two-layer gate": ("update_code_dv1_gate2",),
    "ddl cc two-layer gate": ("update_code_dv4_gate2",),
    "ddl linear value": ("update_paper_dv1",),
    "ddl cc linear value": ("update_paper_dv4",),
    "ddl write-only": ("write_only_dv1",),
    "ddl cc write-only": ("write_only_dv4",),
    "ddl cc kernel guard": ("fused_unitk_fp32", "fused_smallk_fp32"),
    "ddl cc rewind": ("stack_cc",),
}
CASES: dict[str, tuple[Case, ...]] = {variant: _served(variant, *names) for variant, names in SERVED.items()}
