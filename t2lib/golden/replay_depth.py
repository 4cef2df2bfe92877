"""Run depth_mix and depth_attention on the golden vectors, in the networks that their sidecars describe.

`replay(name, arrays, operators)` takes the arrays of a vector, NumPy or torch, and returns what can be
compared with arrays of the same names: the states, the reads and the output. `gradients(arrays)` says which
input every recorded gradient belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from t2lib import golden
from t2lib.golden.replay import rms_norm
from t2lib.ops import depth_attention, depth_attention_partial, depth_mix, merge

Arrays = dict[str, Any]


class Operators:
    """The operators with their rung chosen."""

    def __init__(self, rung: str) -> None:
        self.depth_mix = partial(depth_mix, rung=rung)
        self.depth_attention = partial(depth_attention, rung=rung)
        self.depth_attention_partial = partial(depth_attention_partial, rung=rung)
        self.merge = partial(merge, rung=rung)


def names(operator: str) -> list[str]:
    """The golden vectors that an operator serves."""
    prefixes = [prefix for prefix, (serves, _) in _FORMS.items() if serves == operator]
    return [name for prefix in prefixes for name in golden.names(prefix)]


def replay(name: str, arrays: Arrays, operators: Operators) -> Arrays:
    """The arrays of one golden vector that its network computes, by name."""
    for prefix, (_, network) in _FORMS.items():
        if name.startswith(prefix):
            return network(name, arrays, operators)
    raise ValueError(f"name must be one of t2lib.golden.replay_depth.names(...); got {name!r}.")


def gradients(arrays: Arrays) -> dict[str, tuple[str, str]]:
    """Recorded gradient -> the output it is of, and the input it belongs to."""
    found = {}
    for key in arrays:
        prefix, middle, of = key.partition("grad_")
        if middle:
            of = of.lstrip("_")
            place = next(start + of for start in ("", "in__", "par__", "op_") if start + of in arrays)
            found[key] = (f"{prefix}out", place)
    return found


def _elc_bert(name: str, given: Arrays, op: Operators) -> Arrays:
    """A layer reads a convex combination of all before it, and nothing is added to what it makes."""
    states = [given["x0"]]
    for i in range(4):
        x = op.depth_mix(states, softmax(given[f"logits{i}"]))
        a = _affine_branch(x, given, "a", i)
        y = a + _affine_branch(a if name.endswith("base") else x + a, given, "m", i)
        states.append(layer_norm(y, 1e-7) if name.endswith("normalized") else y)
    if "logits_out" in given:
        return {"out": op.depth_mix(states, softmax(given["logits_out"])), "H": stacked(states)}
    return {"out": states[-1], "H": stacked(states)}


def _denseformer(name: str, given: Arrays, op: Operators) -> Arrays:
    """Ordinary blocks; after every p-th one, a weighted sum of every k-th state before it."""
    setting = golden.sidecar(name)["setting"]
    dilation, depth = setting["k"], setting["L"]
    blocks, averages = [given["x0"]], [given["x0"]]
    for i in range(1, depth + 1):
        u = averages[-1] + _affine_branch(averages[-1], given, "a", i - 1)
        blocks.append(u + _affine_branch(u, given, "m", i - 1))
        sources = blocks[i % dilation :: dilation]
        weights = given.get(f"alpha{i}")
        averages.append(blocks[-1] if weights is None else op.depth_mix(sources, weights))
    return {"out": averages[-1], "X": stacked(blocks), "Y": stacked(averages)}


def _cross_attention(name: str, given: Arrays, op: Operators) -> Arrays:
    """The three forms of a generalised residual: a weight a source, a channel, and a token."""
    sources, b = list(given["op_G"]), given["op_b_v2"]
    scores = stacked([(x * given["op_w"]).sum(-1) for x in sources], -1)
    return {
        "op_v1_out": op.depth_mix(sources, given["op_b_v1"]),
        "op_v2_out": op.depth_mix(sources, b),
        "op_v3_out": op.depth_mix(sources, b, (scores + abs(scores)) / 2),
    }


def _muddformer(name: str, given: Arrays, op: Operators) -> Arrays:
    """Four sums over the same states at once, with weights a token."""
    states, streams = list(given["X_states"]), {}
    for block in range(4):
        weights = moved(given[f"dw_{block}"], 0, -2)
        mixed = op.depth_mix(states[: block + 2], None, weights, outputs=weights.shape[-2])
        streams[f"streams_{block}"] = mixed
    return streams


def _vertical_attention(name: str, given: Arrays, op: Operators) -> Arrays:
    """The reconstruction and its switches: what the sources are, their norm, and the skip in the block."""
    found: Arrays = {}
    for form in ("default", "noskip", "branch", "l2", "nonorm"):
        states, reads = [given["x"]], []
        for block in range(5 if form == "branch" else 4):
            sources = [_unit(state, form, given["eps"]) for state in states]
            r = op.depth_mix(sources, softmax(given[f"a_{block}"]))
            if block == 4:
                states.append(r)
                break
            reads.append(r)
            attention = _branch(r, given, 2 * block)
            mlp = _branch(r + attention, given, 2 * block + 1)
            states.append(attention + mlp if form in ("noskip", "branch") else r + attention + mlp)
        found |= {f"{form}_out": states[-1], f"{form}_reads": stacked(reads)}
    return found


def _unit(state: Any, form: str, eps: Any) -> Any:
    if form == "nonorm":
        return state
    return state / (state * state).sum(-1)[..., None] ** 0.5 if form == "l2" else rms_norm(state, 1, eps)


def _attention_residuals(name: str, given: Arrays, op: Operators) -> Arrays:
    """Full, and in blocks of four and of three sublayers: live sums, and finished blocks."""
    found: Arrays = {}
    for form, size in (("full", 1), ("block4", 4), ("block3", 3)):
        finished, live, reads = [given["x"]], None, []
        for i in range(9):
            # A block is finished when the sublayer after it reads.
            if (live is not None and i % size == 0) or i == 8:
                finished, live = [*finished, live], None
            sources = finished if live is None else [*finished, live]
            reads.append(
                op.depth_attention(sources, given["W"][i], gain=given["G"][i], eps=float(given["eps"]))
            )
            if (form, i) == ("block4", 6):
                found |= _two_phases(finished, live, given, i, op)
            if i < 8:
                y = _branch(reads[-1], given, i)
                live = y if live is None else live + y
        found |= {f"{form}_out": reads[-1], f"{form}_reads": stacked(reads)}
    return found


def _two_phases(finished: list[Any], live: Any, given: Arrays, i: int, op: Operators) -> Arrays:
    """Sublayer i of a block of four: all four read the finished blocks, then it reads its own sum."""
    first = i - i % 4
    eps = float(given["eps"])
    queries, gains = given["W"][first : first + 4], given["G"][first : first + 4]
    reads, lses = op.depth_attention_partial(finished, queries, gains=gains, eps=eps)
    own = op.depth_attention([live], given["W"][i], gain=given["G"][i], eps=eps, return_lse=True)
    # The vector records sums relative to the largest score; a read is their quotient, an lse their logarithm.
    return {
        "tp_l6_partial": live,
        "tp_l6_h": op.merge([(reads[i - first], lses[i - first]), own]),
        "tp_l6_o1": reads[i - first] * given["tp_l6_l1"][..., None],
        "tp_l6_m1": lses[i - first] - log(given["tp_l6_l1"]),
        "tp_l6_o2": own[0],
        "tp_l6_m2": own[1],
    }


def _pseudo_query(name: str, given: Arrays, op: Operators) -> Arrays:
    """Level by level: a read of the levels up to it."""
    states, eps = list(given["in__S"]), golden.sidecar(name)["constants"]["norm_eps"]
    queries = zip(given["par__w"], given["par__gain"], strict=True)
    reads = [
        op.depth_attention(states[: level + 1], w, gain=gain, eps=eps)
        for level, (w, gain) in enumerate(queries)
    ]
    return {"out": stacked(reads)}


def _static(name: str, given: Arrays, op: Operators) -> Arrays:
    """Level by level: a sum of the levels up to it, by a softmax of its logits or by weights of any sign."""
    states, rows = list(given["in__H"]), given["par__a"]
    weigh = softmax if "softmax" in name else (lambda a: a)
    return {"out": stacked([op.depth_mix(states[: i + 1], weigh(rows[i, : i + 1])) for i in range(5)])}


def _branch(x: Any, given: Arrays, i: int) -> Any:
    return tanh(rms_norm(x, 1, given["eps"]) @ given["A"][i]) @ given["Bm"][i]


def _affine_branch(x: Any, given: Arrays, letter: str, i: int) -> Any:
    return tanh(rms_norm(x, 1, 1e-6) @ given[f"W{letter}{i}"].T + given[f"b{letter}{i}"])


def softmax(x: Any) -> Any:
    """Over the last axis, of an array or a tensor."""
    weights = _library(x).exp(x)
    return weights / weights.sum(-1)[..., None]


def layer_norm(x: Any, eps: float) -> Any:
    """Over the last axis, without gain and bias."""
    centred = x - x.mean(-1)[..., None]
    return rms_norm(centred, 1, eps)


def tanh(x: Any) -> Any:
    return _library(x).tanh(x)


def log(x: Any) -> Any:
    return _library(x).log(x)


def stacked(parts: list[Any], axis: int = 0) -> Any:
    return _library(parts[0]).stack(parts, axis)


def moved(x: Any, source: int, destination: int) -> Any:
    return _library(x).moveaxis(x, source, destination)


def _library(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np
    import torch

    return torch


_Network = Callable[[str, Arrays, Operators], Arrays]
_FORMS: dict[str, tuple[str, _Network]] = {
    "elc_bert_": ("depth_mix", _elc_bert),
    "denseformer_": ("depth_mix", _denseformer),
    "dca": ("depth_mix", _cross_attention),
    "muddformer": ("depth_mix", _muddformer),
    "vertical_attention": ("depth_mix", _vertical_attention),
    "dual_static_": ("depth_mix", _static),
    "attnres": ("depth_attention", _attention_residuals),
    "dual_depth_pseudoquery_full": ("depth_attention", _pseudo_query),
}
