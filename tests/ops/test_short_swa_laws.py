"""The laws of short_swa on every rung, and wrong implementations, which must break them."""

import itertools

import numpy as np
import pytest
from rungs import CPU_RUNGS, read_with

from t2lib.ops import short_swa
from t2lib.ops._laws import LAWS, error, random

TOLERANCE = 1e-12


def run(law, rung):
    assert LAWS[law](read_with(rung)) <= TOLERANCE


@pytest.mark.equation("eq-short-swa")
@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_reads_by_the_definition(rung):
    run("definition", rung)


@pytest.mark.equation("eq-window-strict")
@pytest.mark.equation("eq-window-chunk")
@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_the_window_holds_whom_it_says(rung):
    run("who sees whom", rung)
    run("strict lies between two chunks", rung)


@pytest.mark.equation("eq-depth-read")
@pytest.mark.equation("eq-duality")
@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_depth_is_tokens_with_the_axes_swapped(rung):
    run("depth is tokens with the axes swapped", rung)


OTHERS = sorted(
    set(LAWS)
    - {
        "definition",
        "who sees whom",
        "strict lies between two chunks",
        "depth is tokens with the axes swapped",
    }
)


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("law", OTHERS)
def test_law(law, rung):
    run(law, rung)


# Combinations of all options, drawn once and for all.
DRAWS = list(itertools.product((1, 3, 40), ("strict", "chunk"), (None, 5), (False, True), (False, True)))


@pytest.mark.parametrize("rung", ["arrays", "eager"])
@pytest.mark.parametrize(("window", "window_type", "start", "labels", "heads"), DRAWS)
def test_equals_loops_under_all_options(rung, window, window_type, start, labels, heads):
    n_k, generator = 70, np.random.default_rng(window)
    q, k, v = random(2, 4, n_k, 5), random(2, 2 if heads else 4, n_k, 5), random(2, 2 if heads else 4, n_k, 3)
    arguments = {"window": window, "window_type": window_type, "axis": 2, "query_start": start}
    arguments["head_axis"] = 1 if heads else None
    if labels:
        # Shared along the heads in one, along the batch in the other.
        arguments["documents"] = np.sort(generator.integers(0, 5, (2, 1, n_k)), -1)
        arguments["valid"] = generator.random((1, 4, n_k)) > 0.3
    q = q if start is None else q[:, :, start:]
    want = short_swa(q, k, v, rung="loops", **arguments)
    assert error(short_swa(q, k, v, rung=rung, **arguments), want) <= TOLERANCE


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("start", [None, 60])
@pytest.mark.parametrize(("window", "lookback"), [(2**63, 1), (2**63, 0), (6, 2**63), (2**63, 10**400)])
@pytest.mark.parametrize("window_type", ["strict", "chunk"])
def test_a_window_of_any_size(window_type, window, lookback, start, rung):
    q, k, v = (random(70, 3, seed=seed) for seed in (1, 2, 3))
    use = {"window_type": window_type, "axis": 0, "query_start": start}
    z = short_swa(q[start:], k, v, **use, window=window, lookback=lookback, rung=rung)
    # As a window that just reaches the first key, in one chunk or in as many as there are.
    whole = short_swa(
        q[start:], k, v, **use, window=min(window, 70), lookback=min(lookback, 12), rung="loops"
    )
    assert error(z, whole) <= TOLERANCE


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_rows_that_see_nothing_are_zero(rung):
    q = random(6, 4)
    valid = np.array([False, True, True, False, False, True])
    z = short_swa(q, q, q, window=2, axis=0, valid=valid, rung=rung)
    assert not z[~valid].any()
    assert z[valid].any(-1).all()


# Wrong on purpose. Each is what someone, somewhere, has shipped.
def one_too_many(*qkv, window, **others):
    return short_swa(*qkv, window=window + 1, rung="loops", **others)


def one_too_few(*qkv, window, **others):
    return short_swa(*qkv, window=max(1, window - 1), rung="loops", **others)


def no_scale(*qkv, scale=None, **others):
    return short_swa(*qkv, scale=1.0 if scale is None else scale, rung="loops", **others)


def self_excluded(q, k, v, *, axis, **others):
    k, v = (np.roll(x, 1, axis) for x in (k, v))
    return short_swa(q, k, v, axis=axis, rung="loops", **others)


def not_causal(q, k, v, *, axis, **others):
    flipped = short_swa(*(np.flip(x, axis) for x in (q, k, v)), axis=axis, rung="loops", **others)
    return np.flip(flipped, axis)


def wrong_axis(q, k, v, *, axis, **others):
    other = (axis + 1) % (q.ndim - 1)
    return short_swa(q, k, v, axis=other, rung="loops", **others)


def labels_ignored(*qkv, documents=None, valid=None, **others):
    return short_swa(*qkv, rung="loops", **others)


def zero_keys_before_the_first(q, k, v, *, axis, window, query_start=None, **others):
    """Padding with zero keys instead of having none: each adds exp(0) to the sum."""
    q, k, v = (np.concatenate([np.zeros_like(x), x], axis) for x in (q, k, v))
    z = short_swa(q, k, v, axis=axis, window=window, rung="loops", **others)
    return np.split(z, 2, axis)[1]


def interleaved_heads(q, k, v, *, head_axis=None, **others):
    """Query head h on key head h mod H_kv, where neighbours should share."""
    if head_axis is not None:
        copies = [1] * k.ndim
        copies[head_axis] = q.shape[head_axis] // k.shape[head_axis]
        k, v = np.tile(k, copies), np.tile(v, copies)
    return short_swa(q, k, v, rung="loops", **others)


BROKEN = {
    one_too_many: {"definition", "who sees whom", "window one returns the values"},
    one_too_few: {"definition", "who sees whom"},
    no_scale: {"definition"},
    self_excluded: {"definition", "who sees whom", "window one returns the values"},
    not_causal: {"definition", "who sees whom", "window of the whole length is causal attention"},
    wrong_axis: {"depth is tokens with the axes swapped"},
    labels_ignored: {"packed documents read as if alone", "padding reads as if absent"},
    zero_keys_before_the_first: {"definition", "window of the whole length is causal attention"},
    interleaved_heads: {"shared heads read as repeated heads"},
}


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.__name__)
def test_a_wrong_implementation_breaks_the_laws(mutant):
    for law in BROKEN[mutant]:
        try:
            broken = LAWS[law](mutant)
        except (ValueError, IndexError):
            continue
        assert broken > 1e-3, law
