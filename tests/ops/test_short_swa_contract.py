"""Bad input gets one sentence, the same on every rung; the ladder says what runs here and why not."""

from pathlib import Path

import numpy as np
import pytest
import torch

import t2lib
from t2lib.ops import RungUnavailable, _registry, short_swa

X = np.ones((2, 6, 4, 8))
GOOD = {"q": X, "k": X, "v": X, "window": 3, "axis": 1}
LABELS = np.ones((2, 6, 1), int)
T = torch.ones(2, 6, 4, 8)


def good(**changes):
    return GOOD | changes


BAD = {
    "window 0": (good(window=0), ValueError, "window must be an integer of at least 1; got 0."),
    "window 2.5": (good(window=2.5), TypeError, "window must be an integer of at least 1; got 2.5."),
    "window True": (good(window=True), TypeError, "window must be an integer of at least 1; got True."),
    "window None": (good(window=None), TypeError, "window must be an integer of at least 1; got None."),
    "axis too large": (
        good(axis=4),
        ValueError,
        "axis must name one of the 4 axes of q other than the last, the width; got 4.",
    ),
    "axis the width": (
        good(axis=-1),
        ValueError,
        "axis must name one of the 4 axes of q other than the last, the width; got -1.",
    ),
    "axis a word": (good(axis="tokens"), TypeError, "axis must be an integer; got 'tokens'."),
    "integers": (
        good(q=X.astype(int), k=X.astype(int), v=X.astype(int)),
        TypeError,
        "q, k, v must share one dtype of float64, float32, float16, bfloat16; got int64, int64, int64.",
    ),
    "complex": (
        good(q=X + 0j, k=X + 0j, v=X + 0j),
        TypeError,
        "q, k, v must share one dtype of float64, float32, float16, bfloat16; "
        "got complex128, complex128, complex128.",
    ),
    "mixed dtypes": (
        good(k=X.astype(np.float32)),
        TypeError,
        "q, k, v must share one dtype of float64, float32, float16, bfloat16; got float64, float32, float64.",
    ),
    "mixed kinds": (
        good(v=T.double()),
        TypeError,
        "q, k, v must be all NumPy arrays or all torch tensors; "
        "got a NumPy array, a NumPy array, a torch tensor.",
    ),
    "a list": (
        good(k=[[1.0]]),
        TypeError,
        "q, k, v must be all NumPy arrays or all torch tensors; got a NumPy array, a list, a NumPy array.",
    ),
    "mixed devices": (
        good(q=T, k=T.to("meta"), v=T),
        ValueError,
        "q, k, v must be on one device; got cpu, meta, cpu.",
    ),
    "too few axes": (
        good(q=X[0, 0, 0], k=X[0, 0, 0], v=X[0, 0, 0]),
        ValueError,
        "q, k, v must have equally many axes, two or more; got 1, 1, 1.",
    ),
    "lengths": (
        good(q=X[:, :5]),
        ValueError,
        "q and k must be equally long on axis, unless query_start is given; got 5 and 6.",
    ),
    "lengths of k and v": (
        good(v=X[:, :5]),
        ValueError,
        "k and v must match on every axis but the width; got q (2, 6, 4, 8), k (2, 6, 4, 8), v (2, 5, 4, 8).",
    ),
    "batch, never broadcast": (
        good(q=X[:1]),
        ValueError,
        "q and k must match on every axis but axis=1; got q (1, 6, 4, 8), k (2, 6, 4, 8), v (2, 6, 4, 8).",
    ),
    "widths": (
        good(q=X[..., :4]),
        ValueError,
        "q and k must have the same width, their last axis; "
        "got q (2, 6, 4, 4), k (2, 6, 4, 8), v (2, 6, 4, 8).",
    ),
    "no width": (
        good(q=X[..., :0], k=X[..., :0]),
        ValueError,
        "q, k and v must have a width, their last axis, of at least 1; "
        "got q (2, 6, 4, 0), k (2, 6, 4, 0), v (2, 6, 4, 8).",
    ),
    "empty axis": (
        good(q=X[:, :0], k=X[:, :0], v=X[:, :0]),
        ValueError,
        "the ordered axis, axis=1, must not be empty; got q (2, 0, 4, 8), k (2, 0, 4, 8), v (2, 0, 4, 8).",
    ),
    "heads": (
        good(k=X[:, :, :3], v=X[:, :, :3], head_axis=2),
        ValueError,
        "q must have a whole multiple of the heads of k (head_axis=2); got 4 and 3.",
    ),
    "head_axis the ordered one": (
        good(head_axis=1),
        ValueError,
        "head_axis must differ from axis; got 1 for both.",
    ),
    "query_start": (
        good(q=X[:, :2], query_start=3),
        ValueError,
        "query_start plus the length of q must be the length of k; got 3 + 2 and 6.",
    ),
    "query_start negative": (
        good(query_start=-1),
        ValueError,
        "query_start must be an integer of at least 0; got -1.",
    ),
    "window_type": (
        good(window_type="causal"),
        ValueError,
        "window_type must be one of 'strict', 'chunk'; got 'causal'.",
    ),
    "lookback": (
        good(window_type="chunk", lookback=-1),
        ValueError,
        "lookback must be an integer of at least 0; got -1.",
    ),
    "scale": (good(scale=float("nan")), ValueError, "scale must be a finite real number; got nan."),
    "scale beyond all floats": (
        good(scale=10**400),
        ValueError,
        "scale must be a finite real number; got one beyond the largest float.",
    ),
    "scale a word": (good(scale="1"), TypeError, "scale must be a finite real number; got '1'."),
    "documents of floats": (
        good(documents=LABELS * 1.0),
        TypeError,
        "documents must have an integer dtype; got float64.",
    ),
    "documents a tensor": (
        good(documents=torch.ones(2, 6, 1, dtype=torch.int64)),
        TypeError,
        "documents must be a NumPy array like q; got a torch tensor.",
    ),
    "documents shape": (
        good(documents=LABELS[:, :1]),
        ValueError,
        "documents must have shape (2, 6, 4), or 1 in place of any of these but the length, 6; "
        "got (2, 1, 1).",
    ),
    "valid of integers": (good(valid=LABELS), TypeError, "valid must have dtype bool; got int64."),
    "valid shape": (
        good(valid=LABELS[0] > 0),
        ValueError,
        "valid must have shape (2, 6, 4), or 1 in place of any of these but the length, 6; got (6, 1).",
    ),
}


@pytest.mark.parametrize("rung", ["auto", *_registry.RUNGS])
@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, rung):
    arguments, kind, sentence = BAD[case]
    with pytest.raises(kind) as raised:
        short_swa(**arguments, rung=rung)
    assert str(raised.value) == sentence
    # One sentence, and a plain error: not a subclass that only one rung would raise.
    assert type(raised.value) is kind


def test_a_rung_that_does_not_exist():
    with pytest.raises(ValueError, match=r"rung must be one of 'auto', 'loops', .*; got 'fast'\."):
        short_swa(**GOOD, rung="fast")


@pytest.mark.parametrize("rung", _registry.NUMPY_RUNGS)
def test_numpy_rungs_refuse_what_needs_a_gradient(rung):
    x = T.clone().requires_grad_()
    with pytest.raises(ValueError, match=rf"^rung='{rung}' has no gradients; got q that requires grad"):
        short_swa(x, T, T, window=2, axis=1, rung=rung)


def test_meta_tensors_are_refused_by_numpy_rungs():
    x = T.to("meta")
    with pytest.raises(
        ValueError, match=r"^rung='arrays' computes on the CPU; got q on meta, takes q\.cpu\(\)\.$"
    ):
        short_swa(x, x, x, window=2, axis=1, rung="arrays")


def test_numpy_integers_will_do():
    z = short_swa(X, X, X, window=np.int64(3), axis=np.int32(1), scale=np.float32(0.5))
    assert np.array_equal(z, short_swa(X, X, X, window=3, axis=1, scale=0.5))


def test_inputs_are_left_alone():
    kept = X.copy()
    for rung in ("loops", "arrays", "eager"):
        short_swa(X, X, X, window=3, axis=1, rung=rung)
    assert np.array_equal(X, kept)


def test_the_folder_holds_the_rungs_and_nothing_else():
    folder = Path(t2lib.__file__).parent / "ops" / "short_swa"
    names = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    assert names == {"__init__.py", "cost.py", *(f"{rung}.py" for rung in _registry.RUNGS)}


def test_only_kernels_and_their_tools_import_triton():
    for path in (Path(t2lib.__file__).parent / "ops").rglob("*.py"):
        if path.name not in ("kernels.py", "_triton.py", "_build.py", "_touched.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            assert not [line for line in lines if line.strip().startswith(("import triton", "from triton"))]


def test_auto_takes_arrays_for_arrays_and_eager_for_tensors():
    assert _registry.choose("short_swa", X) == "arrays"
    assert _registry.choose("short_swa", T) == "eager"


def test_the_ladder_lists_every_rung_with_a_reason():
    rows = t2lib.ladder("short_swa")
    assert [row.rung for row in rows] == list(_registry.RUNGS)
    assert all(row.reason for row in rows)
    assert str(rows).count("\n") == 4
    assert "short_swa" in str(t2lib.ladder())
    with pytest.raises(ValueError, match="operator must be one of short_swa"):
        t2lib.ladder("long_swa")


def test_a_rung_that_cannot_run_says_why_and_what_would(monkeypatch):
    monkeypatch.setattr(_registry, "installed", lambda package: package != "torch")
    assert [row.runs_here for row in t2lib.ladder("short_swa")] == [True, True, False, False, False]
    with pytest.raises(
        RungUnavailable, match=r"^rung='eager' of short_swa cannot run here: .*`pip install torch`"
    ):
        short_swa(**GOOD, rung="eager")


def test_compiled_says_when_torch_compile_is_switched_off(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(RungUnavailable, match="TORCHDYNAMO_DISABLE is set"):
        short_swa(**GOOD, rung="compiled")


def test_a_rung_declared_missing_gives_its_reason(monkeypatch):
    monkeypatch.setitem(_registry.OPERATORS, "short_swa", {"compiled": "same as eager"})
    assert t2lib.ladder("short_swa")[3] == ("compiled", False, "same as eager")
    with pytest.raises(RungUnavailable, match="same as eager"):
        short_swa(**GOOD, rung="compiled")
