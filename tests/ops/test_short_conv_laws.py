"""short_conv: laws, golden vectors, gradients, streaming, dtypes; and that wrong ones would fail."""

import numpy as np
import pytest
import torch
from stream_cases import CPU_RUNGS, claims, draw, name_of

from t2lib.bench._measure import peak_of_tensors
from t2lib.ops import short_conv
from t2lib.ops._laws import error, random
from t2lib.ops._laws_streams import LAWS
from t2lib.ops.short_conv import cost


@pytest.mark.parametrize("claim", claims("short_conv"), ids=name_of)
def test_claims(claim):
    _, _, tolerance, measure = claim
    assert measure() <= tolerance


def turned_around(x, weight, *others, **named):
    return short_conv(x, weight[:, ::-1], *others, **named)


def looks_ahead(x, weight, *others, axis, **named):
    return short_conv(np.roll(x, -1, axis), weight, *others, axis=axis, **named)


def no_documents(x, weight, *others, documents=None, **named):
    return short_conv(x, weight, *others, **named)


def forgets(x, weight, *others, initial_state=None, **named):
    return short_conv(x, weight, *others, **named)


def forgets_what_is_older_than_the_chunk(x, weight, *others, initial_state=None, **named):
    result = short_conv(x, weight, *others, initial_state=initial_state, **named)
    if not named.get("return_state"):
        return result
    return result[0], short_conv(x, weight, *others, **named)[1]


def along_the_first_axis(x, weight, *others, axis, **named):
    return short_conv(x, weight, *others, axis=0, **named)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (turned_around, "definition"),
        (turned_around, "a one hot tap is a shift"),
        (looks_ahead, "definition"),
        (looks_ahead, "a one hot tap is a shift"),
        (no_documents, "packed documents are filtered as if alone"),
        (forgets, "a sequence may be cut anywhere"),
        (forgets_what_is_older_than_the_chunk, "a sequence may be cut anywhere"),
        (along_the_first_axis, "a one hot tap is a shift"),
        (along_the_first_axis, "depth is tokens with the axes swapped"),
    ],
)
def test_a_wrong_convolution_breaks_the_laws(mutant, name):
    assert not LAWS["short_conv"][name](mutant) <= 1e-3


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("taps", [2, 4, 8])
def test_gradients_for_lengths_below_and_above_the_taps(length, taps):
    x, w, b, s = (
        draw(2, length, 2, seed=1),
        draw(2, taps, seed=2),
        draw(2, seed=3),
        draw(2, taps - 1, 2, seed=4),
    )

    def function(x, w, b, s):
        return short_conv(x, w, b, axis=1, activation="silu", initial_state=s, return_state=True)

    torch.autograd.gradcheck(function, (x, w, b, s))
    torch.autograd.gradcheck(lambda x, w: short_conv(x, w, axis=1), (x, w))


def test_gradients_with_documents():
    documents = torch.tensor([0, 0, 1, 1, 1]).reshape(1, 5)
    x, w, s = draw(2, 5, 2, seed=1), draw(2, 3, seed=2), draw(2, 2, 2, seed=4)

    def function(x, w, s):
        return short_conv(x, w, axis=1, documents=documents, initial_state=s, return_state=True)

    torch.autograd.gradcheck(function, (x, w, s))


def test_an_upstream_gradient_of_stride_zero_and_one_of_a_slice():
    x, w, b = draw(2, 6, 3, seed=1), draw(3, 4, seed=2), draw(3, seed=3)
    y = short_conv(x, w, b, axis=1, activation="silu")
    sliced = torch.full((4, 8, 5), torch.nan, dtype=torch.float64)[1:3, 1:7, 1:4]
    sliced.copy_(draw(2, 6, 3, seed=9).detach())
    for cotangent in (torch.ones(1, 1, 1, dtype=torch.float64).expand(2, 6, 3), sliced):
        plain = cotangent.clone(memory_format=torch.contiguous_format)
        one, other = (torch.autograd.grad(y, (x, w, b), g, retain_graph=True) for g in (cotangent, plain))
        assert all(torch.allclose(p, q, rtol=0, atol=1e-13) for p, q in zip(one, other, strict=True))


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_narrow_dtypes_sum_in_float32(rung, dtype, tolerance):
    narrow = [x.to(getattr(torch, dtype)).detach() for x in (draw(2, 9, 5, seed=1), draw(5, 8, seed=2))]
    y = short_conv(*narrow, axis=1, activation="silu", rung=rung)
    want = short_conv(*(x.double() for x in narrow), axis=1, activation="silu")
    assert y.dtype == narrow[0].dtype
    assert (y.double() - want).abs().max() <= tolerance * want.abs().max()


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_silu_of_very_negative_numbers_is_zero(rung):
    x = np.full((3, 1), -1e4, np.float32)
    y = short_conv(x, np.array([[0.0, 1.0]], np.float32), axis=0, activation="silu", rung=rung)
    assert error(y, np.zeros((3, 1), np.float32)) <= 1e-30


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_entry_reaches_what_sees_it(rung, bad):
    x = random(2, 9, 3)
    x[1, 4, 2] = bad
    documents = np.array([[0, 0, 0, 0, 0, 0, 1, 1, 1]])
    y = short_conv(x, random(3, 4, seed=1), axis=1, documents=documents, rung=rung)
    seen = np.zeros(x.shape, bool)
    seen[1, 4:6, 2] = True
    assert np.array_equal(~np.isfinite(y), seen)


UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_documents_of_unsigned_dtypes(rung, dtype):
    x, weight, documents = random(1, 7, 2), random(2, 4, seed=1), np.array([[3, 3, 3, 255, 255, 3, 3]])
    y = short_conv(x, weight, axis=1, documents=documents.astype(dtype), rung=rung)
    assert error(y, short_conv(x, weight, axis=1, documents=documents, rung="loops")) <= 1e-12


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_kernels_take_documents_of_unsigned_dtypes(dtype):
    """What torch prepares for them: for each entry, which of those before it are of its document."""
    pytest.importorskip("triton")
    from t2lib.ops.short_conv.kernels import _kinship

    documents = torch.from_numpy(np.array([[3, 3, 3, 255, 255, 3, 3]], dtype))
    # The bits, the own one last; entries before the first are of its document.
    want = [[0b1111, 0b1111, 0b1111, 0b0001, 0b0011, 0b1001, 0b0011]]
    assert _kinship(documents, 4, 1).tolist() == want


@pytest.mark.parametrize("rung", ["arrays", "eager"])
@pytest.mark.parametrize("shape", [(4, 3), (0, 4, 3), (2, 7, 2, 5), (1, 300, 1)])
@pytest.mark.parametrize("axis", [0, -2])
def test_any_axis_and_any_leading_axes(rung, shape, axis):
    x, w = random(*shape), random(shape[-1], 4, seed=1)
    if x.shape[axis] == 0:
        axis = 1
    want = short_conv(x, w, axis=axis, rung="loops", return_state=True)
    found = short_conv(x, w, axis=axis, rung=rung, return_state=True)
    assert max(error(a, b) for a, b in zip(found, want, strict=True)) <= 1e-13


def test_left_padding_may_be_a_document_of_its_own():
    """What follows the padding is as if it were not there, and so is the state."""
    x, w = random(1, 6, 3), random(3, 4, seed=1)
    padded = np.concatenate([np.full((1, 2, 3), 7.0), x[:, :2]], 1)
    labels = np.array([[-1, -1, 0, 0]])
    y, state = short_conv(padded, w, axis=1, documents=labels, return_state=True)
    alone, its_state = short_conv(x[:, :2], w, axis=1, return_state=True)
    assert error(y[:, 2:], alone) <= 1e-14
    assert error(state, its_state) == 0


@pytest.mark.parametrize("rung", ["arrays", "eager"])
def test_a_state_is_a_copy_and_no_larger_than_itself(rung):
    x = torch.from_numpy(random(1, 5, 3))
    _, state = short_conv(x, torch.from_numpy(random(3, 4, seed=1)), axis=1, return_state=True, rung=rung)
    kept = state.clone()
    x.zero_()
    assert torch.equal(state, kept)
    assert state.untyped_storage().nbytes() == state.nbytes


def test_memory_is_linear_in_the_length():
    w, peaks = draw(32, 4, seed=2), []
    for length in (1000, 2000):
        x = draw(1, length, 32, seed=1)
        peaks.append(peak_of_tensors(lambda x=x: short_conv(x, w, axis=1).sum().backward()))
    assert peaks[1] <= 2.1 * peaks[0]


def test_costs_by_hand():
    assert cost.parameters(768, 4) == 3072
    assert cost.parameters(8, 3, bias=True) == 32
    assert cost.forward_flops(768, 4, entries=10) == 10 * 2 * 4 * 768
    assert cost.forward_bytes(8, 4, itemsize=2, entries=10) == 2 * (2 * 8 * 10 + 32)
    assert cost.state_bytes(8, 4, itemsize=2, sequences=5) == 2 * 3 * 8 * 5
    # 10 entries: the taps, 2 d an entry forward; 3 d backward, and 3 sums of 4 bytes a channel.
    assert cost.kernel_bytes(8, 3, 10, itemsize=2) == (2 * 8 * (20 + 3), 2 * 8 * (30 + 3) + 96)
    # A frozen filter without SiLU reads no x; a filter alone reads no taps and writes no gradient of x.
    assert cost.kernel_bytes(8, 3, 10, itemsize=2, gradients=("x",))[1] == 2 * 8 * (20 + 3)
    assert cost.kernel_bytes(8, 3, 10, itemsize=2, gradients=("weight",))[1] == 2 * 8 * 20 + 96
    with pytest.raises(ValueError, match=r"^gradients must be"):
        cost.kernel_bytes(8, 3, 10, itemsize=2, gradients=("y",))
