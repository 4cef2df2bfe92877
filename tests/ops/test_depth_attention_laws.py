"""depth_attention, its partial form and merge keep their laws on every rung, and mutants do not."""

import numpy as np
import pytest

from t2lib.golden import replay_depth
from t2lib.ops import _claims_depth, depth_attention, merge
from t2lib.ops._laws import error, random
from t2lib.ops._laws_depth import READ

CPU_RUNGS = ("loops", "arrays", "eager")


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("name", READ)
def test_laws(name, rung):
    assert READ[name](replay_depth.Operators(rung)) < 1e-10


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("name", replay_depth.names("depth_attention"))
def test_golden_outputs_and_gradients(name, rung):
    assert _claims_depth._golden(rung, name) < 1e-10


@pytest.mark.parametrize("rung", ["arrays", "eager"])
@pytest.mark.parametrize("shape", [(5,), (1, 24), (3, 2, 64), (2, 2, 3, 17), (0, 16)])
def test_every_rung_equals_the_loops(shape, rung):
    arrays = _claims_depth.inputs("depth_attention", *shape)
    got = _claims_depth.call("depth_attention", arrays, rung)
    want = _claims_depth.call("depth_attention", arrays, "loops")
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-12


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_weights_recorded_by_the_reference_are_the_softmax(rung):
    """One-hot values read back the weights: a state of its own channel for every source."""
    n, w = 4, random(4, seed=1)
    z = depth_attention(list(np.eye(n) * 3), w, eps=0.0, rung=rung)
    # RMS(3 e_j) = 2 e_j for d = 4, so the score of source j is 2 w_j, and channel j of the read 3 a_j.
    weights = np.exp(2 * w) / np.exp(2 * w).sum()
    assert np.allclose(z, 3 * weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_parts_that_weigh_nothing(rung):
    """The logarithm of their sum is that of 0; there is no read."""
    lses = np.array([-np.inf, 0.0]), np.array([-np.inf, -np.inf])
    z, lse = merge([(np.ones((2, 3)), part) for part in lses], return_lse=True, rung=rung)
    assert np.array_equal(lse, [-np.inf, 0.0])
    assert np.array_equal(z, [[np.nan] * 3, [1.0] * 3], equal_nan=True)


class _Mutant(replay_depth.Operators):
    def __init__(self):
        super().__init__("arrays")
        plain = self.depth_attention
        self.depth_attention = lambda *states, **rest: self.changed(plain, *states, **rest)


class _Scaled(_Mutant):
    def changed(self, plain, states, w, *, query=None, **rest):
        scale = states[0].shape[-1] ** -0.5
        w = None if w is None else w * scale
        return plain(states, w, query=None if query is None else query * scale, **rest)


class _RawKeys(_Mutant):
    def changed(self, plain, states, w, *, eps=1e-6, **rest):
        return plain(states, w, eps=eps + 1.0, **rest)


class _GainIgnored(_Mutant):
    def changed(self, plain, states, w, *, gain=None, **rest):
        return plain(states, w, **rest)


class _QueryIgnored(_Mutant):
    def changed(self, plain, states, w, *, query=None, **rest):
        return plain(states, np.zeros(states[0].shape[-1]) if w is None else w, **rest)


class _NewestLeftOut(_Mutant):
    def changed(self, plain, states, w, **rest):
        return plain(states[:-1] if len(states) > 1 else states, w, **rest)


class _NormalisedValues(_Mutant):
    def changed(self, plain, states, w, **rest):
        return plain([x / np.sqrt((x * x).mean(-1, keepdims=True)) for x in states], w, **rest)


class _MergeByMean(_Mutant):
    def __init__(self):
        super().__init__()
        self.merge = lambda parts, return_lse=False: tuple(sum(x) / len(x) for x in zip(*parts, strict=True))

    def changed(self, plain, *states, **rest):
        return plain(*states, **rest)


class _PartsIgnored(_Mutant):
    def changed(self, plain, states, w, *, parts=(), **rest):
        return plain(states, w, **rest)


class _NormWithoutEps(_Mutant):
    def changed(self, plain, states, w, *, norm_eps=0.0, **rest):
        return plain(states, w, norm_eps=0.0, **rest)


MUTANTS = [
    _Scaled, _RawKeys, _GainIgnored, _QueryIgnored, _NewestLeftOut, _NormalisedValues, _MergeByMean,
    _PartsIgnored, _NormWithoutEps,
]  # fmt: skip


@pytest.mark.parametrize(
    "mutant",
    MUTANTS,
    ids=lambda mutant: mutant.__name__.strip("_"),
)
def test_a_mutant_breaks_a_law(mutant):
    assert max(law(mutant()) for law in READ.values()) > 1e-3
