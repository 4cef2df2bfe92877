"""Layouts, lengths, widths, dtypes, bad values and memory: what a caller may hand over, on every rung."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from rungs import CPU_RUNGS

from t2lib.bench._measure import peak_bytes
from t2lib.ops import short_swa
from t2lib.ops._laws import error, random

FAST = ["arrays", "eager"]
WINDOW = 5


def transposed(x):
    return np.ascontiguousarray(x.T).T


def sliced_out_of_nan(x):
    buffer = np.full([n + 2 for n in x.shape], np.nan, x.dtype)
    inner = buffer[tuple(slice(1, -1) for _ in x.shape)]
    inner[...] = x
    return inner


def backwards(x):
    return np.flip(np.ascontiguousarray(np.flip(x)))


def read_only(x):
    copy = x.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize("layout", [transposed, sliced_out_of_nan, backwards, read_only])
@pytest.mark.parametrize("length", [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * 64 + 7])
def test_layouts_and_lengths(rung, layout, length):
    plain = [random(2, length, 3, 16, seed=seed) for seed in (1, 2, 3)]
    want = short_swa(*plain, window=WINDOW, axis=1, rung="loops")
    for rungs_layout in (plain, [layout(x) for x in plain]):
        assert error(short_swa(*rungs_layout, window=WINDOW, axis=1, rung=rung), want) <= 1e-13


@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize("width", [1, 16, 24, 64, 37])
def test_widths(rung, width):
    q, k, v = random(70, width, seed=1), random(70, width, seed=2), random(70, 3, seed=3)
    want = short_swa(q, k, v, window=WINDOW, axis=0, rung="loops")
    assert error(short_swa(q, k, v, window=WINDOW, axis=0, rung=rung), want) <= 1e-13


@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize("shape", [(9, 2, 3, 2, 4), (0, 9, 4), (3, 9, 0, 4), (1, 300, 4)])
def test_any_leading_axes_even_empty_ones(rung, shape):
    axis = int(np.argmax(shape[:-1]))
    x = random(*shape)
    want = short_swa(x, x, x, window=3, axis=axis, rung="loops")
    assert error(short_swa(x, x, x, window=3, axis=axis - len(shape), rung=rung), want) <= 1e-13


@pytest.mark.parametrize("rung", FAST)
def test_many_independent_sequences_are_cut_into_parts(rung):
    x = random(6, 3000, 2, 4)
    z = short_swa(x, x, x, window=4, axis=0, rung=rung)
    some = x[:, ::500]
    assert error(z[:, ::500], short_swa(some, some, some, window=4, axis=0, rung="loops")) <= 1e-13


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_narrow_dtypes_sum_in_float32(rung, dtype, tolerance):
    """The result is off by its own rounding, not by a rounding at every step."""
    narrow = [torch.from_numpy(random(90, 16, seed=seed)).to(getattr(torch, dtype)) for seed in (1, 2, 3)]
    z = short_swa(*narrow, window=40, axis=0, rung=rung)
    want = short_swa(*(x.double() for x in narrow), window=40, axis=0, rung="eager")
    assert z.dtype == narrow[0].dtype
    assert (z.double() - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_scores_that_would_overflow_in_half_precision(rung):
    q = np.full((4, 64), 60.0, np.float16)
    v = random(4, 3).astype(np.float16)
    z = short_swa(q, q, v, window=2, axis=0, rung=rung)
    assert error(z, np.stack([v[0], *((v[1:].astype(float) + v[:-1]) / 2)]).astype(np.float16)) <= 1e-3


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_the_kind_of_the_result_is_the_kind_of_q(rung):
    q = random(6, 4)
    from_arrays = short_swa(q, q, q, window=2, axis=0, rung=rung)
    from_tensors = short_swa(*[torch.from_numpy(q)] * 3, window=2, axis=0, rung=rung)
    assert isinstance(from_arrays, np.ndarray)
    assert isinstance(from_tensors, torch.Tensor)
    assert error(from_tensors.numpy(), from_arrays) <= 1e-15


@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(3))
def test_bad_entries_go_where_they_go_in_loops(rung, bad, place):
    data = [random(80, 3, seed=seed) for seed in (1, 2, 3)]
    data[place][66, 1] = bad
    documents = np.arange(80) // 68
    for labels in ({}, {"documents": documents}, {"valid": np.arange(80) != 66}):
        want = short_swa(*data, window=4, axis=0, rung="loops", **labels)
        got = short_swa(*data, window=4, axis=0, rung=rung, **labels)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(np.isinf(got), np.isinf(want))
        finite = np.isfinite(want)
        assert error(got[finite], want[finite]) <= 1e-13


def test_finite_scores_beyond_float32_do_not_reach_their_neighbours():
    q = np.ones((80, 2), np.float32)
    k = q.copy()
    q[70], k[66] = 1e30, 1e30
    v = random(80, 2).astype(np.float32)
    want = short_swa(q, k, v, window=4, axis=0, rung="loops")
    for rung in FAST:
        assert error(short_swa(q, k, v, window=4, axis=0, rung=rung), want) <= 1e-5


@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize(("window", "axis"), [(64, 1), (300, 1), (4, 1)])
def test_memory_is_linear_in_the_length(rung, window, axis):
    peaks = []
    for tokens in (1024, 2048, 4096):
        x = np.random.default_rng(0).standard_normal((1, tokens, 2, 32), dtype=np.float32)
        data = [x] * 3 if rung == "arrays" else [torch.from_numpy(x)] * 3
        peaks.append(peak_bytes(lambda data=data: short_swa(*data, window=window, axis=axis, rung=rung)))
    doubles(peaks)


def doubles(peaks):
    """Twice the length takes twice the memory, not four times; no T × T array of bytes has room."""
    assert peaks[1] <= 2.1 * peaks[0]
    assert peaks[2] <= 2.1 * peaks[1]
    assert peaks[2] < 4096 * 4096


def test_memory_of_the_backward_pass_is_linear_too():
    peaks = []
    for tokens in (1024, 2048, 4096):
        q, k, v = (torch.randn(1, tokens, 2, 32, requires_grad=True) for _ in range(3))
        peaks.append(peak_bytes(lambda x=(q, k, v): short_swa(*x, window=16, axis=1).sum().backward()))
    doubles(peaks)


def test_the_meter_sees_a_square_array():
    """The meter itself: the form with the full mask fails the test above."""
    x = torch.randn(2, 2048, 8)
    assert peak_bytes(lambda: torch.softmax(x @ x.mT, -1) @ x) >= 2 * 2048 * 2048 * 4
    y = x.numpy()
    assert peak_bytes(lambda: np.exp(y @ y.swapaxes(1, 2)) @ y) >= 2 * 2048 * 2048 * 4


def test_loops_need_neither_torch_nor_triton():
    code = (
        "import sys, numpy as np; from t2lib.ops.short_swa import loops; from t2lib.ops import short_swa;"
        "x = np.ones((3, 2)); short_swa(x, x, x, window=2, axis=0, rung='loops');"
        "short_swa(x, x, x, window=2, axis=0); assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
