"""The reads that are not the displayed formula: golden vectors, laws, and what they say to bad input."""

from __future__ import annotations

import numpy as np
import pytest

from t2lib import golden
from t2lib.lab import reads


def directional(function, value, direction, step=1e-5):
    return (function(value + step * direction) - function(value - step * direction)) / (2 * step)


def assert_golden(vector, function, arguments):
    """The output to 1e-10, and every recorded gradient along one random direction."""
    values = {name: vector[key] for name, key in arguments.items()}
    np.testing.assert_allclose(function(**values), vector["out"], rtol=0, atol=1e-10)
    rng = np.random.default_rng(0)
    for name, key in arguments.items():
        gradient = vector["grad__" + key.split("__")[1]]
        direction = rng.normal(size=gradient.shape)

        def loss(value, name=name):
            return np.sum(function(**{**values, name: value}) * vector["cotangent"])

        got = directional(loss, values[name], direction)
        np.testing.assert_allclose(got, np.sum(gradient * direction), rtol=1e-7, atol=1e-7)


@pytest.mark.equation("eq-static-softmax")
def test_static_softmax_read_is_the_golden_read():
    vector = golden.load("dual_static_softmax_depth")
    assert_golden(vector, reads.static_softmax_read, {"sources": "in__H", "logits": "par__a"})


@pytest.mark.equation("eq-two-softmax")
def test_two_softmax_reads_are_the_golden_signed_read():
    vector = golden.load("dual_static_signed_depth")
    assert_golden(vector, reads.signed_read_as_two_softmax, {"sources": "in__H", "weights": "par__a"})


@pytest.mark.equation("eq-two-softmax")
@pytest.mark.parametrize(
    "weights", [[0.5, -0.25, 2.0], [0.0, 0.0, 1.0], [-1.0, -2.0], [0.0, 0.0], [3.0], [1e-300, -1e300]]
)
def test_two_softmax_puts_signed_weights_together_again(weights):
    s_plus, p_plus, s_minus, p_minus = reads.two_softmax(weights)
    np.testing.assert_allclose(s_plus * p_plus - s_minus * p_minus, weights, rtol=1e-13)
    for scale, part in ((s_plus, p_plus), (s_minus, p_minus)):
        assert np.all(part >= 0)
        assert part.sum() == pytest.approx(1.0 if scale > 0 else 0.0)


@pytest.mark.equation("eq-pseudo-query")
def test_pseudo_query_read_is_the_golden_read():
    vector = golden.load("dual_depth_pseudoquery_full")
    names = {"sources": "in__S", "pseudo_query": "par__w", "gain": "par__gain"}
    assert_golden(vector, reads.pseudo_query_read, names)


@pytest.mark.equation("eq-uniform-read")
def test_uniform_read_is_the_residual_sum_up_to_its_length():
    sources = np.random.default_rng(1).normal(size=(7, 3, 8))
    read, stream = reads.uniform_read(sources), np.cumsum(sources, axis=0)
    np.testing.assert_allclose(read * np.arange(1, 8)[:, None, None], stream, rtol=1e-13)
    np.testing.assert_allclose(reads.rms_norm(read), reads.rms_norm(stream), atol=1e-14)
    # With eps the two differ, by about eps (n^2 - 1) / (2 rms(stream)^2): seen, and small.
    difference = np.abs(reads.rms_norm(read, 1e-5) - reads.rms_norm(stream, 1e-5)).max()
    assert 1e-8 < difference < 1e-2


@pytest.mark.equation("eq-uniform-read")
def test_zero_queries_and_zero_logits_read_uniformly():
    sources = np.random.default_rng(2).normal(size=(5, 2, 4))
    uniform = reads.uniform_read(sources)
    np.testing.assert_allclose(reads.pseudo_query_read(sources, np.zeros((5, 4))), uniform, atol=1e-14)
    np.testing.assert_allclose(reads.static_softmax_read(sources, np.zeros((5, 5))), uniform, atol=1e-14)


@pytest.mark.equation("eq-static-commute")
def test_fixed_weights_on_the_two_axes_commute():
    rng = np.random.default_rng(3)
    states, depth, tokens = rng.normal(size=(4, 6, 3)), rng.normal(size=(4, 4)), rng.normal(size=(6, 6))
    identity_4, identity_6 = np.eye(4), np.eye(6)
    up_then_across = reads.mix_axes(reads.mix_axes(states, depth, identity_6), identity_4, tokens)
    across_then_up = reads.mix_axes(reads.mix_axes(states, identity_4, tokens), depth, identity_6)
    np.testing.assert_allclose(up_then_across, across_then_up, atol=1e-13)
    np.testing.assert_allclose(reads.mix_axes(states, depth, tokens), across_then_up, atol=1e-13)
    # The same as one matrix on the flattened grid.
    flat = np.kron(depth, tokens) @ states.reshape(24, 3)
    np.testing.assert_allclose(flat.reshape(4, 6, 3), across_then_up, atol=1e-13)


def test_no_read_sees_a_later_source():
    rng = np.random.default_rng(4)
    sources, table = rng.normal(size=(5, 3, 4)), rng.normal(size=(5, 5))
    poisoned, query = sources.copy(), rng.normal(size=(5, 4))
    poisoned[3:] = 1e6
    for read in (
        lambda x: reads.static_softmax_read(x, table),
        lambda x: reads.signed_read_as_two_softmax(x, table),
        lambda x: reads.pseudo_query_read(x, query),
        reads.uniform_read,
    ):
        np.testing.assert_array_equal(read(poisoned)[:3], read(sources)[:3])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda x: reads.static_softmax_read(x, np.zeros((3, 4))),
            "logits must have shape (5, 5), got (3, 4)",
        ),
        (
            lambda x: reads.signed_read_as_two_softmax(x, np.zeros(5)),
            "weights must have shape (5, 5), got (5,)",
        ),
        (lambda x: reads.pseudo_query_read(x, np.zeros(4)), "pseudo_query must have shape (5, 4), got (4,)"),
        (
            lambda x: reads.pseudo_query_read(x, np.zeros((5, 4)), np.zeros((5, 3))),
            "gain must have shape (5, 4), got (5, 3)",
        ),
        (
            lambda x: reads.mix_axes(x[0], np.eye(5), np.eye(2)),
            "states must have shape (N, T, d), got (2, 4)",
        ),
        (lambda x: reads.mix_axes(x, np.eye(2), np.eye(2)), "depth must have shape (5, 5), got (2, 2)"),
    ],
)
def test_bad_shapes_are_named(call, sentence):
    with pytest.raises(ValueError, match="must have shape") as caught:
        call(np.ones((5, 2, 4)))
    assert str(caught.value) == sentence
