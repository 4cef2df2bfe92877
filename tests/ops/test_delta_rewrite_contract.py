"""Bad input gets one sentence, the same on every rung."""

import numpy as np
import pytest
import torch
from stream_cases import files_expected, files_of

from t2lib.ops import Tape, _registry, delta_rewrite, rewind

X, K, V, B = np.ones((2, 3, 6, 4)), np.ones((2, 3, 6)), np.ones((2, 3, 4)), np.ones((2, 3))
GOOD = {"X": X, "k": K, "v": V, "beta": B}

BAD = {
    "no columns": (
        {"X": X[0, 0, 0]},
        ValueError,
        "X must have two last axes (d, d_v), each of at least 1; got shape (4,).",
    ),
    "integers": (
        {"X": X.astype(int)},
        TypeError,
        "X must have one dtype of float64, float32, float16, bfloat16; got int64.",
    ),
    "a list": ({"X": [[1.0]]}, TypeError, "X must be a NumPy array or a torch tensor; got a list."),
    "kinds": (
        {"k": torch.ones(2, 3, 6).double()},
        TypeError,
        "k must be a NumPy array like X; got a torch tensor.",
    ),
    "dtypes": (
        {"v": V.astype(np.float32)},
        TypeError,
        "v must have the dtype of X, float64; got float32.",
    ),
    "k": ({"k": K[:, :, :5]}, ValueError, "k must have shape (2, 3, 6); got (2, 3, 5)."),
    "v": ({"v": V[..., :1]}, ValueError, "v must have shape (2, 3, 4); got (2, 3, 1)."),
    "beta": ({"beta": B[..., None]}, ValueError, "beta must have shape (2, 3); got (2, 3, 1)."),
    "batch, never broadcast": ({"k": K[:1]}, ValueError, "k must have shape (2, 3, 6); got (1, 3, 6)."),
    "guard": (
        {"guard": "soft"},
        ValueError,
        "guard must be one of 'eager', 'kernel', 'none'; got 'soft'.",
    ),
    "eps": ({"eps": 0}, ValueError, "eps must be a number above 0; got 0.0."),
    "eps a word": ({"eps": "1"}, TypeError, "eps must be a finite real number; got '1'."),
    "erase": ({"erase": 1}, TypeError, "erase must be True or False; got 1."),
    "return_parts": ({"return_parts": None}, TypeError, "return_parts must be True or False; got None."),
    "tape": ({"tape": []}, TypeError, "tape must be a Tape or None; got a list."),
}


@pytest.mark.parametrize("rung", ["auto", *_registry.RUNGS])
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, rung):
    changes, kind, sentence = BAD[case]
    with pytest.raises(kind) as raised:
        delta_rewrite(**GOOD | changes, rung=rung)
    assert str(raised.value) == sentence
    assert type(raised.value) is kind


def test_half_precision_takes_float32_coefficients_and_no_others():
    X16, K16 = X.astype(np.float16), K.astype(np.float16)
    with pytest.raises(TypeError, match=r"^v must have dtype float16 like X, or float32; got float64\.$"):
        delta_rewrite(X16, K16, V, B)
    assert delta_rewrite(X16, K16, V.astype(np.float32), B.astype(np.float16)).dtype == np.float16


def test_bad_input_of_rewind():
    with pytest.raises(ValueError, match=r"^correction must have shape \(2, 3, 4\); got \(2, 3\)\.$"):
        rewind(X, K, B)
    with pytest.raises(ValueError, match=r"^k must have shape \(2, 3, 6\); got \(2, 3, 4\)\.$"):
        rewind(X, V, V)


def test_kinds_and_inputs_are_left_alone():
    kept = X.copy()
    for rung in ("loops", "arrays", "eager"):
        assert isinstance(delta_rewrite(X, K, V, B, rung=rung, tape=Tape()), np.ndarray)
        after = delta_rewrite(*(torch.from_numpy(x) for x in (X, K, V, B)), rung=rung)
        assert isinstance(after, torch.Tensor)
    assert np.array_equal(X, kept)


def test_the_folder_holds_the_rungs_and_nothing_else():
    assert files_of("delta_rewrite") == files_expected("delta_rewrite")


@pytest.mark.parametrize("shape", [(6, 4), (0, 6, 4), (3, 0, 6, 4), (2, 1, 2, 1, 1)])
def test_any_leading_axes_even_empty_ones(shape):
    given = [np.ones(shape), np.ones(shape[:-1]), np.ones((*shape[:-2], shape[-1])), np.ones(shape[:-2])]
    want = delta_rewrite(*given, rung="loops")
    for rung in ("arrays", "eager"):
        assert np.allclose(delta_rewrite(*given, rung=rung), want, rtol=0, atol=1e-14)
