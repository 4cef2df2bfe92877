"""What stream_mix, sinkhorn and short_conv must satisfy, whoever computes them.

A law takes the operator on NumPy arrays with its rung chosen, and returns how far it is from holding. Tests
and `python -m t2lib.verify` run them on every rung; the tests also on operators that are wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops._laws import error, random

Array = npt.NDArray[Any]
Operator = Callable[..., Any]
Law = Callable[[Operator], float]

# Operator -> its laws by name.
LAWS: dict[str, dict[str, Law]] = {"stream_mix": {}, "sinkhorn": {}, "short_conv": {}, "delta_rewrite": {}}


def law(operator: str) -> Callable[[Law], Law]:
    def register(function: Law) -> Law:
        name = function.__name__.removeprefix(f"{operator}_").replace("_", " ")
        LAWS[operator][name] = function
        return function

    return register


@law("stream_mix")
def stream_mix_definition(mix: Operator) -> float:
    """X'_o = Σ_i M_oi X_i + b_o y and h = Σ_o a_o X'_o, with coefficients a token and shared ones."""
    X, y = random(2, 3, 4, 5, seed=1), random(2, 3, 5, seed=2)
    worst = 0.0
    for leading in ((), (2, 3)):
        M, b, a = (random(*leading, *shape, seed=seed) for seed, shape in ((3, (4, 4)), (4, (4,)), (5, (4,))))
        want = np.einsum("...oi,...id->...od", M, X) + b[..., :, None] * y[..., None, :]
        new, h = mix(X, mix=M, write=b, branch=y, read=a)
        worst = max(worst, error(new, want), error(h, np.einsum("...o,...od->...d", a, want)))
        worst = max(worst, error(mix(X, read=a), np.einsum("...o,...od->...d", a, X)))
        worst = max(worst, error(mix(X, write=b, branch=y), X + b[..., :, None] * y[..., None, :]))
        worst = max(worst, error(mix(X, mix=M), np.einsum("...oi,...id->...od", M, X)))
    return worst


@law("stream_mix")
def one_stream_is_the_plain_residual(mix: Operator) -> float:
    x, y, one = random(3, 1, 5, seed=1), random(3, 5, seed=2), np.ones(1)
    new, h = mix(x, mix=np.ones((1, 1)), write=one, branch=y, read=one)
    return max(error(new[:, 0], x[:, 0] + y), error(h, x[:, 0] + y))


@law("stream_mix")
def stochastic_mixes_keep_what_they_should(mix: Operator) -> float:
    """Rows that sum to 1 keep equal streams equal; columns that sum to 1 keep the sum of the streams."""
    X, x = random(3, 4, 5, seed=1), random(3, 1, 5, seed=2).repeat(4, 1)
    rows = random(4, 4, seed=3) ** 2
    rows /= rows.sum(1, keepdims=True)
    return max(error(mix(x, mix=rows), x), error(mix(X, mix=rows.T.copy()).sum(1), X.sum(1)))


@law("stream_mix")
def one_hot_weights_pick_and_permute(mix: Operator) -> float:
    X, order = random(3, 4, 5, seed=1), [2, 0, 3, 1]
    return max(error(mix(X, mix=np.eye(4)[order]), X[:, order]), error(mix(X, read=np.eye(4)[2]), X[:, 2]))


@law("sinkhorn")
def sinkhorn_definition(project: Operator) -> float:
    """Columns, then rows, on exp(logits); index (out, in)."""
    logits = random(5, 4, 4, seed=1)
    M, worst = np.exp(logits), 0.0
    for iterations in range(1, 8):
        M = M / M.sum(-2, keepdims=True)
        M = M / M.sum(-1, keepdims=True)
        worst = max(worst, error(project(logits, iterations=iterations), M))
    return worst


@law("sinkhorn")
def rows_are_exact_and_columns_converge(project: Operator) -> float:
    """Whatever the iterations, rows sum to 1; after many, columns do as well."""
    logits = random(5, 4, 4, seed=1)
    few, many = project(3 * logits, iterations=3), project(logits, iterations=200)
    return max(error(few.sum(-1), np.ones((5, 4))), error(many.sum(-2), np.ones((5, 4))))


@law("sinkhorn")
def symmetries_of_the_projection(project: Operator) -> float:
    """A number added to a column of logits changes nothing; permuting streams permutes the matrix.

    After few iterations the first holds only because columns come first.
    """
    logits, order = random(4, 4, seed=1), [2, 0, 3, 1]
    M = project(logits, iterations=2)
    shifted = project(logits + np.arange(4.0), iterations=2)
    permuted = project(logits[order][:, order], iterations=2)
    return max(error(shifted, M), error(permuted, M[order][:, order]))


@law("short_conv")
def short_conv_definition(conv: Operator) -> float:
    """Channel by channel the convolution of the textbooks, with the taps turned around."""
    worst = 0.0
    for taps in (2, 3, 4, 8):
        for length in (1, 2, taps, 11):
            x, w, b = random(length, 3, seed=1), random(3, taps, seed=2), random(3, seed=3)
            rows = [np.convolve(x[:, c], w[c, ::-1])[:length] + b[c] for c in range(3)]
            y = np.stack(rows, 1)
            worst = max(worst, error(conv(x, w, b, axis=0), y))
            worst = max(worst, error(conv(x, w, b, axis=0, activation="silu"), y / (1 + np.exp(-y))))
    return worst


@law("short_conv")
def a_one_hot_tap_is_a_shift(conv: Operator) -> float:
    x, worst = random(2, 9, 3, seed=1), 0.0
    for j in range(4):
        w = np.zeros((3, 4))
        w[:, 3 - j] = 1
        shifted = np.concatenate([np.zeros((2, j, 3)), x[:, : 9 - j]], 1)
        worst = max(worst, error(conv(x, w, axis=1), shifted))
    return worst


@law("short_conv")
def depth_is_tokens_with_the_axes_swapped(conv: Operator) -> float:
    x, w = random(5, 2, 7, 3, seed=1), random(3, 4, seed=2)
    return error(conv(x.swapaxes(0, 2), w, axis=2).swapaxes(0, 2), conv(x, w, axis=0))


@law("short_conv")
def a_sequence_may_be_cut_anywhere(conv: Operator) -> float:
    """States carry the rest, also through chunks that are shorter than the taps."""
    x, w, b = random(2, 11, 3, seed=1), random(3, 4, seed=2), random(3, seed=3)
    start = random(2, 3, 3, seed=4)
    use = {"axis": 1, "activation": "silu", "return_state": True}
    whole, last = conv(x, w, b, initial_state=start, **use)
    worst = 0.0
    for cuts in ((1, 1, 1, 8), (3, 1, 1, 2, 4), (2, 9), (11,)):
        state, begin, parts = start, 0, []
        for chunk in cuts:
            y, state = conv(x[:, begin : begin + chunk], w, b, initial_state=state, **use)
            parts.append(y)
            begin += chunk
        worst = max(worst, error(np.concatenate(parts, 1), whole), error(state, last))
    return worst


@law("short_conv")
def packed_documents_are_filtered_as_if_alone(conv: Operator) -> float:
    """Result and state; and NaN in another document does not come through."""
    x, w = random(2, 10, 3, seed=1), random(3, 4, seed=2)
    documents = np.array([[7] * 4 + [2] + [8] * 5])
    alone = [conv(x[:, a:b], w, axis=1) for a, b in ((0, 4), (4, 5), (5, 10))]
    poisoned = x.copy()
    poisoned[:, 4] = np.nan
    y, state = conv(poisoned[:, :7], w, axis=1, documents=documents[:, :7], return_state=True)
    packed = conv(x, w, axis=1, documents=documents)
    kept = np.concatenate([np.zeros((2, 1, 3)), x[:, 5:7]], 1)
    clean = [np.delete(part[:, :7], 4, 1) for part in (y, packed)]
    return max(error(packed, np.concatenate(alone, 1)), error(*clean), error(state, kept))
