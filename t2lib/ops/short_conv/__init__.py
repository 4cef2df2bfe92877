"""Causal depthwise short convolution along one axis, with its streaming state: the contract of all rungs."""

from __future__ import annotations

from typing import Any

import numpy as np

from t2lib.ops._checks import (
    bridge,
    check_array,
    check_axis,
    check_flag,
    check_like,
    check_shape,
    dtype,
    kind,
    pick,
)

__all__ = ["WIDTHS", "short_conv"]

WIDTHS = range(2, 9)


def short_conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    axis: int,
    rung: str = "auto",
    activation: str | None = None,
    documents: Any = None,
    initial_state: Any = None,
    return_state: bool = False,
) -> Any:
    """Filter every channel over the last K entries of one axis, self included, with K taps of its own.

        y_t = φ( bias + Σ_{j=0}^{K−1} weight[:, K−1−j] ⊙ x_{t−j} ),    φ the identity or SiLU

    The last tap belongs to the entry itself, the first to the oldest one. Entries before the first are zero,
    or those of `initial_state`.

    Shapes
        x (..., N, ..., d), weight (d, K) with K from 2 to 8, bias (d,); the result is shaped as x. `axis` is
        the ordered axis: any but the last. States are shaped as x with K − 1 in place of N. `documents`
        (integers) has the shape of x without its width; any axis of it but the ordered one may be 1, which
        means shared along it.

    Arguments
        rung           "auto", or one of t2lib.ladder("short_conv"): "loops" ... "kernels"
        activation     None or "silu"
        documents      an entry of another document counts as zero
        initial_state  the K − 1 entries before the first, oldest first; with `documents` they belong to the
                       document of the first entry
        return_state   return (y, state): the last K − 1 entries, from `initial_state` too if x is shorter, as
                       a copy; with `documents`, those of other documents than the last entry's are zeros

    So a sequence may be cut anywhere: the state of one call is the initial state of the next, and no result
    changes. A NaN in x reaches exactly the entries that see it, and only its own channel.

    Dtypes  float64, float32, float16, bfloat16, one for all inputs. Sums and SiLU are float64 for float64
            and float32 for all others. Results have the kind, dtype and device of x.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung
            cannot run.
    Cost    2 K d FLOPs an entry (1 d more with a bias, about 4 d with SiLU); x in and y out: memory-bound.
            The state is (K − 1) d numbers a sequence, whatever its length.
    Source  the short filter of H3, Hyena and Mamba; fla-org/flash-linear-attention; Canon: arXiv 2512.17351.
    """
    check_array("x", x)
    if x.ndim < 2 or x.shape[-1] == 0:
        takes = "two or more axes and a width, its last axis, of at least 1"
        raise ValueError(f"x must have {takes}; got shape {tuple(x.shape)}.")
    axis = check_axis("axis", axis, x.ndim, of="x")
    if x.shape[axis] == 0:
        raise ValueError(f"the ordered axis, axis={axis}, must not be empty; got x {tuple(x.shape)}.")
    taps = _check_weight(weight, x)
    if bias is not None:
        check_like("bias", bias, "x", x)
        check_shape("bias", bias, (x.shape[-1],))
    if activation not in (None, "silu"):
        raise ValueError(f"activation must be None or 'silu'; got {activation!r}.")
    if initial_state is not None:
        check_like("initial_state", initial_state, "x", x)
        check_shape("initial_state", initial_state, (*x.shape[:axis], taps - 1, *x.shape[axis + 1 :]))
    if documents is not None:
        _check_documents(documents, x, axis)
    return_state = check_flag("return_state", return_state)
    rung, module = pick("short_conv", rung, x)

    def call(x: Any, weight: Any, bias: Any, documents: Any, initial_state: Any) -> Any:
        silu = activation == "silu"
        y, state = module.short_conv(
            x, weight, bias, axis=axis, silu=silu, documents=documents, state=initial_state, keep=return_state
        )
        return (y, state) if return_state else y

    arrays = {"x": x, "weight": weight, "bias": bias, "documents": documents, "initial_state": initial_state}
    return bridge(rung, call, arrays)


def _check_weight(weight: Any, x: Any) -> int:
    check_like("weight", weight, "x", x)
    width = x.shape[-1]
    if weight.ndim != 2 or weight.shape[0] != width or not WIDTHS[0] <= weight.shape[1] <= WIDTHS[-1]:
        takes = f"shape ({width}, K) with K from {WIDTHS[0]} to {WIDTHS[-1]}"
        raise ValueError(f"weight must have {takes}; got {tuple(weight.shape)}.")
    return int(weight.shape[1])


def _check_documents(documents: Any, x: Any, axis: int) -> None:
    if kind(documents) != kind(x):
        raise TypeError(f"documents must be {kind(x)} like x; got {kind(documents)}.")
    if not dtype(documents).startswith(("int", "uint")):
        raise TypeError(f"documents must have an integer dtype; got {dtype(documents)}.")
    if not isinstance(documents, np.ndarray) and documents.device != x.device:
        raise ValueError(f"documents must be on the device of x, {x.device}; got {documents.device}.")
    full, got = tuple(x.shape[:-1]), tuple(documents.shape)
    takes = f"shape {full}, or 1 in place of any of these but the length, {full[axis]}"
    if len(got) != len(full) or got[axis] != full[axis]:
        raise ValueError(f"documents must have {takes}; got {got}.")
    if any(size not in (1, whole) for size, whole in zip(got, full, strict=True)):
        raise ValueError(f"documents must have {takes}; got {got}.")
