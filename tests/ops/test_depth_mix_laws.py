"""depth_mix keeps its laws on every rung, agrees with the reference implementations, and mutants do not."""

import numpy as np
import pytest

from t2lib.golden import replay_depth
from t2lib.ops import _claims_depth, depth_mix
from t2lib.ops._laws import error, random
from t2lib.ops._laws_depth import MIX

CPU_RUNGS = ("loops", "arrays", "eager")
FORMS = {
    "static": ((5,), None, None),
    "per channel": ((5, 7), None, None),
    "per token": (None, (2, 3, 5), None),
    "static and per token": ((5,), (2, 3, 5), None),
    "per channel and token": ((5, 7), (2, 3, 5), None),
    "static, several": ((4, 5), None, 4),
    "per channel, several": ((4, 5, 7), None, 4),
    "per token, several": (None, (2, 3, 4, 5), 4),
    "per channel and token, several": ((4, 5, 7), (2, 3, 4, 5), 4),
    "one of several": ((1, 5), (2, 3, 1, 5), 1),
}


def arguments(form, states_shape=(5, 2, 3, 7)):
    static, own, outputs = FORMS[form]
    weights = None if static is None else random(*static, seed=1)
    token_weights = None if own is None else random(*own, seed=2)
    return list(random(*states_shape)), weights, token_weights, outputs


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("name", MIX)
def test_laws(name, rung):
    assert MIX[name](replay_depth.Operators(rung).depth_mix) < 1e-10


@pytest.mark.parametrize("form", FORMS)
def test_every_rung_equals_the_loops(form):
    states, weights, token_weights, outputs = arguments(form)
    want = depth_mix(states, weights, token_weights, outputs=outputs, rung="loops")
    assert want.shape == ((2, 3, 7) if outputs is None else (outputs, 2, 3, 7))
    for rung in ("arrays", "eager"):
        assert error(depth_mix(states, weights, token_weights, outputs=outputs, rung=rung), want) < 1e-12


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("name", replay_depth.names("depth_mix"))
def test_golden_outputs_and_gradients(name, rung):
    assert _claims_depth._golden(rung, name) < 1e-10


def _first_left_out(states, weights=None, token_weights=None, **rest):
    weights = None if weights is None else np.where(np.arange(weights.shape[-1]) > 0, weights, 0)
    return depth_mix(states, weights, token_weights, **rest)


def _normalised(states, weights=None, token_weights=None, **rest):
    return depth_mix(states, None if weights is None else weights / weights.sum(), token_weights, **rest)


def _newest_first(states, *weights, **rest):
    return depth_mix(states[::-1], *weights, **rest)


def _token_weights_ignored(states, weights=None, token_weights=None, outputs=None):
    if weights is None:
        n = (len(states),) if outputs is None else (outputs, len(states))
        weights = np.ones(n)
    return depth_mix(states, weights, outputs=outputs)


def _channels_averaged(states, weights=None, token_weights=None, outputs=None):
    if weights is not None and weights.ndim > (1 if outputs is None else 2):
        weights = weights.mean(-1)
    return depth_mix(states, weights, token_weights, outputs=outputs)


def _outputs_swapped(states, *weights, outputs=None):
    z = depth_mix(states, *weights, outputs=outputs)
    return z if outputs is None else z[::-1]


def _product_hides_nan(states, *weights, **rest):
    return np.nan_to_num(depth_mix(states, *weights, **rest))


MUTANTS = [
    _first_left_out,
    _normalised,
    _newest_first,
    _token_weights_ignored,
    _channels_averaged,
    _outputs_swapped,
    _product_hides_nan,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_mutant_breaks_a_law(mutant):
    def distance(law):
        try:
            return law(mutant)
        except (ValueError, IndexError):
            return float("inf")

    assert max(distance(law) for law in MIX.values()) > 1e-3
