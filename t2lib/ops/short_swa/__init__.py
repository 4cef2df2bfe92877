"""Short sliding-window attention along one axis of an array: the contract all rungs of the ladder keep."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from t2lib.ops import _registry

__all__ = ["Mask", "short_swa"]

_FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class Mask:
    """Who sees whom.

    Queries stand at the positions query_start, query_start + 1, ...; keys at 0, 1, ... `documents` and `valid`
    are given for the positions of the keys, so a query finds its own entry at its own position.
    """

    window: int
    window_type: str = "strict"
    lookback: int = 1
    query_start: int = 0
    documents: Any = None
    valid: Any = None

    def sees(self, i: Any, j: Any) -> Any:
        """Whether the query at position i may read the key at position j, by position alone.

        i and j are integers, or integer arrays or tensors that broadcast.
        """
        if self.window_type == "chunk":
            return (j <= i) & (i // self.window - j // self.window <= self.lookback)
        return (j <= i) & (i - j < self.window)

    def first_seen(self, i: int) -> int:
        """The smallest position that the query at position i may read; it reads nothing before it."""
        if self.window_type == "chunk":
            return max(0, (i // self.window - self.lookback) * self.window)
        return max(0, i - self.window + 1)

    @property
    def reach(self) -> int:
        """The largest number of keys that one query can see."""
        return self.window * (self.lookback + 1) if self.window_type == "chunk" else self.window


def short_swa(
    q: Any,
    k: Any,
    v: Any,
    *,
    window: int,
    axis: int,
    rung: str = "auto",
    scale: float | None = None,
    window_type: str = "strict",
    lookback: int = 1,
    documents: Any = None,
    valid: Any = None,
    head_axis: int | None = None,
    query_start: int | None = None,
) -> Any:
    """Softmax attention over the last `window` entries of one axis, self included.

        z_i = Σ_{j ∈ J(i)} a_ij v_j,    a_ij = exp(scale · q_i·k_j) / Σ_{j' ∈ J(i)} exp(scale · q_i·k_j')

        strict:  J(i) = { j : 0 <= i - j < window }
        chunk:   J(i) = { j : j <= i and i//window - j//window <= lookback }

    With `axis` on the tokens this is ShortSWA. With `axis` on the layers it is the depth read, the same numbers:
    only the axis differs. Nothing is copied or transposed to get from one to the other.

    Book: eq-short-swa, eq-window-strict, eq-window-chunk, eq-depth-read, eq-duality

    Shapes
        q (..., n_q, ..., D), k (..., n_k, ..., D), v (..., n_k, ..., D_v), result (..., n_q, ..., D_v).
        `axis` is the ordered axis, in any place but the last. All other axes are independent of each other and
        must match, except `head_axis`: there k and v may be shorter than q by a whole factor g, and query head h
        reads key head h // g. `documents` (integers) and `valid` (bool) have the shape of k without its width,
        with the heads of q; any axis but the ordered one may be 1, which means shared along it.

    Arguments
        window       visible entries, self included (strict), or the length of a chunk (chunk)
        rung         "auto", "loops", "arrays", "eager", "compiled" or "kernels"; see t2lib.ladder("short_swa")
        scale        factor on q·k; 1/sqrt(D) if None
        lookback     earlier chunks that are visible; read only if window_type is "chunk"
        documents    a key of another document is never read
        valid        a key that is not valid is never read; a query that is not valid returns zeros
        query_start  None: q and k are equally long. An integer: q holds the last n_q positions,
                     query_start ... n_k - 1, as in a streaming read or the read of one layer (n_q = 1)

    A row that sees nothing returns zeros. A NaN in q reaches its own row; a NaN in a key or a value reaches exactly
    the rows that see it (on "kernels" the same for keys; see there for values).

    Dtypes  float64, float32, float16, bfloat16 (tensors), one for q, k and v. The result has the dtype, kind and
            device of q. Scores, softmax and sums are float32 for half precision.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung cannot run.
    Cost    2 · tri(n, window) · (D + D_v) FLOPs a head with tri(n, w) = n·w - w(w-1)/2, see `cost.py`;
            memory linear in n.
    Source  arXiv 2603.16039, Section 2.2; chunks: yifanzhang-pro/Rethinking-SWA.
    """
    _check_arrays(q, k, v)
    axis = _check_axis("axis", axis, q.ndim)
    if head_axis is not None:
        head_axis = _check_axis("head_axis", head_axis, q.ndim)
        if head_axis == axis:
            raise ValueError(f"head_axis must differ from axis; got {head_axis} for both.")
    _check_shapes(q, k, v, axis, head_axis)
    mask = Mask(
        window=_check_integer("window", window, 1),
        window_type=_check_choice("window_type", window_type, ("strict", "chunk")),
        lookback=_check_integer("lookback", lookback, 0) if window_type == "chunk" else 0,
        query_start=_check_query_start(query_start, q.shape[axis], k.shape[axis]),
        documents=_check_labels("documents", documents, q, k, axis),
        valid=_check_labels("valid", valid, q, k, axis),
    )
    scale = _check_scale(scale, q.shape[-1])
    _check_choice("rung", rung, ("auto", *_registry.RUNGS))
    if rung == "auto":
        rung = _registry.choose("short_swa", q)

    module = _registry.load("short_swa", rung)
    call = {"axis": axis, "scale": scale, "head_axis": head_axis}
    if rung in _registry.NUMPY_RUNGS and not isinstance(q, np.ndarray):
        return _tensors_through_numpy(module, rung, (q, k, v), mask, call)
    if rung not in _registry.NUMPY_RUNGS and isinstance(q, np.ndarray):
        return _arrays_through_torch(module, (q, k, v), mask, call)
    return module.short_swa(q, k, v, mask=mask, **call)


def _tensors_through_numpy(module: Any, rung: str, qkv: tuple[Any, ...], mask: Mask, call: dict[str, Any]) -> Any:
    import torch

    q = qkv[0]
    if any(x.requires_grad for x in qkv):
        raise ValueError(f"rung={rung!r} has no gradients; got a tensor that requires grad, takes x.detach().")
    if q.device.type != "cpu":
        raise ValueError(f"rung={rung!r} computes on the CPU; got q on {q.device}, takes x.cpu().")
    # NumPy has no bfloat16. Every bfloat16 is a float32, and the sums are float32 anyway.
    arrays = [x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in qkv]
    labels = [None if x is None else x.numpy() for x in (mask.documents, mask.valid)]
    out = module.short_swa(*arrays, mask=replace(mask, documents=labels[0], valid=labels[1]), **call)
    return torch.from_numpy(out).to(q.dtype)


def _arrays_through_torch(module: Any, qkv: tuple[Any, ...], mask: Mask, call: dict[str, Any]) -> Any:
    import torch

    def tensor(x: Any) -> Any:
        if x is None:
            return None
        # torch shares memory with an array, but takes neither negative strides nor read-only memory.
        return torch.from_numpy(x if x.flags.writeable and min(x.strides) >= 0 else x.copy())

    tensors = [tensor(x) for x in qkv]
    mask = replace(mask, documents=tensor(mask.documents), valid=tensor(mask.valid))
    return module.short_swa(*tensors, mask=mask, **call).numpy()


def _kind(x: Any) -> str | None:
    if isinstance(x, np.ndarray):
        return "a NumPy array"
    torch = sys.modules.get("torch")
    return "a torch tensor" if torch is not None and isinstance(x, torch.Tensor) else None


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _check_arrays(q: Any, k: Any, v: Any) -> None:
    kinds = {name: _kind(x) or f"a {type(x).__name__}" for name, x in (("q", q), ("k", k), ("v", v))}
    if _kind(q) is None or len(set(kinds.values())) > 1:
        got = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise TypeError(f"q, k and v must be all NumPy arrays or all torch tensors; got {got}.")
    dtypes = [_dtype(x) for x in (q, k, v)]
    if dtypes[0] not in _FLOATS or len(set(dtypes)) > 1:
        raise TypeError(f"q, k and v must share one dtype of {', '.join(_FLOATS)}; got {', '.join(dtypes)}.")
    if not isinstance(q, np.ndarray) and len({x.device for x in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v must be on one device; got {q.device}, {k.device}, {v.device}.")
    if q.ndim < 2 or not q.ndim == k.ndim == v.ndim:
        raise ValueError(f"q, k and v must have equally many axes, two or more; got {q.ndim}, {k.ndim}, {v.ndim}.")


def _check_axis(name: str, axis: int, ndim: int) -> int:
    if isinstance(axis, bool) or not isinstance(axis, numbers.Integral):
        raise TypeError(f"{name} must be an integer; got {axis!r}.")
    place = operator.index(axis)
    if not -ndim <= place < ndim or place % ndim == ndim - 1:
        raise ValueError(f"{name} must name one of the {ndim} axes of q other than the last, the width; got {axis}.")
    return place % ndim


def _check_shapes(q: Any, k: Any, v: Any, axis: int, head_axis: int | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.shape[axis] == 0 or k.shape[axis] == 0:
        raise ValueError(f"the ordered axis (axis={axis}) must not be empty; got {shapes}.")
    if q.shape[-1] == 0 or v.shape[-1] == 0 or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same width (their last axis), not 0, and v a width; got {shapes}.")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must match on every axis but the width; got {shapes}.")
    for place in range(q.ndim - 1):
        n_q, n_k = q.shape[place], k.shape[place]
        if place in (axis, head_axis) or n_q == n_k:
            continue
        raise ValueError(f"q and k must match on every axis but axis={axis}; got {shapes}, which differ on {place}.")
    if head_axis is not None:
        heads, key_heads = q.shape[head_axis], k.shape[head_axis]
        if heads != key_heads and (key_heads == 0 or heads % key_heads):
            raise ValueError(f"the heads of q must be a whole multiple of those of k; got {heads} and {key_heads}.")


def _check_integer(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer of at least {least}; got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value}.")
    return operator.index(value)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def _check_query_start(query_start: int | None, n_q: int, n_k: int) -> int:
    if query_start is None:
        if n_q != n_k:
            raise ValueError(f"q and k must be equally long unless query_start is given; got {n_q} and {n_k}.")
        return 0
    start = _check_integer("query_start", query_start, 0)
    if start + n_q != n_k:
        raise ValueError(
            f"query_start + the length of q must be the length of k; got query_start={start}, {n_q} and {n_k}."
        )
    return start


def _check_labels(name: str, labels: Any, q: Any, k: Any, axis: int) -> Any:
    if labels is None:
        return None
    if _kind(labels) != _kind(q):
        raise TypeError(f"{name} must be {_kind(q)} like q; got a {type(labels).__name__}.")
    dtype = _dtype(labels)
    if dtype != "bool" if name == "valid" else not dtype.startswith(("int", "uint")):
        takes = "bool" if name == "valid" else "an integer dtype"
        raise TypeError(f"{name} must have {takes}; got {dtype}.")
    if not isinstance(labels, np.ndarray) and labels.device != q.device:
        raise ValueError(f"{name} must be on the device of q, {q.device}; got {labels.device}.")
    full = list(q.shape[:-1])
    full[axis] = k.shape[axis]
    fits = labels.ndim == len(full) and all(
        got == want or (got == 1 and place != axis)
        for place, (got, want) in enumerate(zip(labels.shape, full, strict=True))
    )
    if not fits:
        raise ValueError(
            f"{name} must have shape {tuple(full)}, or 1 on any axis but {axis}; got {tuple(labels.shape)}."
        )
    return labels


def _check_scale(scale: float | None, width: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(width)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(f"scale must be a finite real number or None; got {scale!r}.")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be a finite real number or None; got {scale!r}.")
    return float(scale)
