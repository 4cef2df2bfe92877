"""Short sliding-window attention along one axis of an array: the contract all its rungs keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from t2lib.ops._checks import (
    bridge,
    check_arrays,
    check_axis,
    check_choice,
    check_integer,
    check_number,
    dtype,
    kind,
    pick,
)

__all__ = ["Mask", "sees", "short_swa"]


def sees(i: Any, j: Any, *, window: int, window_type: str, lookback: int) -> Any:
    """Whether the query at position i may read the key at position j, by position alone.

    i and j are integers, or integer arrays or tensors that broadcast.
    """
    if window_type == "chunk":
        return (j <= i) & (i // window - j // window <= lookback)
    return (j <= i) & (i - j < window)


@dataclass(frozen=True, eq=False)
class Mask:
    """Who sees whom.

    Queries stand at the positions query_start, query_start + 1, ...; keys at 0, 1, .... `documents` and
    `valid` belong to the positions of the keys, so a query finds its own entry at its own position.
    """

    window: int
    window_type: str = "strict"
    lookback: int = 1
    query_start: int = 0
    documents: Any = None
    valid: Any = None

    def sees(self, i: Any, j: Any) -> Any:
        """The predicate above, for this window."""
        return sees(i, j, window=self.window, window_type=self.window_type, lookback=self.lookback)

    def first_seen(self, i: int) -> int:
        """The smallest position that the query at position i may read."""
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

        z_i = Σ_{j ∈ J(i)} a_ij v_j,    a_ij = exp(scale · q_i·k_j) / Σ_{m ∈ J(i)} exp(scale · q_i·k_m)

        strict:  J(i) = { j : 0 <= i - j < window }
        chunk:   J(i) = { j : j <= i and i // window - j // window <= lookback }

    With `axis` on the tokens this is ShortSWA; with `axis` on the layers it is the depth read. It is the
    same code on the same array, and nothing is transposed in memory to get from one to the other.

    Book: eq-short-swa, eq-window-strict, eq-window-chunk, eq-depth-read, eq-duality

    Shapes
        q (..., n_q, ..., D), k (..., n_k, ..., D), v (..., n_k, ..., D_v), result (..., n_q, ..., D_v).
        `axis` is the ordered axis: any but the last. All other axes are independent of each other and must
        match, except `head_axis`: there k and v may be shorter than q by a whole factor g, and query head h
        reads key head h // g. `documents` (integers) and `valid` (bool) have the shape of q without its
        width and with the length of k; any axis of theirs but the ordered one may be 1, which means shared
        along it.

    Arguments
        window       visible entries, self included (strict), or the length of a chunk (chunk)
        rung         "auto", "loops", "arrays", "eager", "compiled" or "kernels": see t2lib.ladder()
        scale        factor on q·k; None is 1/sqrt(D)
        lookback     earlier chunks that are visible; read only if window_type is "chunk"
        documents    a key of another document is never read
        valid        a key that is not valid is never read; a query that is not valid returns zeros
        query_start  None: q and k are equally long. An integer: q holds the last n_q positions,
                     query_start ... n_k - 1, as in a streaming read or the read of one layer (n_q = 1)

    A row that sees nothing returns zeros. A NaN in a query reaches its own row, a NaN in a key or a value
    exactly the rows that see it. (Under an outer torch.compile it may reach their neighbours on "eager".)

    Dtypes  float64, float32, float16, bfloat16, one for q, k and v. The result has the kind, dtype and
            device of q. Scores, softmax and sums are float64 for float64 and float32 for all others.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung
            cannot run.
    Cost    2 · tri(n, w) · (D + D_v) FLOPs a head, tri(n, w) = n·w - w(w - 1)/2 for n >= w; memory linear
            in n.
    Source  arXiv 2603.16039, Section 2.2; chunks: yifanzhang-pro/Rethinking-SWA.
    """
    check_arrays(q=q, k=k, v=v)
    axis = check_axis("axis", axis, q.ndim)
    if head_axis is not None:
        head_axis = check_axis("head_axis", head_axis, q.ndim)
        if head_axis == axis:
            raise ValueError(f"head_axis must differ from axis; got {head_axis} for both.")
    _check_shapes(q, k, v, axis, head_axis)
    # No window reaches beyond the first key, and no rung has to hold a number larger than the length.
    n_k = k.shape[axis]
    mask = Mask(
        window=min(check_integer("window", window, 1), n_k),
        window_type=check_choice("window_type", window_type, ("strict", "chunk")),
        lookback=min(check_integer("lookback", lookback, 0), n_k) if window_type == "chunk" else 0,
        query_start=_check_query_start(query_start, q.shape[axis], n_k),
        documents=_check_labels("documents", documents, q, k, axis),
        valid=_check_labels("valid", valid, q, k, axis),
    )
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else check_number("scale", scale)
    rung, module = pick("short_swa", rung, q)

    def call(q: Any, k: Any, v: Any, documents: Any, valid: Any) -> Any:
        seen = replace(mask, documents=documents, valid=valid)
        return module.short_swa(q, k, v, axis=axis, mask=seen, scale=scale, head_axis=head_axis)

    arrays = {"q": q, "k": k, "v": v, "documents": mask.documents, "valid": mask.valid}
    return bridge(rung, call, arrays)


def _check_shapes(q: Any, k: Any, v: Any, axis: int, head_axis: int | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if 0 in (q.shape[axis], k.shape[axis]):
        raise ValueError(f"the ordered axis, axis={axis}, must not be empty; got {shapes}.")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same width, their last axis; got {shapes}.")
    if 0 in (q.shape[-1], v.shape[-1]):
        raise ValueError(f"q, k and v must have a width, their last axis, of at least 1; got {shapes}.")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must match on every axis but the width; got {shapes}.")
    for place, (n_q, n_k) in enumerate(zip(q.shape[:-1], k.shape[:-1], strict=True)):
        if n_q != n_k and place not in (axis, head_axis):
            raise ValueError(f"q and k must match on every axis but axis={axis}; got {shapes}.")
    if head_axis is not None:
        heads, key_heads = q.shape[head_axis], k.shape[head_axis]
        if heads != key_heads and (key_heads == 0 or heads % key_heads):
            got = f"got {heads} and {key_heads}"
            raise ValueError(
                f"q must have a whole multiple of the heads of k (head_axis={head_axis}); {got}."
            )


def _check_query_start(query_start: int | None, n_q: int, n_k: int) -> int:
    if query_start is None:
        if n_q != n_k:
            got = f"got {n_q} and {n_k}"
            raise ValueError(f"q and k must be equally long on axis, unless query_start is given; {got}.")
        return 0
    start = check_integer("query_start", query_start, 0)
    if start + n_q != n_k:
        got = f"got {start} + {n_q} and {n_k}"
        raise ValueError(f"query_start plus the length of q must be the length of k; {got}.")
    return start


def _check_labels(name: str, labels: Any, q: Any, k: Any, axis: int) -> Any:
    if labels is None:
        return None
    if kind(labels) != kind(q):
        raise TypeError(f"{name} must be {kind(q)} like q; got {kind(labels)}.")
    is_bool, is_integer = dtype(labels) == "bool", dtype(labels).startswith(("int", "uint"))
    if not (is_bool if name == "valid" else is_integer):
        takes = "dtype bool" if name == "valid" else "an integer dtype"
        raise TypeError(f"{name} must have {takes}; got {dtype(labels)}.")
    if not isinstance(labels, np.ndarray) and labels.device != q.device:
        raise ValueError(f"{name} must be on the device of q, {q.device}; got {labels.device}.")
    full = (*q.shape[:axis], k.shape[axis], *q.shape[axis + 1 : -1])
    takes = f"shape {full}, or 1 in place of any of these but the length, {full[axis]}"
    if labels.ndim != len(full) or labels.shape[axis] != full[axis]:
        raise ValueError(f"{name} must have {takes}; got {tuple(labels.shape)}.")
    if any(got not in (1, want) for got, want in zip(labels.shape, full, strict=True)):
        raise ValueError(f"{name} must have {takes}; got {tuple(labels.shape)}.")
    return labels
