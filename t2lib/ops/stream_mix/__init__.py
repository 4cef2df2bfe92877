"""n parallel residual streams: read them, mix them, write to them. And the Sinkhorn projection of a mix.

The contract all rungs keep.
"""

from __future__ import annotations

from typing import Any

from t2lib.ops._checks import (
    bridge,
    check_array,
    check_integer,
    check_like,
    check_like_or_wide,
    check_number,
    check_shape,
    pick,
)

__all__ = ["sinkhorn", "stream_mix"]


def stream_mix(
    streams: Any,
    *,
    mix: Any = None,
    write: Any = None,
    branch: Any = None,
    read: Any = None,
    rung: str = "auto",
) -> Any:
    """Mix n streams, write a branch output to them, read them; any of the three may be left out.

        X'_o = Σ_i M_oi X_i + b_o y      mixing matrix M (out, in), write weights b, branch output y
        h    = Σ_o a_o X'_o              read weights a

    Without `mix`, M is the identity; without `write`, nothing is added. Before a sublayer, `read` alone gives
    its input; behind it, `mix`, `write` and `branch` give the next state; with `read` as well, also what the
    next sublayer reads, without going through the state again.

    Hyper-Connections write the state as A_rᵀH + B yᵀ: pass mix = A_rᵀ, whose row o holds the weights into
    stream o.

    Shapes
        streams (..., n, d), branch (..., d)
        mix     (n, n), the same for all tokens, or (..., n, n), one a token
        write   (n,) or (..., n), read (n,) or (..., n)
        result  the new streams (..., n, d) if there is a mix or a write; the read (..., d) if there is a
                read; the tuple (streams, read) if there are both

    Arguments
        rung  "auto", "loops", "arrays", "eager", "compiled" or "kernels": see t2lib.ladder("stream_mix")

    A NaN in a stream reaches its own token and channel in every stream it is mixed into, also with a weight
    of 0.

    Dtypes  float64, float32, float16, bfloat16; coefficients may be float32 if the streams are in half
            precision (doubly stochastic ones should be). Sums are float64 for float64 and float32 for all
            others, rounded once at the end. Results have the kind, dtype and device of `streams`.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung
            cannot run.
    Cost    2 n d FLOPs a token to read, 2 n² d to mix, 2 n d to write; in one go (2 n + 1) d elements moved
            for mix and write, and (n + 1) d for a read of its own. Backward, with the streams loaded again,
            (3 n + 2) d for mix and write. The rung "kernels" moves just these, and takes up to 8 streams.
    Source  arXiv 2409.19606 (Hyper-Connections), arXiv 2512.24880 (manifold-constrained).
    """
    check_array("streams", streams)
    if streams.ndim < 2 or 0 in streams.shape[-2:]:
        takes = "two last axes (n, d), each of at least 1"
        raise ValueError(f"streams must have {takes}; got shape {tuple(streams.shape)}.")
    *leading, n, d = streams.shape
    if (write is None) != (branch is None):
        given, missing = ("branch", "write") if write is None else ("write", "branch")
        raise ValueError(f"write and branch go together; got {given} without {missing}.")
    if mix is None and write is None and read is None:
        raise ValueError("mix, write or read must be given; got none of them.")
    shapes = {"mix": (n, n), "write": (n,), "read": (n,)}
    for name, coefficient in (("mix", mix), ("write", write), ("read", read)):
        if coefficient is not None:
            check_like_or_wide(name, coefficient, "streams", streams)
            check_shape(name, coefficient, shapes[name], (*leading, *shapes[name]))
    if branch is not None:
        check_like("branch", branch, "streams", streams)
        check_shape("branch", branch, (*leading, d))
    rung, module = pick("stream_mix", rung, streams)
    arrays = {"streams": streams, "mix": mix, "write": write, "branch": branch, "read": read}
    return bridge(rung, module.stream_mix, arrays)


def sinkhorn(logits: Any, *, iterations: int = 20, eps: float = 0.0, rung: str = "auto") -> Any:
    """Sinkhorn-Knopp: from logits to a matrix whose rows sum to 1 and whose columns nearly do.

        M = exp(logits), then `iterations` times: every column by its sum, then every row by its sum

    The index is (out, in), so a column sum runs over the outputs. Rows come last and are exact: every new
    stream is a convex combination of the old ones. Columns converge with the iterations, slowly for peaked
    logits.

    eps = 0 is the paper, computed on logarithms, so nothing overflows or vanishes. eps > 0 is the released
    code: eps is added to every entry after the first column step, and to every later sum.

    Shapes  logits (..., n, n), result the same.
    Dtypes  as stream_mix; for half precision all steps are in float32.
    Errors  as stream_mix.
    Cost    about 4 n² FLOPs an iteration and matrix (and, on logarithms, 2 n² exponentials), whatever d is.
    Source  arXiv 2512.24880, equations 8 and 9; eps: deepseek-ai/TileKernels.
    """
    check_array("logits", logits)
    if logits.ndim < 2 or logits.shape[-1] != logits.shape[-2] or logits.shape[-1] == 0:
        takes = "two last axes (n, n), n at least 1"
        raise ValueError(f"logits must have {takes}; got shape {tuple(logits.shape)}.")
    iterations = check_integer("iterations", iterations, 1)
    eps = check_number("eps", eps)
    if eps < 0:
        raise ValueError(f"eps must be 0 or a number above 0; got {eps!r}.")
    rung, module = pick("stream_mix", rung, logits)
    return bridge(rung, lambda logits: module.sinkhorn(logits, iterations, eps), {"logits": logits})
