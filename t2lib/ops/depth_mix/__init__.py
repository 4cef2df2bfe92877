"""A weighted sum over a list of states, one or several at once: the contract all its rungs keep."""

from __future__ import annotations

from typing import Any

from t2lib.ops._checks import bridge, check_integer, check_like_or_wide, check_shape, check_states, pick

__all__ = ["depth_mix"]


def depth_mix(
    states: Any,
    weights: Any = None,
    token_weights: Any = None,
    *,
    outputs: int | None = None,
    rung: str = "auto",
) -> Any:
    """Weighted sum of a list of states, element by element, without stacking them.

        z = Σ_j (b_j + s_j) ⊙ x_j,    j = 0 ... N - 1

    x_j are the N states. b_j, from `weights`, is the same for all tokens: a number a state, or a number a
    state and channel. s_j, from `token_weights`, is a number a state and token. Either may be left out.
    Nothing is normalised: pass a softmax for convex weights.

    With `outputs=C` there are C such sums z_0 ... z_{C-1} with weights of their own over the same states, and
    each state is read from memory once for all of them (on the rung "kernels", for each eight of them).

    Shapes
        states         a list or tuple of N arrays (..., d), all of one shape
        weights        (N,) or (N, d);    with outputs=C: (C, N) or (C, N, d)
        token_weights  (..., N);          with outputs=C: (..., C, N)
        result         (..., d);          with outputs=C: (C, ..., d)

    Arguments
        outputs  None for one sum, or the number of sums
        rung     "auto", "loops", "arrays", "eager", "compiled" or "kernels": see t2lib.ladder("depth_mix")

    A NaN in a state reaches its own token and channel in every output, also with a weight of 0.

    Dtypes  float64, float32, float16, bfloat16, one for all inputs; weights may be float32 beside states in
            half precision. The result has the kind, dtype and device of the states. Sums are float64 for
            float64 and float32 for all others, rounded once at the end.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung
            cannot run.
    Cost    2·N·d FLOPs a token and output (3·N·d with per-channel and per-token weights together); each
            state is read once, so (N + C)·d elements a token move. Backward keeps the states themselves and
            no copy, and moves (2·N + C)·d. "kernels" adds sums of its own, reads the states again for each
            further eight outputs, and takes several launches for many states: `cost.kernel_bytes`. "eager"
            and "kernels" are differentiable once.
    Source  arXiv 2311.02265 (softmax weights), 2402.02622 (static), 2502.06785 (per channel and token),
            2502.12170 (per token, four outputs).
    """
    states = check_states("states", states)
    first, n = states[0], len(states)
    tokens, width = tuple(first.shape[:-1]), first.shape[-1]
    ways = () if outputs is None else (check_integer("outputs", outputs, 1),)
    if weights is None and token_weights is None:
        raise TypeError("weights or token_weights must be given; got None for both.")
    if weights is not None:
        check_like_or_wide("weights", weights, "states[0]", first)
        check_shape("weights", weights, (*ways, n), (*ways, n, width))
    if token_weights is not None:
        check_like_or_wide("token_weights", token_weights, "states[0]", first)
        check_shape("token_weights", token_weights, (*tokens, *ways, n))
    rung, module = pick("depth_mix", rung, first)

    def call(states: tuple[Any, ...], weights: Any, token_weights: Any) -> Any:
        # Canonical on every rung: weights (C, N, d or 1), token_weights (..., C, N), result (C, ..., d).
        if weights is not None:
            weights = weights if weights.ndim > len(ways) + 1 else weights[..., None]
            weights = weights if ways else weights[None]
        if token_weights is not None and not ways:
            token_weights = token_weights[..., None, :]
        z = module.depth_mix(states, weights, token_weights, outputs=ways[0] if ways else 1)
        return z if ways else z[0]

    return bridge(rung, call, {"states": states, "weights": weights, "token_weights": token_weights})
