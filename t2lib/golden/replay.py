"""Run short_swa on the golden vectors, with the projections, norms and heads that their sidecars describe.

`replay(name, arrays, read)` takes the inputs and parameters of a vector as NumPy arrays or as tensors, and
returns the output in the same kind; `read` is a short_swa with its rung chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from t2lib import golden

Read = Callable[..., Any]


def names() -> list[str]:
    """The golden vectors that short_swa serves."""
    prefixes = ("shortswa_", "dual_depth_", "dual_static_")
    return [name for prefix in prefixes for name in golden.names(prefix)]


def replay(name: str, arrays: dict[str, Any], read: Read) -> Any:
    """The output of one golden vector, computed with `read`."""
    constants = golden.sidecar(name)["constants"]
    # The inputs and parameters by their own names: in__x and par__W_Q become x and W_Q.
    named = (key for key in arrays if key.startswith(("in__", "par__")))
    given = {key.partition("__")[2]: arrays[key] for key in named}
    for prefix, function in _FORMS.items():
        if name.startswith(prefix):
            return function(given, constants, read)
    raise ValueError(f"name must be one of t2lib.golden.replay.names(); got {name!r}.")


def mixer(x: Any, weights: dict[str, Any], read: Read, *, heads: int, rope: bool, **window: Any) -> Any:
    """x (B, N, d) through the projections, the read along the tokens, and W_O where there is one."""
    q, k, v = ((x @ weights[name]).reshape(*x.shape[:-1], heads, -1) for name in ("W_Q", "W_K", "W_V"))
    if rope:
        q, k = rotated(q), rotated(k)
    z = read(q, k, v, axis=1, **window).reshape(x.shape)
    return z @ weights["W_O"] if "W_O" in weights else z


def rotated(x: Any, start: int = 0, base: float = 10000.0) -> Any:
    """Rotary position embedding of x (B, N, heads, width): the two halves of the width turn together."""
    half = x.shape[-1] // 2
    angle = np.arange(start, start + x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = _like(np.cos(angle)[:, None], x), _like(np.sin(angle)[:, None], x)
    left, right = x[..., :half], x[..., half:]
    return _concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def rms_norm(x: Any, gain: Any, eps: float) -> Any:
    """x / sqrt(mean(x²) + eps) · gain."""
    return x / ((x * x).mean(-1)[..., None] + eps) ** 0.5 * gain


def _tokens(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    window: dict[str, Any] = {"window": constants.get("w") or constants["C"]}
    if "C" in constants:
        window |= {"window_type": "chunk", "lookback": constants["lookback"]}
    # Labels are given for (B, N); short_swa wants an axis for the heads too.
    if "doc_id" in given:
        window["documents"] = given["doc_id"][..., None]
    if "valid" in given:
        window["valid"] = given["valid"][..., None]
    return mixer(given["x"], given, read, heads=constants["h"], rope=constants.get("rope", False), **window)


def _stream(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    """One token at a time, with the keys and values of the last w tokens in a ring of w slots."""
    x, heads, w = given["x"], constants["h"], constants["w"]
    q, k, v = ((x @ given[name]).reshape(*x.shape[:-1], heads, -1) for name in ("W_Q", "W_K", "W_V"))
    # Keys go into the ring after their rotation, so a slot need not remember its position.
    q, k = rotated(q), rotated(k)
    slots: list[tuple[Any, Any]] = []
    reads = []
    for t in range(x.shape[1]):
        entry = (k[:, t : t + 1], v[:, t : t + 1])
        slots = [*slots, entry] if t < w else [*slots[: t % w], entry, *slots[t % w + 1 :]]
        keys, values = (_concatenate([slot[part] for slot in slots], 1) for part in (0, 1))
        # The order of the slots does not matter: the window holds all of them.
        reads.append(read(q[:, t : t + 1], keys, values, axis=1, window=w, query_start=len(slots) - 1))
    return _concatenate(reads, 1).reshape(x.shape) @ given["W_O"]


def _block(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    """Local attention, global attention, MLP: each behind its norm, each added to the stream."""
    h, heads = given["x"], constants["h"]
    parts = {part: {key.partition(".")[2]: value for key, value in given.items() if key.startswith(part)}
             for part in ("swa", "attn", "mlp")}  # fmt: skip
    for norm, part, window in (("norm1", "swa", constants["w"]), ("norm2", "attn", h.shape[1])):
        h = h + mixer(
            rms_norm(h, given[norm], 1e-5), parts[part], read, heads=heads, rope=True, window=window
        )
    x, weights = rms_norm(h, given["norm3"], 1e-5), parts["mlp"]
    gate = x @ weights["W_1"]
    sigmoid = 1 / (1 + _exp(-gate))
    return h + (gate * sigmoid * (x @ weights["W_2"])) @ weights["W_3"]


def _depth(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    q, k, v = (given["H"] @ given[name] for name in ("W_Q", "W_K", "W_V"))
    return read(q, k, v, axis=0, window=constants["K"])


def _depth_per_level(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    """Every level reads with projections of its own, so it projects its window anew."""
    reads = []
    for level in range(given["H"].shape[0]):
        below = given["H"][: level + 1]
        uses = ((below[-1:], "W_Q"), (below, "W_K"), (below, "W_V"))
        q, k, v = (states @ given[name][level] for states, name in uses)
        reads.append(read(q, k, v, axis=0, window=constants["K"], query_start=level))
    return _concatenate(reads, 0)


def _pseudo_query(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    """A learned query a level, keys RMS-normalised with a gain a level, values as they are."""
    reads = []
    for level in range(given["S"].shape[0]):
        sources = given["S"][: level + 1]
        keys = rms_norm(sources, given["gain"][level], constants["norm_eps"])
        query = sources[-1:] * 0 + given["w"][level]
        window = {"window": level + 1, "query_start": level, "scale": constants["scale"]}
        reads.append(read(query, keys, sources, axis=0, **window))
    return _concatenate(reads, 0)


def _static(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    return content_free(given["a"], given["H"], read)


def _signed(given: dict[str, Any], constants: dict[str, Any], read: Read) -> Any:
    """Weights of any sign are two softmax reads: s₊ softmax(log a₊) - s₋ softmax(log a₋)."""
    a, sources = given["a"], given["H"]
    total = 0
    for sign in (1, -1):
        part = (sign * a > 0) * (sign * a) * _like(np.tri(a.shape[0]), a)
        # The logarithm of an absent weight: so small that its exponential is exactly 0.
        logits = _log(part + (part == 0)) - 1e5 * (part == 0)
        total = total + sign * part.sum(-1)[:, None, None, None] * content_free(logits, sources, read)
    return total


def content_free(logits: Any, sources: Any, read: Read) -> Any:
    """A read whose scores are a table (reader, source): the keys are one-hot, so q·k picks the entry."""
    n = sources.shape[0]
    queries = sources[..., :1] * 0 + logits[:, None, None, :]
    keys = sources[..., :1] * 0 + _like(np.eye(n)[:, None, None, :], sources)
    return read(queries, keys, sources, axis=0, window=n, scale=1.0)


_FORMS: dict[str, Callable[[dict[str, Any], dict[str, Any], Read], Any]] = {
    "shortswa_stream": _stream,
    "shortswa_block": _block,
    "shortswa_": _tokens,
    "dual_depth_read_perlevel": _depth_per_level,
    "dual_depth_read": _depth,
    "dual_depth_pseudoquery": _pseudo_query,
    "dual_static_softmax": _static,
    "dual_static_signed": _signed,
}


def _like(array: Any, x: Any) -> Any:
    """A constant of the kind, dtype and device of x."""
    return array.astype(x.dtype) if isinstance(x, np.ndarray) else x.new_tensor(array.tolist())


def _concatenate(parts: list[Any], axis: int) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis)


def _exp(x: Any) -> Any:
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()


def _log(x: Any) -> Any:
    return np.log(x) if isinstance(x, np.ndarray) else x.log()
