"""The golden vectors that short_swa serves, outputs and gradients."""

import numpy as np
import pytest
import torch
from rungs import read_with

from t2lib import golden
from t2lib.golden import replay

NAMES = replay.names()


def test_the_vectors_are_there():
    assert len([name for name in NAMES if name.startswith("shortswa_")]) == 11
    assert len([name for name in NAMES if name.startswith("dual_")]) == 7


def close(got, want):
    return np.abs(got - want).max() <= 1e-10 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rung", ["loops", "arrays"])
def test_outputs(name, rung):
    arrays = golden.load(name)
    assert close(replay.replay(name, arrays, read_with(rung)), arrays["out"])


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients(name):
    arrays = golden.load(name)
    tensors = {key: torch.from_numpy(x) for key, x in arrays.items()}
    leaves = [
        key for key in tensors if key.startswith(("in__", "par__")) and tensors[key].is_floating_point()
    ]
    for key in leaves:
        tensors[key].requires_grad_()
    out = replay.replay(name, tensors, read_with("eager"))
    out.backward(tensors["cotangent"])
    assert close(out.detach().numpy(), arrays["out"])
    compared = [key for key in leaves if "grad__" + key.partition("__")[2] in arrays]
    assert compared == leaves
    for key in leaves:
        assert close(tensors[key].grad.numpy(), arrays["grad__" + key.partition("__")[2]]), key


def test_the_ring_holds_the_last_keys():
    """Slot t mod w holds the rotated key of token t, for the last w tokens."""
    arrays = golden.load("shortswa_stream_h2_w3_rope")
    x = arrays["in__x"]
    keys = replay.rotated((x @ arrays["par__W_K"]).reshape(1, 7, 2, 4))
    values = (x @ arrays["par__W_V"]).reshape(1, 7, 2, 4)
    slots = [6, 4, 5]
    assert close(keys[:, slots], arrays["ring_K_final"])
    assert close(values[:, slots], arrays["ring_V_final"])


def test_unknown_names_say_what_there_is():
    with pytest.raises(ValueError, match=r"name must be one of t2lib\.golden\.names\(\); got 'shortswa'\."):
        golden.load("shortswa")
    with pytest.raises(ValueError, match="name must be one of"):
        replay.replay("dual_delta_depth_L4_dv1", golden.load("dual_delta_depth_L4_dv1"), read_with("loops"))


def test_every_vector_has_a_sidecar_that_describes_it():
    for name in golden.names():
        assert golden.shapes(name) == {key: x.shape for key, x in golden.load(name).items()}
