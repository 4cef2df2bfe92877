"""What depth_mix and depth_attention must satisfy, whoever computes them; the form of `_laws`.

A law of MIX takes `mix`, a law of READ an object with `depth_attention`, `depth_attention_partial` and
`merge`, on NumPy arrays with their rung chosen. Each returns how far the law is from holding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from t2lib.ops._laws import Array, Law, error, random

MIX: dict[str, Law] = {}
READ: dict[str, Callable[[Any], float]] = {}


def _law(laws: dict[str, Any]) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        laws[function.__name__.removeprefix("mix_").replace("_", " ")] = function
        return function

    return register


def _states(n: int = 5, *shape: int, seed: int = 0) -> list[Array]:
    return list(random(n, *(shape or (2, 3, 6)), seed=seed))


@_law(MIX)
def mix_definition(mix: Any) -> float:
    """The six forms of weights against an einsum over the stack."""
    x, b, bd, s = _states(), random(5, seed=1), random(5, 6, seed=2), random(2, 3, 5, seed=3)
    stack, per_token = np.stack(x), np.einsum("btn,nbtd->btd", s, np.stack(x))
    static, channel = np.einsum("n,nbtd->btd", b, stack), np.einsum("nd,nbtd->btd", bd, stack)
    return max(
        error(mix(x, b), static),
        error(mix(x, bd), channel),
        error(mix(x, None, s), per_token),
        error(mix(x, b, s), static + per_token),
        error(mix(x, bd, s), channel + per_token),
        error(mix([x[0][0, 0]], np.array([2.0])), 2 * x[0][0, 0]),
    )


@_law(MIX)
def several_outputs_are_single_ones(mix: Any) -> float:
    """C sums at once equal C calls, for every form of weights."""
    x, worst = _states(), 0.0
    for static in (None, random(3, 5, seed=1), random(3, 5, 6, seed=2)):
        for own in (None, random(2, 3, 3, 5, seed=3)):
            if static is None and own is None:
                continue
            got = mix(x, static, own, outputs=3)
            for c in range(3):
                alone = mix(
                    x,
                    *(None if w is None else w[at] for w, at in ((static, c), (own, (..., c, slice(None))))),
                )
                worst = max(worst, error(got[c], alone))
    return worst


@_law(MIX)
def one_hot_weights_select(mix: Any) -> float:
    x = _states()
    return max(error(mix(x, np.eye(5)[j]), x[j]) for j in range(5))


@_law(MIX)
def weights_of_one_are_the_plain_residual(mix: Any) -> float:
    x = _states()
    return error(mix(x, np.ones(5)), x[0] + x[1] + x[2] + x[3] + x[4])


@_law(MIX)
def convex_weights_keep_constants_and_bounds(mix: Any) -> float:
    x, weights = _states(), np.exp(random(5, seed=1))
    weights /= weights.sum()
    z, stack = mix(x, weights), np.stack(x)
    outside = np.maximum(stack.min(0) - z, z - stack.max(0)).max(initial=0.0)
    constant = np.full((2, 3, 6), 2.5)
    return max(float(outside), error(mix([constant] * 5, weights), constant))


@_law(MIX)
def static_weights_commute_with_a_shift_of_tokens(mix: Any) -> float:
    """Nothing crosses tokens: permuting them permutes the result."""
    x, b, s = _states(), random(5, seed=1), random(2, 3, 5, seed=2)
    order = [2, 0, 1]
    return error(mix([y[:, order] for y in x], b, s[:, order]), mix(x, b, s)[:, order])


@_law(MIX)
def mix_a_bad_entry_reaches_its_own_channel(mix: Any) -> float:
    x, b = _states(), random(5, seed=1)
    want = mix(x, b)
    x[3][1, 2, 4] = np.nan
    want[1, 2, 4] = np.nan
    return error(mix(x, b), want)


def _dense(x: list[Array], w: Array, gain: Array | None, eps: float) -> tuple[Array, Array]:
    """The textbook form: a stack, its normalised copy, all scores, one softmax."""
    stack = np.stack(x)
    keys = stack / np.sqrt((stack**2).mean(-1, keepdims=True) + eps) * (1 if gain is None else gain)
    scores = (keys * w).sum(-1)
    largest = scores.max(0)
    weights = np.exp(scores - largest)
    lse = largest + np.log(weights.sum(0))
    return (weights[..., None] * stack).sum(0) / weights.sum(0)[..., None], lse


def _both(got: tuple[Array, Array], want: tuple[Array, Array]) -> float:
    return max(error(got[0], want[0]), error(got[1], want[1]))


@_law(READ)
def definition(op: Any) -> float:
    """Against the form with the stack, with and without gain, per-token query and a large eps."""
    x, w, gain, query = _states(), random(6, seed=1), random(6, seed=2), random(2, 3, 6, seed=3)
    worst = 0.0
    for g in (None, gain):
        for eps in (1e-6, 0.5):
            plain = op.depth_attention(x, w, gain=g, eps=eps, return_lse=True)
            both = op.depth_attention(x, w, gain=g, eps=eps, query=query, return_lse=True)
            own = op.depth_attention(x, None, gain=g, eps=eps, query=query, return_lse=True)
            worst = max(
                worst,
                _both(plain, _dense(x, w, g, eps)),
                _both(both, _dense(x, w + query, g, eps)),
                _both(own, _dense(x, query, g, eps)),
            )
    return worst


@_law(READ)
def a_zero_query_reads_the_mean(op: Any) -> float:
    x = _states()
    z, lse = op.depth_attention(x, np.zeros(6), return_lse=True)
    return max(error(z, sum(x[1:], x[0]) / 5), error(lse, np.full((2, 3), np.log(5))))


@_law(READ)
def one_state_is_returned_as_it_is(op: Any) -> float:
    x = _states(1)
    return error(op.depth_attention(x, random(6, seed=1)), x[0])


@_law(READ)
def the_order_of_the_states_does_not_matter(op: Any) -> float:
    x, w = _states(), random(6, seed=1)
    return error(op.depth_attention([x[j] for j in (3, 0, 4, 1, 2)], w), op.depth_attention(x, w))


@_law(READ)
def only_query_times_gain_matters(op: Any) -> float:
    x, w, gain = _states(), random(6, seed=1), random(6, seed=2)
    return error(op.depth_attention(x, w, gain=gain), op.depth_attention(x, w * gain))


@_law(READ)
def keys_ignore_the_scale_of_a_state_and_values_keep_it(op: Any) -> float:
    """With eps = 0, states scaled by c have the same weights, so the read is scaled by c."""
    x, w = _states(), random(6, seed=1)
    z, lse = op.depth_attention(x, w, eps=0.0, return_lse=True)
    return _both(op.depth_attention([7 * y for y in x], w, eps=0.0, return_lse=True), (7 * z, lse)) / 7


@_law(READ)
def two_phases_equal_one(op: Any) -> float:
    """Many queries over parts of the list, merged in any grouping, equal each full read; at any scale."""
    worst = 0.0
    for scale in (1.0, 300.0):
        x, w, gain = _states(6), scale * random(3, 6, seed=1), random(3, 6, seed=2)
        parts = [op.depth_attention_partial(some, w, gains=gain) for some in (x[:1], x[1:4], x[4:])]
        joined = op.merge(parts, return_lse=True)
        nested = op.merge([op.merge(parts[:2], return_lse=True), parts[2]], return_lse=True)
        for i in range(3):
            whole = op.depth_attention(x, w[i], gain=gain[i], return_lse=True)
            for z, lse in (joined, nested):
                worst = max(worst, _both((z[i], lse[i]), whole) / scale)
    return worst


@_law(READ)
def a_read_goes_on_from_finished_parts(op: Any) -> float:
    """Parts of the list, each read before, and the rest of it in one call equal the full read."""
    x, w, gain, query = _states(6), random(6, seed=1), random(6, seed=2), random(2, 3, 6, seed=3)
    options = {"gain": gain, "query": query, "return_lse": True}
    parts = [op.depth_attention(some, w, **options) for some in (x[:1], x[1:4])]
    return _both(op.depth_attention(x[4:], w, parts=parts, **options), op.depth_attention(x, w, **options))


@_law(READ)
def the_read_leaves_normalised(op: Any) -> float:
    """Beside the read itself, whatever else is asked for; its mean square is 1 at eps = 0 and a gain of 1."""
    x, w, gain = _states(), random(6, seed=1), random(6, seed=2)
    z, lse, normed = op.depth_attention(x, w, norm_gain=gain, norm_eps=0.3, return_lse=True)
    want = gain * z / np.sqrt((z * z).mean(-1, keepdims=True) + 0.3)
    _, unit = op.depth_attention(x[:2], w, parts=[(z, lse)], norm_gain=np.ones(6), norm_eps=0.0)
    square = (unit * unit).mean(-1)
    return max(error(normed, want), error(square, np.ones((2, 3))), _both((z, lse), _dense(x, w, None, 1e-6)))


@_law(READ)
def a_read_is_a_convex_combination(op: Any) -> float:
    x = _states()
    z, stack = op.depth_attention(x, 5 * random(6, seed=1)), np.stack(x)
    return float(np.maximum(stack.min(0) - z, z - stack.max(0)).max(initial=0.0))


@_law(READ)
def a_bad_entry_reaches_its_own_token(op: Any) -> float:
    x, w = _states(), random(6, seed=1)
    want, lse = op.depth_attention(x, w, return_lse=True)
    x[3][1, 2, 4] = np.nan
    want, lse = want.copy(), lse.copy()
    want[1, 2], lse[1, 2] = np.nan, np.nan
    return _both(op.depth_attention(x, w, return_lse=True), (want, lse))
