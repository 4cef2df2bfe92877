"""Run stream_mix, delta_rewrite and short_conv on the golden vectors, in the networks of their sidecars.

`replay(name, arrays, operators)` takes the arrays of a vector, NumPy or torch, and returns what can be
compared with arrays of the same names: states, reads, coefficients and outputs. `gradients(arrays)` says
which input every recorded gradient belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from t2lib import golden
from t2lib.golden.replay import _concatenate, _exp, rms_norm
from t2lib.ops import delta_rewrite, short_conv, short_swa, sinkhorn, stream_mix

Arrays = dict[str, Any]


class Operators:
    """The operators with their rung chosen."""

    def __init__(self, rung: str) -> None:
        self.stream_mix = partial(stream_mix, rung=rung)
        self.sinkhorn = partial(sinkhorn, rung=rung)
        self.delta_rewrite = partial(delta_rewrite, rung=rung)
        self.short_conv = partial(short_conv, rung=rung)


def names(operator: str) -> list[str]:
    """The golden vectors that an operator serves."""
    return [name for name in golden.names() if (form := _form(name)) is not None and form[0] == operator]


def replay(name: str, arrays: Arrays, operators: Operators) -> Arrays:
    """The arrays of one golden vector that its network computes, by name."""
    form = _form(name)
    if form is None:
        raise ValueError(f"name must be one of t2lib.golden.replay_streams.names(...); got {name!r}.")
    return form[1](name, arrays, operators)


def gradients(arrays: Arrays) -> dict[str, str]:
    """Recorded gradient -> the input it belongs to."""
    found = {}
    for key in arrays:
        if key.startswith("grad"):
            of = key.removeprefix("grad").lstrip("_.")
            found[key] = next(start + of for start in ("", "in__", "par__") if start + of in arrays)
    return found


def _hyper(name: str, given: Arrays, op: Operators) -> Arrays:
    """Hyper-Connections: coefficients that are constants, plus a bounded correction from each stream."""
    state, states, reads = _repeated(given["x0"], 4), [], []
    for i in range(4):
        states.append(state)
        alpha, beta = given[f"alpha{i}"], given[f"beta{i}"]
        if f"alpha_fn{i}" in given:
            if f"ln_w{i}" in given:
                normed = _layer_norm(state, given[f"ln_w{i}"], given[f"ln_b{i}"])
            else:
                normed = rms_norm(state, given[f"norm_gain{i}"], 0.0)
            alpha = alpha + given[f"s_alpha{i}"] * _tanh(normed @ given[f"alpha_fn{i}"])
            beta = beta + given[f"s_beta{i}"] * _tanh(normed @ given[f"beta_fn{i}"])
        # Row s of alpha is what stream s gives: to the read, and to every new stream.
        h = op.stream_mix(state, read=alpha[..., 0])
        reads.append(h)
        mix = alpha[..., 1:].swapaxes(-1, -2)
        state = op.stream_mix(state, mix=mix, write=beta, branch=_branch(h, given, i))
    return {"H": _stacked([*states, state]), "reads": _stacked(reads), "out": state.sum(-2)}


def _manifold(name: str, given: Arrays, op: Operators) -> Arrays:
    """mHC: coefficients from all streams together; positive reads and writes, a doubly stochastic mix."""
    setting = golden.sidecar(name)["setting"]
    n, eps = setting["n"], setting["hc_eps"]
    state, states, reads = _repeated(given["x0"], n), [], []
    found: Arrays = {}
    for i in range(setting["L"]):
        states.append(state)
        r = rms_norm(state.reshape(*state.shape[:-2], -1), 1.0, setting["rms_eps"])
        pre, post, res = (
            given[f"a_{part}{i}"] * (r @ given[f"phi_{part}{i}"]) for part in ("pre", "post", "res")
        )
        read = _sigmoid(pre + given[f"b_pre{i}"]) + eps
        write = 2 * _sigmoid(post + given[f"b_post{i}"])
        logits = res.reshape(*res.shape[:-1], n, n) + given[f"b_res{i}"]
        mix = op.sinkhorn(logits, iterations=setting["t_max"], eps=eps)
        h = op.stream_mix(state, read=read)
        reads.append(h)
        state = op.stream_mix(state, mix=mix, write=write, branch=_branch(h, given, i))
        found |= {f"H_pre{i}": read, f"H_post{i}": write, f"H_res{i}": mix}
    out = state.sum(-2)
    if "head_phi" in given:
        r = rms_norm(state.reshape(*state.shape[:-2], -1), 1.0, setting["rms_eps"])
        weights = _sigmoid(given["head_a"] * (r @ given["head_phi"]) + given["head_b"]) + eps
        out = op.stream_mix(state, read=weights)
    return {**found, "streams": _stacked([*states, state]), "reads": _stacked(reads), "out": out}


def _delta_depth(name: str, given: Arrays, op: Operators) -> Arrays:
    """The delta rule with depth on its ordered axis, on directions that are unit vectors already."""
    X = given["in__X0"]
    for k, v, beta in zip(given["in__k"], given["in__v"], given["in__beta"], strict=True):
        X = op.delta_rewrite(X, k, v, beta, guard="none", erase="linear" not in name)
    return {"out": X}


def _delta_update(name: str, given: Arrays, op: Operators) -> Arrays:
    """One update of Deep Delta Learning with its gate and its value head."""
    x, context = given["in__x"], given["in__context"]
    if "par__beta_in.weight" in given:
        hidden = _tanh(context @ given["par__beta_in.weight"].T)
        logit = hidden @ given["par__beta_out.weight"].T + given["par__beta_out.bias"]
    else:
        logit = context @ given["par__beta.weight"].T + given["par__beta.bias"]
    beta = (2 * _sigmoid(logit))[..., 0]

    sigmoid = "code" in name or "fused" in name
    v = (given.get("in__v_in", x) if sigmoid else context) @ given["par__v_proj.weight"].T
    v = v + given["par__v_proj.bias"] if "par__v_proj.bias" in given else v
    v = 4 * _sigmoid(v) if sigmoid else v
    guard, expanded = "kernel" if "fused" in name else "eager", x.ndim == given["in__k_in"].ndim + 1
    X = x if expanded else x[..., None]
    out = op.delta_rewrite(X, given["in__k_in"], v, beta, guard=guard, erase="write_only" not in name)
    return {"out": out if expanded else out[..., 0]}


def _convolution(name: str, given: Arrays, op: Operators) -> Arrays:
    """The whole sequence at once; the states from the same sequence in chunks."""
    use: dict[str, Any] = {"activation": "silu" if "silu" in name else None}
    x, weight, bias = given["x0"], given["w"], given.get("b")
    found = {"out": op.short_conv(x, weight, bias, axis=1, **use)}
    state, begin = None, 0
    for i, chunk in enumerate(given["chunks"].tolist()):
        part, begin = x[:, begin : begin + chunk], begin + chunk
        _, state = op.short_conv(part, weight, bias, axis=1, initial_state=state, return_state=True, **use)
        found[f"state_after_chunk{i}"] = state
    return found


def _canon(name: str, given: Arrays, op: Operators) -> Arrays:
    """Two decoder blocks with short convolutions at the points A, B, C, D, most of them with a skip."""
    setting, skip = golden.sidecar(name)["setting"], "nores" not in name
    h = given["x0"]
    states = [h]

    def canon(x: Any, weight: str) -> Any:
        if weight not in given:
            return x
        y = op.short_conv(x, given[weight], axis=1)
        return x + y if skip else y

    for i in range(setting["L"]):
        linear = {key.removeprefix(f"l{i}."): given[key].T for key in given if key.endswith("proj.weight")}
        x = rms_norm(h, given[f"l{i}.input_layernorm.weight"], setting["rms_eps"])
        x = canon(x, f"l{i}.canonA.weight")
        qkv = _concatenate([x @ linear[f"self_attn.{part}_proj.weight"] for part in "qkv"], -1)
        qkv = canon(qkv, f"l{i}.self_attn.canonB.weight")
        heads = qkv.reshape(*qkv.shape[:-1], 3, setting["heads"], -1)
        q, k, v = (heads[..., part, :, :] for part in range(3))
        if "nope" not in name:
            q, k = (_rotated(part, given["cos"], given["sin"]) for part in (q, k))
        z = short_swa(q, k, v, window=h.shape[1], axis=1).reshape(h.shape)
        h = h + z @ linear["self_attn.o_proj.weight"]

        x = rms_norm(h, given[f"l{i}.post_attention_layernorm.weight"], setting["rms_eps"])
        x = canon(x, f"l{i}.canonC.weight")
        both = _concatenate([x @ linear[f"mlp.{part}_proj.weight"] for part in ("gate", "up")], -1)
        both = canon(both, f"l{i}.mlp.canonD.weight")
        gate, up = both[..., : setting["d_ff"]], both[..., setting["d_ff"] :]
        h = h + (gate * _sigmoid(gate) * up) @ linear["mlp.down_proj.weight"]
        states.append(h)
    return {"H": _stacked(states), "out": h}


_FORMS: dict[str, tuple[str, Callable[[str, Arrays, Operators], Arrays]]] = {
    "hc_": ("stream_mix", _hyper),
    "mhc": ("stream_mix", _manifold),
    "dual_delta_depth": ("delta_rewrite", _delta_depth),
    "dual_linear_attention_depth": ("delta_rewrite", _delta_depth),
    "ddl_update": ("delta_rewrite", _delta_update),
    "ddl_write_only": ("delta_rewrite", _delta_update),
    "ddl_fused": ("delta_rewrite", _delta_update),
    "shortconv_": ("short_conv", _convolution),
    "canon_": ("short_conv", _canon),
}


def _form(name: str) -> tuple[str, Callable[[str, Arrays, Operators], Arrays]] | None:
    return next((form for prefix, form in _FORMS.items() if name.startswith(prefix)), None)


def _branch(h: Any, given: Arrays, i: int) -> Any:
    """The toy sublayer of the vectors."""
    return _tanh(rms_norm(h, 1.0, 1e-6) @ given[f"W{i}"].T + given[f"b{i}"])


def _layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    centred = x - x.mean(-1)[..., None]
    return rms_norm(centred, gain, 1e-5) + bias


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """x (B, T, heads, width) with the recorded tables (T, width); the halves turn against each other."""
    half = x.shape[-1] // 2
    turned = _concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos[:, None] + turned * sin[:, None]


def _repeated(x: Any, n: int) -> Any:
    return _stacked([x] * n, -2)


def _stacked(parts: list[Any], axis: int = 0) -> Any:
    if axis < 0:
        return _concatenate([part[..., None, :] for part in parts], axis)
    return _concatenate([part[None] for part in parts], axis)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + _exp(-x))


def _tanh(x: Any) -> Any:
    return np.tanh(x) if isinstance(x, np.ndarray) else x.tanh()
