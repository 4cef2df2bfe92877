"""Bad input gets one sentence, the same on every rung."""

import numpy as np
import pytest
import torch
from stream_cases import files_expected, files_of

from t2lib.ops import _registry, short_conv

X, W, B = np.ones((2, 6, 3)), np.ones((3, 4)), np.ones(3)
GOOD = {"x": X, "weight": W, "bias": B, "axis": 1}
LABELS = np.ones((2, 6), int)

BAD = {
    "one axis": (
        {"x": B},
        ValueError,
        "x must have two or more axes and a width, its last axis, of at least 1; got shape (3,).",
    ),
    "empty": (
        {"x": X[:, :0]},
        ValueError,
        "the ordered axis, axis=1, must not be empty; got x (2, 0, 3).",
    ),
    "integers": (
        {"x": X.astype(int)},
        TypeError,
        "x must have one dtype of float64, float32, float16, bfloat16; got int64.",
    ),
    "axis": (
        {"axis": 2},
        ValueError,
        "axis must name one of the 3 axes of x other than the last, the width; got 2.",
    ),
    "axis a word": ({"axis": "tokens"}, TypeError, "axis must be an integer; got 'tokens'."),
    "one tap": (
        {"weight": W[:, :1]},
        ValueError,
        "weight must have shape (3, K) with K from 2 to 8; got (3, 1).",
    ),
    "nine taps": (
        {"weight": np.ones((3, 9))},
        ValueError,
        "weight must have shape (3, K) with K from 2 to 8; got (3, 9).",
    ),
    "weight": ({"weight": W.T}, ValueError, "weight must have shape (3, K) with K from 2 to 8; got (4, 3)."),
    "weight of a Conv1d": (
        {"weight": W[:, None]},
        ValueError,
        "weight must have shape (3, K) with K from 2 to 8; got (3, 1, 4).",
    ),
    "dtypes": (
        {"weight": W.astype(np.float32)},
        TypeError,
        "weight must have the dtype of x, float64; got float32.",
    ),
    "bias": ({"bias": W}, ValueError, "bias must have shape (3,); got (3, 4)."),
    "activation": (
        {"activation": "gelu"},
        ValueError,
        "activation must be None or 'silu'; got 'gelu'.",
    ),
    "state": (
        {"initial_state": X},
        ValueError,
        "initial_state must have shape (2, 3, 3); got (2, 6, 3).",
    ),
    "state a tensor": (
        {"initial_state": torch.ones(2, 3, 3).double()},
        TypeError,
        "initial_state must be a NumPy array like x; got a torch tensor.",
    ),
    "documents of floats": (
        {"documents": LABELS * 1.0},
        TypeError,
        "documents must have an integer dtype; got float64.",
    ),
    "documents": (
        {"documents": LABELS[:, :1]},
        ValueError,
        "documents must have shape (2, 6), or 1 in place of any of these but the length, 6; got (2, 1).",
    ),
    "return_state": ({"return_state": 1}, TypeError, "return_state must be True or False; got 1."),
}


@pytest.mark.parametrize("rung", ["auto", *_registry.RUNGS])
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, rung):
    changes, kind, sentence = BAD[case]
    with pytest.raises(kind) as raised:
        short_conv(**GOOD | changes, rung=rung)
    assert str(raised.value) == sentence
    assert type(raised.value) is kind


def test_kinds_and_inputs_are_left_alone():
    kept = X.copy()
    for rung in ("loops", "arrays", "eager"):
        y, state = short_conv(**GOOD, rung=rung, return_state=True)
        assert isinstance(y, np.ndarray)
        assert isinstance(state, np.ndarray)
        tensors = {name: torch.from_numpy(GOOD[name]) for name in ("x", "weight", "bias")}
        assert isinstance(short_conv(**tensors, axis=1, rung=rung), torch.Tensor)
    assert np.array_equal(X, kept)


def test_the_folder_holds_the_rungs_and_nothing_else():
    assert files_of("short_conv") == files_expected("short_conv")
