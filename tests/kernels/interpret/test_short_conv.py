"""The kernels of short_conv, interpreted, against `eager` in float64: every gradient, and bytes touched."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from t2lib.ops import RungUnavailable, _registry, short_conv
from t2lib.ops._cases_short_conv import example, examples
from t2lib.ops._kernel_cases import TOLERANCE, errors, measure, normal
from t2lib.ops._touched import touched
from t2lib.ops.short_conv import kernels
from t2lib.ops.short_conv.kernels import Config

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def right(case: Any, dtype: torch.dtype = torch.float32) -> None:
    for name, error in errors(case, dtype).items():
        assert error <= TOLERANCE[dtype], f"{name}: {error:.1e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", examples(), ids=lambda case: case.what)
def test_results_gradients_and_the_bytes_touched(case: Any, dtype: torch.dtype) -> None:
    assert case.stated is not None
    found, *bytes_touched = measure(case, dtype)
    assert all(error <= TOLERANCE[dtype] for error in found.values()), found
    assert tuple(bytes_touched) == case.stated(dtype.itemsize)


# Each alone, and what a frozen filter, frozen activations and a learned first state ask for.
@pytest.mark.parametrize(
    "gradients",
    [("x",), ("weight",), ("bias",), ("state",), ("x", "state"), ("weight", "bias"), ("x", "weight", "bias"),
     ("bias", "state")],
    ids="+".join,
)  # fmt: skip
@pytest.mark.parametrize(
    ("activation", "taps", "length"), [("silu", 4, 9), ("silu", 6, 2), (None, 4, 9), (None, 3, 1)]
)
def test_a_gradient_nobody_asked_for_moves_nothing(
    gradients: tuple[str, ...], activation: str | None, taps: int, length: int
) -> None:
    documents = (torch.arange(2 * length) // 5).view(2, length)
    case = example(
        "", (2, length, 20), taps, axis=1, bias=True, state=True, activation=activation, return_state=True,
        documents=documents, gradients=gradients,
    )  # fmt: skip
    inputs = {name: x.float() for name, x in case.inputs.items()}
    asked = ["initial_state" if name == "state" else name for name in gradients]
    found = []
    for names in (list(inputs), asked):
        leaves = {name: x.detach().requires_grad_(name in names) for name, x in inputs.items()}
        results = case.call("kernels", leaves)
        upstream = [normal(*y.shape, seed=7, dtype=torch.float32) for y in results]
        with touched() as launches:
            arrays = torch.autograd.grad(results, [leaves[name] for name in names], upstream)
        found.append(dict(zip(names, arrays, strict=True)))
    for name in asked:
        torch.testing.assert_close(found[1][name], found[0][name], atol=1e-6, rtol=1e-6)
    assert case.stated is not None
    assert launches.distinct == case.stated(4)[1]


def test_a_frozen_filter_without_silu_reads_no_x() -> None:
    x, weight = normal(2, 9, 20, dtype=torch.float32), normal(20, 4, seed=1, dtype=torch.float32)
    y = short_conv(x.requires_grad_(), weight, axis=1, rung="kernels")
    with touched() as launches:
        torch.autograd.grad(y, x, y.detach())
    assert launches[0].loaded.keys() == {"weight", "grad"}
    assert launches[0].stored.keys() == {"dx"}


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_lengths_around_the_taps(length: int) -> None:
    documents = torch.tensor([7, 7, -1, 7, 2**40])[:length].view(1, length)
    for state in (False, True):
        case = example("", (1, length, 5), 4, axis=1, state=state, documents=documents, return_state=True)
        right(case)


# A block boundary inside a sequence and a ragged tail, by rows and by channels; K on both sides of four.
@pytest.mark.parametrize("config", [Config(16, 16, 4, 1), Config(8, 32, 4, 3)], ids=str)
@pytest.mark.parametrize(("taps", "activation"), [(2, None), (3, "silu"), (5, "silu")])
def test_every_configuration(
    config: Config, taps: int, activation: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "pick_config", lambda *arguments, **keywords: config)
    right(example("", (1, 19, 20), taps, axis=1, bias=True, state=True, activation=activation))


def test_the_width_of_a_wide_model_is_no_power_of_two() -> None:
    right(example("", (1, 2, 1792), 2, axis=1))


def test_over_depth_and_tokens_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    launch = kernels._launch
    monkeypatch.setattr(
        kernels,
        "_launch",
        lambda kernel, call, tensors: (
            seen.append(call.arguments | tensors), launch(kernel, call, tensors)
        ),
    )  # fmt: skip
    # (L, B, T, d) over the layers, and the same memory turned: (B, T, L, d), ordered by its third.
    stack, weight = normal(6, 2, 3, 16, dtype=torch.float32), normal(16, 3, seed=1, dtype=torch.float32)
    upstream = normal(1, dtype=torch.float32).expand(6, 2, 3, 16)
    found = []
    for x, axis, grad in ((stack, 0, upstream), (stack.permute(1, 2, 0, 3), 2, upstream.permute(1, 2, 0, 3))):
        leaf = x.detach().requires_grad_()
        y = short_conv(leaf, weight, axis=axis, rung="kernels")
        found.append([z.movedim(axis, 0) for z in (y.detach(), *torch.autograd.grad(y, leaf, grad))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert [arguments["x"].data_ptr() for arguments in seen] == [stack.data_ptr()] * 4
    assert {arguments["x_strides"] for arguments in seen} == {(96, 1, 16)}
    # The gradient of a sum has stride 0 everywhere and is read as it is.
    assert {arguments["grad_strides"] for arguments in seen[1::2]} == {(0, 0, 0)}


def test_layouts_are_read_where_they_lie() -> None:
    buffer = torch.full((4, 25, 30), float("nan"))
    sliced = buffer[1:3, 2:23, 5:24]
    sliced.copy_(normal(2, 21, 19))
    weight, state = normal(3, 19, seed=1, dtype=torch.float32).t(), normal(2, 2, 19, dtype=torch.float32)
    for x in (sliced, normal(19, 21, 2, dtype=torch.float32).permute(2, 1, 0)):
        want = short_conv(
            x.double(), weight.double(), axis=1, rung="eager", initial_state=state.double()
        )  # fmt: skip
        with touched() as launches:
            got = short_conv(x, weight, axis=1, rung="kernels", initial_state=state)
        torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=1e-6)
        assert launches[0].loaded["x"].distinct == x.numel() * 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_reaches_what_sees_it_and_no_other(bad: float) -> None:
    documents = (torch.arange(20) // 6).view(1, 20)
    for name in ("x", "weight", "bias", "initial_state"):
        case = example("", (1, 20, 6), 3, axis=1, bias=True, state=True, documents=documents)
        place = {"x": (0, 8, 1), "weight": (1, 0), "bias": (1,), "initial_state": (0, 1, 1)}[name]
        case.inputs[name][place] = bad
        got = case.call("kernels", {key: x.float() for key, x in case.inputs.items()})
        want = case.call("eager", {key: x.float() for key, x in case.inputs.items()})
        assert torch.equal(got.isnan(), want.isnan()), name
        torch.testing.assert_close(got, want, equal_nan=True, atol=1e-5, rtol=1e-5)
        if bad != bad:
            assert all(error < 1e-5 for error in errors(case, torch.float32).values()), name


def test_a_bad_upstream_gradient_reaches_what_it_saw() -> None:
    documents = (torch.arange(20) // 6).view(1, 20)
    x, weight = normal(1, 20, 6, dtype=torch.float32), normal(6, 3, seed=1, dtype=torch.float32)
    upstream = normal(1, 20, 6, seed=2, dtype=torch.float32)
    upstream[0, 7, 2] = float("nan")
    found = []
    for rung in ("kernels", "eager"):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = short_conv(*leaves, axis=1, rung=rung, documents=documents, activation="silu")
        found.append(torch.autograd.grad(y, leaves, upstream))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, atol=1e-5, rtol=1e-5)


def test_an_empty_batch() -> None:
    right(example("", (0, 5, 6), 3, axis=1, bias=True, state=True, return_state=True))


def test_offsets_beyond_two_to_the_31() -> None:
    # A stack of two layers, 2^31 + 16 numbers apart, of which the memory between is never touched.
    memory = torch.empty(0)
    apart = torch.as_strided(memory.new_zeros(1).expand(1), (2, 1, 16), (0, 0, 0))
    tensors: dict[str, Tensor | None] = {
        "x": torch.empty_strided((2, 1, 16), (2**31 + 16, 16, 1), device="meta"),
        "weight": torch.empty(16, 2, device="meta"), "bias": None, "state": None, "kinship": None,
        "y": apart, "after": None,
    }  # fmt: skip
    call = kernels._prepare(tensors, 0, False, (0, 0), backward=False)
    assert call.arguments["x_strides"][0] == 2**31 + 16
    # Where the kernel looks for it: the pointers of a launch, caught before they are followed.
    caught: list[Any] = []
    from triton.runtime import interpreter

    def catch(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        caught.append(pointers.data[mask.data])
        return interpreter.TensorHandle(pointers.data.astype("float32") * 0, pointers.get_element_ty())

    saved = (
        interpreter.InterpreterBuilder.create_masked_load, interpreter.InterpreterBuilder.create_masked_store
    )  # fmt: skip
    x = torch.empty(16)
    try:
        interpreter.InterpreterBuilder.create_masked_load = catch
        interpreter.InterpreterBuilder.create_masked_store = lambda self, *rest: None
        given = tensors | {"x": x, "weight": torch.zeros(16, 2), "y": torch.empty(2, 1, 16)}
        kernels._launch(kernels.forward, call, given)
    finally:
        (
            interpreter.InterpreterBuilder.create_masked_load,
            interpreter.InterpreterBuilder.create_masked_store,
        ) = saved
    far = max(int(addresses.max()) for addresses in caught if addresses.size)
    assert far == x.data_ptr() + 4 * (2**31 + 16 + 15)


def test_the_operator_is_registered_whole() -> None:
    x, weight, bias, state = (
        y.requires_grad_()
        for y in (torch.randn(1, 5, 8), torch.randn(8, 3), torch.randn(8), torch.randn(1, 2, 8))
    )
    documents = torch.tensor([[0, 0, 1, 1, 1]])
    rest = (documents, 1, True, True)
    torch.library.opcheck(kernels._forward, (x, weight, bias, state, *rest))
    saved = [y.detach() for y in (x, weight, bias, state)]
    results = kernels._forward(*saved, *rest)
    for needs in ((True, True, True, True), (False, True, False, False), (False, False, False, True)):
        torch.library.opcheck(kernels._backward, (*results, *saved, *rest, *needs))


def test_a_full_graph_compile_changes_nothing() -> None:
    x, weight = normal(1, 9, 16, dtype=torch.float32), normal(16, 4, seed=1, dtype=torch.float32)

    def model(x: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(short_conv(x * 2, weight, axis=1, rung="kernels", activation="silu"))

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for learned in (True, False):
        found = []
        for function in (model, compiled):
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_(learned)]
            y = function(*leaves)
            found.append([y.detach(), *torch.autograd.grad(y.sum(), leaves[: 1 + learned])])
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want)


@triton.jit
def one_too_late(kinship, position, wanted):  # type: ignore[no-untyped-def]
    return tl.zeros(position.shape, tl.int32) + 255


def test_a_wrong_mask_of_documents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_kin", one_too_late)
    found = errors(examples()[1], torch.float32)
    assert all(found[name] > 1e-3 for name in ("result", "gradient of x", "gradient of weight"))


@pytest.mark.parametrize(
    ("dtype", "sentence"), [(torch.float64, "rung='eager'"), (torch.bfloat16, "takes float32 or float16")]
)
def test_what_the_kernels_do_not_take(dtype: torch.dtype, sentence: str) -> None:
    with pytest.raises(RungUnavailable, match=sentence):
        short_conv(torch.zeros(4, 8, dtype=dtype), torch.zeros(8, 2, dtype=dtype), axis=0, rung="kernels")
    assert _registry.choose("short_conv", torch.zeros(1, dtype=dtype)) == "eager"


def test_no_sum_is_atomic() -> None:
    assert "tl.atomic" not in inspect.getsource(kernels)
