"""The kernels of depth_mix, interpreted, against `eager` in float64: every gradient of every input."""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from t2lib.ops import RungUnavailable, _kernel_cases, depth_mix
from t2lib.ops._cases_depth_mix import example, examples
from t2lib.ops._kernel_cases import TOLERANCE, normal
from t2lib.ops._touched import touched
from t2lib.ops.depth_mix import cost, kernels
from t2lib.ops.depth_mix.kernels import Config

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def check(one: Any, dtype: torch.dtype = torch.float32) -> None:
    for name, error in _kernel_cases.errors(one, dtype).items():
        assert error <= TOLERANCE[dtype], f"{name}: error {error:.1e}"


def gradients(rung: str, states: list[Tensor], weights: Tensor, upstream: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (*states, weights)]
    z = depth_mix(leaves[:-1], leaves[-1], rung=rung)
    return [z.detach(), *torch.autograd.grad(z, leaves, upstream)]


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def force(config: Config, most: int = 48) -> None:
        monkeypatch.setattr(kernels, "pick_config", lambda *arguments, **keywords: config)
        monkeypatch.setattr(kernels, "states_at_once", lambda *arguments, **keywords: most)

    return force


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("one", examples(), ids=lambda one: one.what)
def test_results_gradients_and_the_bytes_stated(one: Any, dtype: torch.dtype) -> None:
    errors, forward, backward = _kernel_cases.measure(one, dtype)
    assert max(errors.values()) <= TOLERANCE[dtype], errors
    assert (forward, backward) == one.stated(dtype.itemsize)


# Blocks of channels and runs of tokens with a ragged tail; one launch, and more than one.
@pytest.mark.parametrize("most", [48, 2])
@pytest.mark.parametrize("weights", ["state", "channel"])
def test_every_configuration(weights: str, most: int, force: Callable[..., None]) -> None:
    force(Config(16, 2, 1), most)
    check(example("", (3, 21), 3, outputs=2, weights=weights, token_weights=weights == "channel"))


@pytest.mark.parametrize("shape", [(1,), (24,), (2, 1), (1, 2, 13)])
def test_lengths_and_widths(shape: tuple[int, ...]) -> None:
    check(example("", shape, 2, weights="channel", token_weights=True))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weights", ["none", "state", "channel"])
def test_more_outputs_than_a_launch_takes(
    weights: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three launches fill slices of one result, and the last stores what the states get from all.
    monkeypatch.setattr(kernels, "MOST_OUTPUTS", 2)
    monkeypatch.setattr(kernels, "states_at_once", lambda *arguments, **keywords: 2)
    one = example("", (2, 16), 3, outputs=5, weights=weights, token_weights=True)
    errors, *bytes_touched = _kernel_cases.measure(one, dtype)
    assert max(errors.values()) <= TOLERANCE[dtype], errors
    assert one.stated is not None
    assert tuple(bytes_touched) == one.stated(dtype.itemsize)


def test_layouts_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = torch.full((4, 3, 30), float("nan"))
    sliced = buffer[1:3, :2, 4:21]
    sliced.copy_(normal(2, 2, 17))
    states = [sliced, normal(17, 2, 2, seed=1).float().permute(2, 1, 0), normal(2, 2, 17, seed=2).float()]
    weights, upstream = normal(3, 17, seed=3).float(), torch.ones(()).expand(2, 2, 17)
    seen: list[dict[str, Any]] = []
    launch = kernels._launch

    def record(kernel: Any, call: Any, programs: int, given: dict[str, Any]) -> None:
        seen.append(given)
        launch(kernel, call, programs, given)

    monkeypatch.setattr(kernels, "_launch", record)
    got = gradients("kernels", states, weights.T.contiguous().T, upstream)
    want = gradients("eager", states, weights, upstream)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    for given in seen:
        for mine, state in zip(given["states"], states, strict=True):
            assert mine.data_ptr() == state.data_ptr(), "a copy was made"
            assert mine.stride() == state.stride(), "a copy was made"


def test_upstream_gradients_in_any_layout() -> None:
    states, weights = [normal(2, 16, seed=j).float() for j in range(2)], normal(2, seed=9).float()
    for upstream in (normal(16, 2).float().T, normal(2, 32).float()[:, ::2]):
        got, want = (gradients(rung, states, weights, upstream) for rung in ("kernels", "eager"))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_reaches_its_own_token_and_channel(bad: float) -> None:
    states = [normal(3, 16, seed=j).float() for j in range(3)]
    states[1][2, 5] = bad
    weights = torch.tensor([1.0, 0.0, 2.0])
    got, want = (gradients(rung, states, weights, torch.ones(3, 16)) for rung in ("kernels", "eager"))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.isinf(), b.isinf())
    assert got[0].isnan().nonzero().tolist() == [[2, 5]]


def test_float32_weights_beside_states_in_half_precision() -> None:
    states = [normal(2, 16, seed=j, dtype=torch.float16) for j in range(2)]
    weights = normal(2, 16, seed=9, dtype=torch.float32)
    z, *rest = gradients("kernels", states, weights, torch.ones(2, 16, dtype=torch.float16))
    assert z.dtype == rest[0].dtype == torch.float16
    assert rest[-1].dtype == torch.float32
    truth = sum(w * x.double() for w, x in zip(weights, states, strict=True))
    torch.testing.assert_close(z.double(), truth, rtol=1e-3, atol=1e-3)


SUBSETS = [
    ("states",), ("weights",), ("token_weights",), ("states", "token_weights"), ("weights", "token_weights"),
]  # fmt: skip


@pytest.mark.parametrize("outputs", [2, 5])
@pytest.mark.parametrize("weights", ["state", "channel"])
@pytest.mark.parametrize("needs", SUBSETS, ids=str)
def test_only_the_gradients_that_are_wanted(
    needs: tuple[str, ...], weights: str, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MOST_OUTPUTS", 4)
    one = example("", (2, 9), 2, outputs=outputs, weights=weights, token_weights=True)
    whole = _kernel_cases.run(one, "kernels", torch.float32).arrays
    names = [
        name for name in one.inputs if name in needs or (name.startswith("state ") and "states" in needs)
    ]
    fixed = {name: x.float() for name, x in one.inputs.items() if name not in names}
    part = one._replace(
        inputs={name: one.inputs[name] for name in names},
        call=lambda rung, given: one.call(rung, fixed | given),
    )
    passes = _kernel_cases.run(part, "kernels", torch.float32, touched)
    for name in names:
        assert torch.equal(passes.arrays[f"gradient of {name}"], whole[f"gradient of {name}"]), name
    summed = "weights" in needs
    config = kernels.pick_config((0, 0), 9, outputs, summed=summed)
    assert passes.backward.distinct == cost.kernel_bytes(
        2, 9, itemsize=4, tokens=2, outputs=outputs, weights=weights, token_weights=True, backward=True,
        needs=needs, runs=-(-2 // config.rows), most_outputs=4,
    )  # fmt: skip


def test_one_state_of_several_and_one_weight() -> None:
    states = [normal(2, 16, seed=j).float() for j in range(2)]
    weights = normal(2, seed=9).float().requires_grad_()
    (got,) = torch.autograd.grad(depth_mix(states, weights, rung="kernels").sum(), weights)
    torch.testing.assert_close(got, torch.stack([x.sum() for x in states]))
    states[1].requires_grad_()
    (got,) = torch.autograd.grad(depth_mix(states, weights.detach(), rung="kernels").sum(), states[1])
    torch.testing.assert_close(got, weights[1].detach().expand(2, 16))


def test_an_offset_beyond_32_bits_without_the_memory() -> None:
    """Two tokens 2^31 numbers apart: pages of the map that nobody touches take no memory."""
    apart, width = 2**31 + 16, 16
    pages = mmap.mmap(-1, 4 * (apart + width), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    state = torch.frombuffer(pages, dtype=torch.float32).as_strided((2, width), (apart, 1))
    state.copy_(normal(2, width))
    z = depth_mix([state, state], torch.tensor([1.0, 2.0]), rung="kernels")
    torch.testing.assert_close(z, 3 * state)


def test_a_product_of_a_stride_is_not_one_of_32_bits() -> None:
    # Strides below 2^31 are numbers of 32 bits; their products with the number of an output are not.
    step = 2**30
    buffer = torch.from_numpy(np.zeros(3 * step, np.float16))
    upstream, weights = buffer.as_strided((3, 2, 8), (step, 8, 1)), buffer[64:].as_strided((3, 2), (step, 8))
    own = buffer[128:].as_strided((2, 3, 2), (8, step, 1))
    for x in (upstream, weights, own):
        x.copy_(normal(*x.shape))
    found = []
    for rung, dtype in (("eager", torch.float64), ("kernels", torch.float16)):
        states = [normal(2, 8, seed=j).half().to(dtype).requires_grad_() for j in range(2)]
        z = depth_mix(states, weights.to(dtype), own.to(dtype), outputs=3, rung=rung)
        found.append([z.detach().double(), *torch.autograd.grad(z, states, upstream.to(dtype))])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), want.double(), rtol=2e-3, atol=2e-3)


def test_an_empty_batch_is_an_empty_result() -> None:
    z, *rest = gradients("kernels", [torch.ones(0, 8)] * 2, torch.ones(2), torch.ones(0, 8))
    assert z.shape == rest[0].shape == (0, 8)
    assert torch.equal(rest[-1], torch.zeros(2))


def test_a_wrong_weight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels._weight

    def shifted(shared: Any, own: Any, way: Any, j: Any, *rest: Any) -> Any:
        return right(shared, own, way, j - j, *rest)

    monkeypatch.setattr(kernels, "_weight", shifted)
    with pytest.raises(AssertionError, match="error"):
        check(example("", (2, 16), 2, weights="channel"))


def test_the_operator_is_registered_whole() -> None:
    states = [normal(2, 16, seed=j).float().requires_grad_() for j in range(2)]
    weights, own = normal(1, 2, 16).float().requires_grad_(), normal(2, 1, 2).float().requires_grad_()
    torch.library.opcheck(kernels._forward, (states, weights, own, 1))
    detached = [x.detach() for x in states]
    for needs in ((True, True, True), (False, True, False), (True, False, False)):
        given = (normal(1, 2, 16).float(), detached, weights.detach(), own.detach(), *needs)
        torch.library.opcheck(kernels._backward, given)


def test_a_full_graph_compile_changes_nothing() -> None:
    states, weights = [normal(2, 16, seed=j).float() for j in range(2)], normal(1, 2, 1).float()

    def model(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
        return torch.tanh(kernels._forward([a * 2, b], weights, None, 1))

    want, got = [], []
    for function, store in ((model, want), (torch.compile(model, fullgraph=True, backend="aot_eager"), got)):
        leaves = [x.clone().requires_grad_() for x in (*states, weights)]
        z = function(*leaves)
        store += [z.detach(), *torch.autograd.grad(z.sum(), leaves)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("dtype", "sentence"),
    [(torch.float64, "rung='eager'"), (torch.bfloat16, "takes float32 or float16")],
)
def test_what_the_kernels_do_not_take(dtype: torch.dtype, sentence: str) -> None:
    with pytest.raises(RungUnavailable, match=sentence):
        depth_mix([torch.zeros(2, 4, dtype=dtype)], torch.zeros(1, dtype=dtype), rung="kernels")


def test_no_sum_is_atomic() -> None:
    assert "tl.atomic" not in inspect.getsource(kernels)
