"""Bad input to depth_attention, its partial form and merge gets one sentence, the same on every rung."""

import numpy as np
import pytest
import torch

from t2lib.ops import _registry, depth_attention, depth_attention_partial, merge

X = np.ones((2, 3, 8))
W = np.ones(8)
T = torch.ones(2, 3, 8)
PART = (X, np.ones((2, 3)))

READ = {"states": [X] * 4, "pseudo_query": W}
BAD_READS = {
    "a stack": (
        {"states": np.stack([X, X])},
        TypeError,
        "states must be a list or tuple of arrays (..., d), never stacked; got a NumPy array.",
    ),
    "mixed shapes": (
        {"states": [X, X[:, :2]]},
        ValueError,
        "states[1] must have shape (2, 3, 8); got (2, 2, 8).",
    ),
    "no query": (
        {"pseudo_query": None},
        TypeError,
        "pseudo_query or query must be given; got None for both.",
    ),
    "query of another width": (
        {"pseudo_query": W[:4]},
        ValueError,
        "pseudo_query must have shape (8,); got (4,).",
    ),
    "several queries": (
        {"pseudo_query": np.ones((2, 8))},
        ValueError,
        "pseudo_query must have shape (8,); got (2, 8).",
    ),
    "gain of another shape": ({"gain": np.ones(1)}, ValueError, "gain must have shape (8,); got (1,)."),
    "gain of another kind": (
        {"gain": torch.ones(8)},
        TypeError,
        "gain must be a NumPy array like states[0]; got a torch tensor.",
    ),
    "per-token query of another shape": (
        {"query": X[:1]},
        ValueError,
        "query must have shape (2, 3, 8); got (1, 3, 8).",
    ),
    "eps negative": ({"eps": -1e-6}, ValueError, "eps must be a number of at least 0; got -1e-06."),
    "eps a word": ({"eps": "1"}, TypeError, "eps must be a finite real number; got '1'."),
    "eps NaN": ({"eps": float("nan")}, ValueError, "eps must be a finite real number; got nan."),
    "norm_eps negative": ({"norm_eps": -1}, ValueError, "norm_eps must be a number of at least 0; got -1."),
    "norm gain of another shape": (
        {"norm_gain": np.ones(1)},
        ValueError,
        "norm_gain must have shape (8,); got (1,).",
    ),
    "a part that is no pair": (
        {"parts": [X]},
        TypeError,
        "parts must be a list or tuple of pairs (read, log-sum-exp); got a list.",
    ),
    "one pair in place of a list": (
        {"parts": PART},
        TypeError,
        "parts must be a list or tuple of pairs (read, log-sum-exp); got a tuple.",
    ),
    "a part of other tokens": (
        {"parts": [(X[:1], PART[1][:1])]},
        ValueError,
        "parts[0][0] must have shape (2, 3, 8); got (1, 3, 8).",
    ),
    "a part of another kind": (
        {"parts": [(T.double(), torch.ones(2, 3).double())]},
        TypeError,
        "parts[0][0] must be a NumPy array like states[0]; got a torch tensor.",
    ),
    "a part without its log-sum-exp": (
        {"parts": [(X, X)]},
        ValueError,
        "parts[0][1] must have shape (2, 3); got (2, 3, 8).",
    ),
    "return_lse 1": ({"return_lse": 1}, TypeError, "return_lse must be True or False; got 1."),
}
PARTIAL = {"states": [X] * 4, "pseudo_queries": np.ones((3, 8))}
BAD_PARTIALS = {
    "one query": (
        {"pseudo_queries": W},
        ValueError,
        "pseudo_queries must have shape (Q, 8) with Q of at least 1; got (8,).",
    ),
    "no query": (
        {"pseudo_queries": np.ones((0, 8))},
        ValueError,
        "pseudo_queries must have shape (Q, 8) with Q of at least 1; got (0, 8).",
    ),
    "gains for another number of queries": (
        {"gains": np.ones((1, 8))},
        ValueError,
        "gains must have shape (3, 8); got (1, 8).",
    ),
}
BAD_PARTS = {
    "an array": (
        X,
        TypeError,
        "parts must be a list or tuple of pairs (read, log-sum-exp); got a NumPy array.",
    ),
    "one pair": (PART, TypeError, "parts must be a list or tuple of pairs (read, log-sum-exp); got a tuple."),
    "none": ([], ValueError, "parts must hold at least one pair; got none."),
    "reads of two shapes": (
        [PART, (X[:1], np.ones((1, 3)))],
        ValueError,
        "parts[1][0] must have shape (2, 3, 8); got (1, 3, 8).",
    ),
    "log-sum-exp of another shape": (
        [PART, (X, np.ones((2, 3, 1)))],
        ValueError,
        "parts[1][1] must have shape (2, 3); got (2, 3, 1).",
    ),
    "log-sum-exp of another dtype": (
        [(X, np.ones((2, 3), np.float32))],
        TypeError,
        "parts[0][1] must have dtype float64; got float32.",
    ),
    "log-sum-exp in half precision": (
        [(T.half(), torch.ones(2, 3).half())],
        TypeError,
        "parts[0][1] must have dtype float32; got float16.",
    ),
    "mixed kinds": (
        [PART, (T.double(), torch.ones(2, 3).double())],
        TypeError,
        "parts[1][0] must be a NumPy array like parts[0][0]; got a torch tensor.",
    ),
}
RUNGS = ["auto", *_registry.RUNGS]


def refuses(call, kind, sentence):
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == sentence
    assert type(raised.value) is kind


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("case", BAD_READS)
def test_bad_reads(case, rung):
    changes, kind, sentence = BAD_READS[case]
    refuses(lambda: depth_attention(**(READ | changes), rung=rung), kind, sentence)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("case", BAD_PARTIALS)
def test_bad_partial_reads(case, rung):
    changes, kind, sentence = BAD_PARTIALS[case]
    refuses(lambda: depth_attention_partial(**(PARTIAL | changes), rung=rung), kind, sentence)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("case", BAD_PARTS)
def test_bad_parts(case, rung):
    parts, kind, sentence = BAD_PARTS[case]
    refuses(lambda: merge(parts, rung=rung), kind, sentence)


@pytest.mark.parametrize("rung", ["loops", "arrays", "eager"])
def test_kinds_and_dtypes_come_back_as_they_went_in(rung):
    states = [T.bfloat16()] * 3
    z, lse = depth_attention(states, torch.ones(8), return_lse=True, rung=rung)
    assert (z.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    z, lse = merge([(z, lse)] * 2, return_lse=True, rung=rung)
    assert (z.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    options = {"parts": [(z, lse)], "norm_gain": torch.ones(8)}
    found = depth_attention(states, torch.ones(8), return_lse=True, rung=rung, **options)
    assert [x.dtype for x in found] == [torch.bfloat16, torch.float32, torch.bfloat16]
    z, normed = depth_attention(states, torch.ones(8), rung=rung, **options)
    assert torch.equal(z, found[0])
    assert torch.equal(normed, found[2])
    one, number = depth_attention([X[0, 0]] * 2, W, return_lse=True, rung=rung)
    assert isinstance(one, np.ndarray)
    assert isinstance(number, np.ndarray)
    assert number.shape == ()


def test_inputs_are_left_alone():
    states, w, gain = [X.copy() for _ in range(3)], np.ones(8), 2 * np.ones(8)
    for rung in ("loops", "arrays", "eager"):
        depth_attention(states, w, gain=gain, query=X, rung=rung)
    assert all(np.array_equal(x, X) for x in states)
    assert np.array_equal(w, np.ones(8))
