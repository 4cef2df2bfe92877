"""Bad input to depth_mix gets one sentence, the same on every rung."""

from pathlib import Path

import numpy as np
import pytest
import torch

import t2lib
from t2lib.ops import _registry, depth_mix

X = np.ones((2, 3, 8))
STATES = [X] * 4
W = np.ones(4)
GOOD = {"states": STATES, "weights": W}
T = torch.ones(2, 3, 8)
FLOATS = "float64, float32, float16, bfloat16"

BAD = {
    "a stack": (
        {"states": np.stack(STATES)},
        TypeError,
        "states must be a list or tuple of arrays (..., d), never stacked; got a NumPy array.",
    ),
    "no state": ({"states": []}, ValueError, "states must hold at least one array; got none."),
    "a number among them": (
        {"states": [X, X, 1.0, X]},
        TypeError,
        "states[2] must be a NumPy array like states[0]; got a float.",
    ),
    "a list first": (
        {"states": [[1.0], X, X, X]},
        TypeError,
        "states[0] must be a NumPy array or a torch tensor; got a list.",
    ),
    "integers": (
        {"states": [X.astype(int)] * 4},
        TypeError,
        f"states[0] must have one dtype of {FLOATS}; got int64.",
    ),
    "mixed kinds": (
        {"states": [X, X, X, T.double()]},
        TypeError,
        "states[3] must be a NumPy array like states[0]; got a torch tensor.",
    ),
    "mixed dtypes": (
        {"states": [X, X.astype(np.float32), X, X]},
        TypeError,
        "states[1] must have the dtype of states[0], float64; got float32.",
    ),
    "mixed devices": (
        {"states": [T, T, T.to("meta"), T]},
        ValueError,
        "states[2] must be on the device of states[0], cpu; got meta.",
    ),
    "mixed shapes, never broadcast": (
        {"states": [X, X, X, X[:1]]},
        ValueError,
        "states[3] must have shape (2, 3, 8); got (1, 3, 8).",
    ),
    "no width": (
        {"states": [X[..., :0]] * 4},
        ValueError,
        "states[0] must have a width, its last axis, of at least 1; got shape (2, 3, 0).",
    ),
    "a number for a state": (
        {"states": [np.ones(())] * 4},
        ValueError,
        "states[0] must have a width, its last axis, of at least 1; got shape ().",
    ),
    "no weights": (
        {"weights": None},
        TypeError,
        "weights or token_weights must be given; got None for both.",
    ),
    "too few weights": ({"weights": W[:3]}, ValueError, "weights must have shape (4,) or (4, 8); got (3,)."),
    "weights of another kind": (
        {"weights": torch.ones(4)},
        TypeError,
        "weights must be a NumPy array like states[0]; got a torch tensor.",
    ),
    "weights of another dtype": (
        {"weights": W.astype(np.float32)},
        TypeError,
        "weights must have the dtype of states[0], float64; got float32.",
    ),
    "several weights for one output": (
        {"weights": np.ones((2, 4))},
        ValueError,
        "weights must have shape (4,) or (4, 8); got (2, 4).",
    ),
    "one weight row for several outputs": (
        {"outputs": 2},
        ValueError,
        "weights must have shape (2, 4) or (2, 4, 8); got (4,).",
    ),
    "token weights as weights": (
        {"weights": np.ones((2, 3, 4))},
        ValueError,
        "weights must have shape (4,) or (4, 8); got (2, 3, 4).",
    ),
    "token weights of another shape": (
        {"token_weights": np.ones((1, 3, 4))},
        ValueError,
        "token_weights must have shape (2, 3, 4); got (1, 3, 4).",
    ),
    "outputs 0": ({"outputs": 0}, ValueError, "outputs must be an integer of at least 1; got 0."),
    "outputs True": ({"outputs": True}, TypeError, "outputs must be an integer of at least 1; got True."),
}


@pytest.mark.parametrize("rung", ["auto", *_registry.RUNGS])
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, rung):
    changes, kind, sentence = BAD[case]
    with pytest.raises(kind) as raised:
        depth_mix(**(GOOD | changes), rung=rung)
    assert str(raised.value) == sentence
    assert type(raised.value) is kind


def test_weights_of_float64_beside_half_precision_are_refused():
    with pytest.raises(
        TypeError, match=r"^weights must have dtype bfloat16 like states\[0\], or float32; got float64"
    ):
        depth_mix([T.bfloat16()] * 2, torch.ones(2, dtype=torch.float64))


def test_a_rung_that_does_not_exist():
    with pytest.raises(ValueError, match=r"rung must be one of 'auto', 'loops', .*; got 'fast'\."):
        depth_mix(**GOOD, rung="fast")


@pytest.mark.parametrize("rung", _registry.NUMPY_RUNGS)
def test_numpy_rungs_refuse_what_needs_a_gradient(rung):
    with pytest.raises(
        ValueError, match=rf"^rung='{rung}' has no gradients; got states\[1\] that requires grad"
    ):
        depth_mix([T, T.clone().requires_grad_()], torch.ones(2), rung=rung)


def test_kinds_come_back_as_they_went_in():
    assert isinstance(depth_mix(STATES, W, rung="eager"), np.ndarray)
    assert isinstance(depth_mix([T] * 4, torch.ones(4), rung="arrays"), torch.Tensor)
    assert isinstance(depth_mix(tuple(STATES), W), np.ndarray)


def test_inputs_are_left_alone():
    states = [X.copy() for _ in range(4)]
    for rung in ("loops", "arrays", "eager"):
        depth_mix(states, W, np.ones((2, 3, 4)), rung=rung)
    assert all(np.array_equal(x, X) for x in states)


@pytest.mark.parametrize("operator", ["depth_mix", "depth_attention"])
def test_the_folder_and_the_ladder(operator):
    folder = Path(t2lib.__file__).parent / "ops" / operator
    names = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    assert names == {"__init__.py", "cost.py", *(f"{rung}.py" for rung in _registry.RUNGS)}
    assert [row.rung for row in t2lib.ladder(operator)] == list(_registry.RUNGS)
