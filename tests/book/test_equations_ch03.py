"""The labelled equations of chapter 3 that no operator test proves, and the helpers of chapters 3 and 4."""

from __future__ import annotations

import numpy as np
import pytest

from t2lib.lab.windows import reached, reading_weights, receptive_field
from t2lib.ops import short_swa


@pytest.mark.equation("eq-receptive-field")
@pytest.mark.parametrize("window", [1, 2, 4, 7])
@pytest.mark.parametrize("reads", [0, 1, 2, 5])
def test_the_gradient_reaches_as_far_as_the_formula_says(window: int, reads: int) -> None:
    length = 40
    field = receptive_field(window, reads)
    assert reached(length, window, reads) == list(range(length - field, length))


def test_a_text_shorter_than_the_field_is_read_whole() -> None:
    assert reached(5, 4, 3) == [0, 1, 2, 3, 4]


def test_chunks_without_look_back_keep_to_themselves() -> None:
    assert reached(15, 4, 6, window_type="chunk", lookback=0) == [12, 13, 14]
    assert reached(15, 4, 2, window_type="chunk", lookback=1) == list(range(4, 15))


@pytest.mark.parametrize(("window", "reads"), [(0, 3), (3, -1)])
def test_the_formula_refuses_what_is_no_window(window: int, reads: int) -> None:
    with pytest.raises(ValueError, match="window must be at least 1 and reads at least 0, got"):
        receptive_field(window, reads)


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_weights_are_the_ones_the_reading_used(axis: int) -> None:
    states = np.random.default_rng(1).standard_normal((5, 6, 4))
    weights = reading_weights(states, states, window=3, axis=axis)
    assert np.allclose(weights.sum(-1), 1)
    along = np.moveaxis(states, axis, -2)
    z = np.einsum("...ij,...jd->...id", np.moveaxis(weights, axis, -2), along)
    expected = short_swa(states, states, states, window=3, axis=axis, rung="loops")
    assert np.allclose(np.moveaxis(z, -2, axis), expected, rtol=0, atol=1e-12)


def test_weights_of_tensors_are_those_of_arrays() -> None:
    torch = pytest.importorskip("torch")
    states = np.random.default_rng(2).standard_normal((4, 3, 8))
    tensor = torch.from_numpy(states)
    arrays = reading_weights(states, states, window=2, axis=0)
    assert np.allclose(reading_weights(tensor, tensor, window=2, axis=0).numpy(), arrays)
