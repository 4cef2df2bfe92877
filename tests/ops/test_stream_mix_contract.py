"""Bad input gets one sentence, the same on every rung."""

import numpy as np
import pytest
import torch
from stream_cases import files_expected, files_of

from t2lib.ops import _registry, sinkhorn, stream_mix

X, M, W, Y = np.ones((2, 3, 4, 6)), np.ones((4, 4)), np.ones(4), np.ones((2, 3, 6))
GOOD = {"streams": X, "mix": M, "write": W, "branch": Y, "read": W}

BAD = {
    "one axis": (
        {"streams": W},
        ValueError,
        "streams must have two last axes (n, d), each of at least 1; got shape (4,).",
    ),
    "no streams": (
        {"streams": X[:, :, :0]},
        ValueError,
        "streams must have two last axes (n, d), each of at least 1; got shape (2, 3, 0, 6).",
    ),
    "a list": ({"streams": [X]}, TypeError, "streams must be a NumPy array or a torch tensor; got a list."),
    "mix": (
        {"mix": np.ones((3, 4))},
        ValueError,
        "mix must have shape (4, 4) or (2, 3, 4, 4); got (3, 4).",
    ),
    "mix, never broadcast": (
        {"mix": np.ones((1, 3, 4, 4))},
        ValueError,
        "mix must have shape (4, 4) or (2, 3, 4, 4); got (1, 3, 4, 4).",
    ),
    "write": ({"write": W[:2]}, ValueError, "write must have shape (4,) or (2, 3, 4); got (2,)."),
    "read": ({"read": M}, ValueError, "read must have shape (4,) or (2, 3, 4); got (4, 4)."),
    "branch": ({"branch": X}, ValueError, "branch must have shape (2, 3, 6); got (2, 3, 4, 6)."),
    "no branch": (
        {"branch": None},
        ValueError,
        "write and branch go together; got write without branch.",
    ),
    "no write": ({"write": None}, ValueError, "write and branch go together; got branch without write."),
    "nothing": (
        {"mix": None, "write": None, "branch": None, "read": None},
        ValueError,
        "mix, write or read must be given; got none of them.",
    ),
    "dtypes": (
        {"mix": M.astype(np.float32)},
        TypeError,
        "mix must have the dtype of streams, float64; got float32.",
    ),
    "kinds": ({"read": torch.ones(4).double()}, TypeError,
              "read must be a NumPy array like streams; got a torch tensor."),
}  # fmt: skip

BAD_LOGITS = {
    "not square": (
        {"logits": X},
        ValueError,
        "logits must have two last axes (n, n), n at least 1; got shape (2, 3, 4, 6).",
    ),
    "iterations 0": ({"iterations": 0}, ValueError, "iterations must be an integer of at least 1; got 0."),
    "iterations 2.0": (
        {"iterations": 2.0},
        TypeError,
        "iterations must be an integer of at least 1; got 2.0.",
    ),
    "eps": ({"eps": -1.0}, ValueError, "eps must be 0 or a number above 0; got -1.0."),
    "integers": (
        {"logits": M.astype(int)},
        TypeError,
        "logits must have one dtype of float64, float32, float16, bfloat16; got int64.",
    ),
}


@pytest.mark.parametrize("rung", ["auto", *_registry.RUNGS])
@pytest.mark.parametrize("case", [*BAD, *BAD_LOGITS])
def test_bad_input(case, rung):
    changes, kind, sentence = (BAD | BAD_LOGITS)[case]
    function, good = (stream_mix, GOOD) if case in BAD else (sinkhorn, {"logits": M})
    with pytest.raises(kind) as raised:
        function(**good | changes, rung=rung)
    assert str(raised.value) == sentence
    assert type(raised.value) is kind


def test_what_comes_back():
    new, h = stream_mix(**GOOD)
    assert new.shape == X.shape
    assert h.shape == Y.shape
    assert stream_mix(X, read=W).shape == Y.shape
    assert stream_mix(X, mix=M).shape == X.shape
    tensors = {name: torch.from_numpy(x) for name, x in GOOD.items()}
    for rung in ("loops", "arrays", "eager"):
        assert all(isinstance(x, torch.Tensor) for x in stream_mix(**tensors, rung=rung))
        assert isinstance(sinkhorn(M, rung=rung), np.ndarray)


def test_inputs_are_left_alone():
    kept = {name: x.copy() for name, x in GOOD.items()}
    for rung in ("loops", "arrays", "eager"):
        stream_mix(**GOOD, rung=rung)
        sinkhorn(M, rung=rung)
    assert all(np.array_equal(GOOD[name], kept[name]) for name in GOOD)


def test_the_folder_holds_the_rungs_and_nothing_else():
    assert files_of("stream_mix") == files_expected("stream_mix")
