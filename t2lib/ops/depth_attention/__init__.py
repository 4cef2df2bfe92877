"""A softmax read of a list of states by a pseudo-query, whole or in parts: the contract of all rungs."""

from __future__ import annotations

from typing import Any

import numpy as np

from t2lib.ops._checks import (
    bridge,
    check_array,
    check_eps,
    check_flag,
    check_like,
    check_like_or_wide,
    check_shape,
    check_states,
    dtype,
    kind,
    pick,
)

__all__ = ["depth_attention", "depth_attention_partial", "merge"]


def depth_attention(
    states: Any,
    pseudo_query: Any,
    *,
    gain: Any = None,
    eps: float = 1e-6,
    query: Any = None,
    parts: Any = (),
    norm_gain: Any = None,
    norm_eps: float = 1e-6,
    return_lse: bool = False,
    rung: str = "auto",
) -> Any:
    """Softmax read of a list of states: RMS-normalised keys, raw values, no scale, and nothing stacked.

        s_j = Σ_c (w_c + q_c) g_c · x_jc / sqrt(mean(x_j²) + eps),    j = 0 ... N - 1
        z   = Σ_j a_j x_j,    a_j = exp(s_j) / Σ_m exp(s_m)

    for every token by itself. w is the pseudo-query, learned and the same for all tokens; g the gain of the
    key norm; q an input-dependent query, if there is one. Finished reads of other states, (z_p, l_p) with
    their log-sum-exps, may join the same softmax, as the second of two phases has it; and the result may be
    normalised as well, as the sublayer that asked does first:

        z   = (Σ_p exp(l_p) z_p + Σ_j exp(s_j) x_j) / (Σ_p exp(l_p) + Σ_j exp(s_j))
        u   = γ · z / sqrt(mean(z²) + norm_eps)

    Shapes
        states        a list or tuple of N arrays (..., d), all of one shape
        pseudo_query  (d,), or None for a read by `query` alone
        gain          (d,), or None for ones
        query         (..., d), or None; it is added to the pseudo-query
        parts         pairs of z_p (..., d) and l_p (...), as `merge` takes them; none by default
        norm_gain     γ of shape (d,), or None for no u
        result        z (..., d); with return_lse=True also the logarithm of the sum of all exp, (...); with
                      norm_gain also u (..., d); as a tuple in this order

    Arguments
        eps         added to the mean square of a state, at least 0
        norm_eps    added to the mean square of z, at least 0
        return_lse  whether to return the log-sum-exp as well, for `merge`
        rung        "auto", "loops", "arrays", "eager", "compiled" or "kernels": see
                    t2lib.ladder("depth_attention"); "kernels" does all of it in one pass

    A NaN in a state reaches its own token and no other.

    Dtypes  float64, float32, float16, bfloat16, one for all inputs; pseudo_query and both gains may be
            float32 beside states in half precision. The results have the kind, dtype and device of the
            states. Norms, scores, softmax and sums are float64 for float64 and float32 for all others, and
            so are log-sum-exps.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung
            cannot run.
    Cost    6·N·d FLOPs a token: 2·d each for norm, score and sum of a state; each state is read once, so
            (N + 1)·d elements a token move. Backward keeps the states themselves and two numbers a state and
            token; "kernels" moves (2·N + 2)·d there, 2·d more for a query, and numbers; less if fewer
            gradients are needed: N·d less without those of states (`cost.kernel_bytes`). "eager" and
            "kernels" are differentiable once. P parts add 2·(P + 1)·d FLOPs and P·d elements, u adds 4·d
            and d. More than 64 states take "kernels" further launches, each with a read in float32 handed on.
    Source  arXiv 2603.15031.
    """
    states = check_states("states", states)
    first = states[0]
    width = first.shape[-1]
    if pseudo_query is None and query is None:
        raise TypeError("pseudo_query or query must be given; got None for both.")
    for name, x in (("pseudo_query", pseudo_query), ("gain", gain)):
        if x is not None:
            check_like_or_wide(name, x, "states[0]", first)
            check_shape(name, x, (width,))
    if query is not None:
        check_like("query", query, "states[0]", first)
        check_shape("query", query, tuple(first.shape))
    joined = _check_parts(parts, "states[0]", first)
    if norm_gain is not None:
        check_like_or_wide("norm_gain", norm_gain, "states[0]", first)
        check_shape("norm_gain", norm_gain, (width,))
    norm_eps, return_lse = check_eps("norm_eps", norm_eps), check_flag("return_lse", return_lse)
    w, g, q = (None if x is None else x[None] for x in (pseudo_query, gain, query))
    z, lse, *normed = _read(rung, states, w, g, q, eps, joined, norm_gain, norm_eps)
    # With the dots, a single number comes back as an array as well.
    found = (z[0], *([lse[0, ...]] if return_lse else []), *(u[0] for u in normed))
    return found if len(found) > 1 else found[0]


def depth_attention_partial(
    states: Any, pseudo_queries: Any, *, gains: Any = None, eps: float = 1e-6, rung: str = "auto"
) -> Any:
    """Many reads of one list of states at once, each with its log-sum-exp: the first phase of two.

    A pseudo-query does not depend on the input, so all the sublayers of a block can read the finished blocks
    in one pass. Row i of the result is `depth_attention(states, pseudo_queries[i], gain=gains[i],
    return_lse=True)`; `merge` joins it with what the sublayer reads later.

    Shapes
        states          a list or tuple of N arrays (..., d), all of one shape
        pseudo_queries  (Q, d)
        gains           (Q, d), or None for ones
        result          the pair of reads (Q, ..., d) and log-sum-exps (Q, ...)

    Dtypes, errors  as of `depth_attention`
    Cost    (2 + 4·Q)·N·d FLOPs a token: the norm of a state serves all queries; each state is read once, by
            "kernels" from the cache where it does not hold all queries at once (it holds 4 up to d = 2048,
            2 up to 4096, else 1). Backward there reads each state twice: (3·N + 2·Q)·d elements a token
            move, and from the cache the gradients of all reads at every second state, at every one beyond
            d = 4096. If only gradients of states are needed, or only others, (2·N + 2·Q)·d
            (`cost.kernel_bytes`).
    Source  arXiv 2603.15031.
    """
    states = check_states("states", states)
    first = states[0]
    check_like_or_wide("pseudo_queries", pseudo_queries, "states[0]", first)
    if pseudo_queries.ndim != 2 or 0 in pseudo_queries.shape or pseudo_queries.shape[1] != first.shape[-1]:
        takes = f"shape (Q, {first.shape[-1]}) with Q of at least 1"
        raise ValueError(f"pseudo_queries must have {takes}; got {tuple(pseudo_queries.shape)}.")
    if gains is not None:
        check_like_or_wide("gains", gains, "states[0]", first)
        check_shape("gains", gains, tuple(pseudo_queries.shape))
    z, lse = _read(rung, states, pseudo_queries, gains, None, eps)
    return z, lse


def merge(parts: Any, *, return_lse: bool = False, rung: str = "auto") -> Any:
    """One softmax read out of reads of parts of the list: the online softmax, exact and not an approximation.

        z = Σ_p exp(l_p) z_p / Σ_p exp(l_p),    lse = log Σ_p exp(l_p)

    for parts (z_p, l_p) as `depth_attention(..., return_lse=True)` or `depth_attention_partial` return them.
    z_p is a convex combination and never large; the largest l_p is subtracted before exp.

    Shapes  z_p (..., d) and l_p (...), the same for all parts; result (..., d), with return_lse=True the
            pair of it and lse (...)
    Dtypes  z_p one of float64, float32, float16, bfloat16; l_p float64 for float64 and float32 for all others
    Errors  TypeError or ValueError in one sentence, the same on every rung
    Cost    2·P·d FLOPs a token for P parts
    Source  arXiv 2603.15031; the merge itself arXiv 1805.02867.
    """
    if isinstance(parts, (list, tuple)) and not parts:
        raise ValueError("parts must hold at least one pair; got none.")
    reads, lses = _check_parts(parts)
    return_lse = check_flag("return_lse", return_lse)
    rung, module = pick("depth_attention", rung, reads[0])
    z, lse = bridge(rung, module.merge, {"reads": reads, "lses": lses}, wide=(1,))
    return (z, lse) if return_lse else z


def _read(
    rung: str,
    states: tuple[Any, ...],
    pseudo_query: Any,
    gain: Any,
    query: Any,
    eps: Any,
    parts: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ()),
    norm_gain: Any = None,
    norm_eps: float = 0.0,
) -> tuple[Any, ...]:
    eps = check_eps("eps", eps)
    rung, module = pick("depth_attention", rung, states[0])
    further = bool(parts[0]) or norm_gain is not None

    # On every rung: pseudo_query, gain (Q, d); query (Q, ..., d); read (Q, ..., d), lse (Q, ...). Parts and
    # the norm are for Q = 1.
    def call(
        states: Any, pseudo_query: Any, gain: Any, query: Any, reads: Any, lses: Any, norm_gain: Any
    ) -> tuple[Any, ...]:
        if further and rung == "kernels":
            return module.read_on(  # type: ignore[no-any-return]
                states, pseudo_query, gain, query, eps, reads, lses, norm_gain, norm_eps
            )
        z, lse = module.depth_attention(states, pseudo_query, gain, query, eps)
        if reads:
            z, lse = (x[None] for x in module.merge((*reads, z[0]), (*lses, lse[0, ...])))
        return (z, lse) if norm_gain is None else (z, lse, _normed(z, norm_gain, norm_eps))

    arrays = {
        "states": states, "pseudo_query": pseudo_query, "gain": gain, "query": query,
        "reads": parts[0], "lses": parts[1], "norm_gain": norm_gain,
    }  # fmt: skip
    found: tuple[Any, ...] = bridge(rung, call, arrays, wide=(1,))
    return found


def _normed(z: Any, gain: Any, eps: float) -> Any:
    """γ · z / sqrt(mean(z²) + eps), computed in the dtype of sums."""
    if isinstance(z, np.ndarray):
        wide = z.astype(np.promote_types(z.dtype, np.float32))
        return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps) * gain).astype(z.dtype)
    import torch

    if z.dtype == torch.float64:
        return torch.nn.functional.rms_norm(z, gain.shape, gain, eps)
    return torch.nn.functional.rms_norm(z.float(), gain.shape, gain.float(), eps).to(z.dtype)


def _check_parts(
    parts: Any, name: str = "parts[0][0]", like: Any = None
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The reads and the log-sum-exps of pairs that fit `like`, by default the first read."""
    pairs = isinstance(parts, (list, tuple)) and all(
        isinstance(x, (list, tuple)) and len(x) == 2 for x in parts
    )
    if not pairs:
        raise TypeError(f"parts must be a list or tuple of pairs (read, log-sum-exp); got {kind(parts)}.")
    if not parts:
        return (), ()
    reads, lses = zip(*parts, strict=True)
    if like is None:
        like = reads[0]
        check_array(name, like)
    takes = "float64" if dtype(like) == "float64" else "float32"
    for place, (read, lse) in enumerate(parts):
        check_like(f"parts[{place}][0]", read, name, like)
        check_shape(f"parts[{place}][0]", read, tuple(like.shape))
        number = f"parts[{place}][1]"
        if kind(lse) != kind(like):
            raise TypeError(f"{number} must be {kind(like)} like {name}; got {kind(lse)}.")
        if dtype(lse) != takes:
            raise TypeError(f"{number} must have dtype {takes}; got {dtype(lse)}.")
        if not isinstance(lse, np.ndarray) and lse.device != like.device:
            raise ValueError(f"{number} must be on the device of {name}, {like.device}; got {lse.device}.")
        check_shape(number, lse, tuple(like.shape[:-1]))
    return reads, lses
