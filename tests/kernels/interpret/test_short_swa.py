"""The kernels of ShortSWA, interpreted, against `eager` in float64: every gradient of every input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from compare import assert_close, check, inputs, normal, result_and_gradients
from torch import Tensor
from triton.runtime.errors import OutOfResources

from t2lib.ops import RungUnavailable, short_swa
from t2lib.ops import _kernel_cases as kernel_cases
from t2lib.ops._cases_short_swa import examples
from t2lib.ops._kernel_cases import measure
from t2lib.ops._touched import touched
from t2lib.ops.short_swa import cost, kernels
from t2lib.ops.short_swa.kernels import Config

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TILE = Config(True, 16, 16, 4, 1)
SHIFT = Config(False, 32, 1, 4, 1)
FORMS = {
    "tile 16x16": TILE,
    "tile 32x16": Config(True, 32, 16, 4, 1),
    "tile 16x32": Config(True, 16, 32, 8, 1),
    "shift": SHIFT,
}


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[Config], None]:
    def force(config: Config) -> None:
        monkeypatch.setattr(kernels, "pick_config", lambda *arguments, **keywords: config)

    return force


@pytest.fixture(params=["tile 16x16", "shift"])
def both_forms(request: pytest.FixtureRequest, force: Callable[[Config], None]) -> None:
    force(FORMS[request.param])


# Three blocks and a ragged tail; a window smaller and one larger than a block.
@pytest.mark.parametrize("window", [5, 20])
@pytest.mark.parametrize("form", FORMS)
def test_every_configuration(form: str, window: int, force: Callable[[Config], None]) -> None:
    force(FORMS[form])
    check(inputs((1, 53, 16), axis=1, value_width=24), axis=1, window=window)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6])
def test_lengths_around_the_window(length: int, both_forms: None) -> None:
    check(inputs((1, length, 16), axis=1), axis=1, window=5)


@pytest.mark.parametrize("width", [1, 13, 24, 64])
def test_widths(width: int, both_forms: None) -> None:
    check(inputs((1, 20, width), axis=1, value_width=17), axis=1, window=3)


def test_the_configurations_of_the_interpreter() -> None:
    check(inputs((2, 70, 2, 16), axis=1), axis=1, window=1000)
    check(inputs((2, 70, 2, 16), axis=1), axis=1, window=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", examples(), ids=lambda case: case.what)
def test_the_bytes_touched_are_those_stated(case: Any, dtype: torch.dtype) -> None:
    assert case.stated is not None
    found, *bytes_touched = measure(case, dtype)
    assert all(error <= kernel_cases.TOLERANCE[dtype] for error in found.values()), found
    assert tuple(bytes_touched) == case.stated(dtype.itemsize)


@pytest.mark.parametrize("gradients", ["q", "k", "v", "qk", "qv", "kv"])
def test_a_gradient_nobody_asked_for_moves_nothing(gradients: str, both_forms: None) -> None:
    tensors = dict(zip("qkv", inputs((1, 25, 4, 16), axis=1, value_width=24, share=(2, 2)), strict=True))
    call: dict[str, Any] = {"axis": 1, "window": 6, "head_axis": 2}
    call["documents"] = (torch.arange(25) // 10).view(1, 25, 1)
    want = result_and_gradients("kernels", list(tensors.values()), **call)
    leaves = {name: x.detach().requires_grad_(name in gradients) for name, x in tensors.items()}
    out = short_swa(*leaves.values(), rung="kernels", **call)
    with touched() as launches:
        got = torch.autograd.grad(out, [leaves[name] for name in gradients], normal(*out.shape, seed=9))
    for name, x in zip(gradients, got, strict=True):
        assert torch.equal(x, want[f"d{name}"]), name
    _, stated = cost.kernel_bytes(
        25, 6, 16, itemsize=4, value_width=24, sequences=4, group=2, labels=25 * 8,
        gradients=tuple(gradients),
    )  # fmt: skip
    assert launches.distinct == stated
    # Of one kernel alone: the other inputs are not even read.
    if gradients == "v":
        assert [launch.kernel for launch in launches] == ["backward_kv"]
        assert launches[0].loaded.keys() == {"q", "k", "grad", "lse", "documents"}
    if gradients == "q":
        assert [launch.kernel for launch in launches] == ["backward_q"]


def test_a_block_of_queries_loads_its_keys_once(force: Callable[[Config], None]) -> None:
    force(Config(True, 32, 16, 4, 1))
    with touched() as launches:
        short_swa(*inputs((1, 100, 16), axis=1), axis=1, window=20, rung="kernels")
    loaded = sum(launches[0].loaded[name].total for name in "qkv") + launches[0].stored["out"].total
    assert loaded == cost.forward_bytes(100, 20, 16, itemsize=4, block=32)


def test_an_upstream_gradient_is_read_where_it_lies(launches: list[tuple[Any, dict[str, Any]]]) -> None:
    tensors = inputs((1, 20, 16), axis=1)
    check(tensors, upstream=normal(1).expand(1, 20, 16), axis=1, window=5)
    turned = normal(16, 20, 1).permute(2, 1, 0)
    check(tensors, upstream=turned, axis=1, window=5)
    backward = [arguments for kernel, arguments in launches if kernel is not kernels.forward]
    assert [arguments["grad_strides"][:2] for arguments in backward] == [(0, 0)] * 2 + [(1, 20)] * 2
    assert backward[2]["grad"].data_ptr() == turned.data_ptr()


def test_half_precision(both_forms: None) -> None:
    check(inputs((1, 37, 24), axis=1, dtype=torch.float16), axis=1, window=7)


def test_window_one_returns_the_values(both_forms: None) -> None:
    q, k, v = inputs((1, 20, 16), axis=1)
    assert torch.equal(short_swa(q, k, v, axis=1, window=1, rung="kernels"), v)


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chunk, look-back 1": ({}, {"window": 7, "window_type": "chunk", "lookback": 1}),
    "chunk, look-back 0": ({}, {"window": 7, "window_type": "chunk", "lookback": 0}),
    "huge look-back": ({}, {"window": 2**31 - 1, "window_type": "chunk", "lookback": 2**31 - 1}),
    "documents": ({}, {"documents": torch.tensor([-3] * 7 + [2**40] * 10 + [0] * 8).view(1, 25, 1)}),
    "padding": ({}, {"valid": (torch.arange(25) > 4).view(1, 25, 1)}),
    "both, for each head": (
        {},
        {
            "documents": (torch.arange(50).view(1, 25, 2) // 21).int(),
            "valid": torch.arange(50).view(1, 25, 2) % 11 != 0,
        },
    ),
    "nothing valid": ({}, {"valid": torch.zeros(1, 25, 1, dtype=torch.bool)}),
    "grouped heads": ({"share": (2, 2)}, {"head_axis": 2}),
    "grouped heads, documents": (
        {"share": (2, 2)},
        {"head_axis": 2, "documents": torch.arange(50).view(1, 25, 2) // 30},
    ),
    "streaming": ({"n_q": 12}, {"query_start": 13}),
    "one query": ({"n_q": 1}, {"query_start": 24, "valid": (torch.arange(25) != 23).view(1, 25, 1)}),
    "scale": ({}, {"scale": -0.7}),
}


@pytest.mark.parametrize("name", CALLS)
def test_who_sees_whom(name: str, both_forms: None) -> None:
    shape, call = CALLS[name]
    check(inputs((1, 25, 2, 16), axis=1, **shape), **{"axis": 1, "window": 6} | call)


def test_heads_on_any_axis(both_forms: None) -> None:
    check(inputs((4, 2, 9, 16), axis=2, share=(0, 4)), axis=2, window=4, head_axis=0)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Every launch: the kernel, and the arguments it gets."""
    seen: list[tuple[Any, dict[str, Any]]] = []
    launch = kernels._launch

    def record(kernel: Any, call: Any, groups: int, count: int, tensors: dict[str, Tensor]) -> None:
        seen.append((kernel, call.arguments | tensors))
        launch(kernel, call, groups, count, tensors)

    monkeypatch.setattr(kernels, "_launch", record)
    return seen


def test_depth_and_tokens_are_one_kernel_told_other_strides(
    launches: list[tuple[Any, dict[str, Any]]],
) -> None:
    # L = 20 layers, B = 1, T = 3 tokens, D = 16, once over the layers and once, turned around, over "tokens".
    over_depth = inputs((20, 1, 3, 16), axis=0)
    over_tokens = [x.transpose(0, 2).contiguous() for x in over_depth]
    upstream = normal(20, 1, 3, 16, seed=5)
    depth = result_and_gradients("kernels", over_depth, upstream, axis=0, window=8)
    tokens = result_and_gradients("kernels", over_tokens, upstream.transpose(0, 2), axis=2, window=8)
    for name, array in depth.items():
        assert torch.equal(array, tokens[name].transpose(0, 2)), name

    names = [kernel.__name__ for kernel, _ in launches]
    assert names == ["forward", "backward_q", "backward_kv"] * 2
    for (kernel, arguments), tensors in zip(launches, [over_depth] * 3 + [over_tokens] * 3, strict=True):
        for name, mine in zip("qkv", tensors, strict=True):
            assert arguments[name].data_ptr() == mine.data_ptr(), "a copy was made"
            assert arguments[name].stride() == mine.stride(), "a copy was made"
        strides = (48, 1, 16) if kernel is launches[0][0] and arguments["q"].shape[0] == 20 else None
        assert strides is None or arguments["q_strides"] == strides
    differing = {key for key, value in launches[0][1].items() if isinstance(value, (int, tuple, float))}
    differing = {key for key in differing if launches[0][1][key] != launches[3][1][key]}
    assert differing == {"q_strides", "k_strides", "v_strides", "out_strides"}


def test_layouts_are_read_where_they_lie(
    launches: list[tuple[Any, dict[str, Any]]], both_forms: None
) -> None:
    buffer = torch.full((3, 2, 30, 40), float("nan"))
    sliced = buffer[1:, :, 4:25, 3:19]
    sliced.copy_(normal(2, 2, 21, 16))
    transposed = normal(16, 21, 2, 2, seed=1).permute(3, 2, 1, 0)
    expanded = normal(2, 1, 21, 16, seed=2).expand(2, 2, 21, 16)
    tensors = [sliced, transposed, expanded]
    check(tensors, axis=2, window=6)
    for name, mine in zip("qkv", tensors, strict=True):
        assert launches[0][1][name].data_ptr() == mine.data_ptr()
        assert launches[0][1][name].stride() == mine.stride()


def test_many_axes_that_cannot_be_merged(
    launches: list[tuple[Any, dict[str, Any]]], both_forms: None
) -> None:
    tensors = [normal(2, 3, 2, 2, 5, 16, seed=i).permute(3, 1, 4, 2, 0, 5) for i in range(3)]
    check(tensors, axis=2, window=3)
    assert launches[0][1]["LEVELS"] == 4


def test_upstream_gradients_in_any_layout(both_forms: None) -> None:
    tensors = inputs((1, 20, 2, 16), axis=1)
    check(tensors, torch.ones(()).expand(1, 20, 2, 16), axis=1, window=4)
    check(tensors, normal(1, 20, 16, 2).transpose(2, 3), axis=1, window=4)


def per_row(tensors: list[Tensor], window: int) -> dict[str, Tensor]:
    """Each row computed from what it sees and nothing else, in float64: where a NaN may go, and where not."""
    q, k, v = (x.detach().double().requires_grad_() for x in tensors)
    rows = []
    for i in range(q.shape[0]):
        seen = slice(max(0, i - window + 1), i + 1)
        rows.append(torch.softmax(k[seen] @ q[i] / q.shape[1] ** 0.5, 0) @ v[seen])
    out = torch.stack(rows)
    gradients = torch.autograd.grad(out, (q, k, v), normal(*out.shape, seed=9).double())
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *gradients), strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_and_infinity_reach_the_rows_that_see_them_and_no_other(
    place: int, bad: float, both_forms: None
) -> None:
    tensors = inputs((40, 16), axis=0)
    tensors[place][17, 3] = bad
    want = per_row(tensors, 6)
    got = result_and_gradients("kernels", tensors, axis=0, window=6)
    for name, truth in want.items():
        assert torch.equal(got[name].isnan(), truth.isnan()), name
    assert 0 < want["out"].isnan().any(1).sum() + want["out"].isinf().any(1).sum() <= 6
    eager = short_swa(*tensors, axis=0, window=6, rung="eager")
    assert torch.equal(got["out"].isnan(), eager.isnan())
    finite = {name: truth.where(truth.isfinite(), 0.0) for name, truth in want.items()}
    assert_close({name: x.where(x.isfinite(), 0.0) for name, x in got.items()}, finite)


@triton.jit
def one_key_too_many(query, key, rule, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    return (key >= 0) & (key <= query) & (query < rule[0]) & (query - key <= rule[1])


@triton.jit
def self_left_out(query, key, rule, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    return (key >= 0) & (key < query) & (query < rule[0]) & (query - key < rule[1])


# The loop of the shift form ends with the window, whatever the predicate says.
@pytest.mark.parametrize(
    ("form", "wrong"), [(TILE, one_key_too_many), (TILE, self_left_out), (SHIFT, self_left_out)]
)
def test_a_wrong_predicate_is_caught(
    form: Config, wrong: Any, force: Callable[[Config], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    force(form)
    monkeypatch.setattr(kernels, "_sees", wrong)
    with pytest.raises(AssertionError, match="error"):
        check(inputs((1, 20, 16), axis=1), axis=1, window=5)


def test_a_value_wider_than_the_kernels_hold_is_read_in_pieces() -> None:
    tensors = inputs((1, 5, 16), axis=1, value_width=300)
    check(tensors, axis=1, window=2)
    leaves = [x.requires_grad_() for x in tensors]
    with touched() as forward:
        out = short_swa(*leaves, axis=1, window=2, rung="kernels")
    with touched() as backward:
        torch.autograd.grad(out, leaves, out.detach())
    stated = cost.kernel_bytes(5, 2, 16, itemsize=4, value_width=300)
    assert (forward.distinct, backward.distinct) == stated


def test_an_empty_batch_is_an_empty_result() -> None:
    out = result_and_gradients("kernels", inputs((0, 5, 16), axis=1), axis=1, window=2)
    assert out["out"].shape == out["dq"].shape == (0, 5, 16)


def test_the_operator_is_registered_whole() -> None:
    q, k, v = (x.requires_grad_() for x in inputs((1, 6, 16), axis=1))
    arguments = (q, k, v, None, None, 1, None, 3, False, 0, 0, 0.25)
    torch.library.opcheck(kernels._forward, arguments)
    q, k, v = (x.detach() for x in (q, k, v))
    for needs in ((True, True, True), (False, False, True)):
        out, lse = kernels._forward(q, k, v, *arguments[3:])
        torch.library.opcheck(kernels._backward, (out, q, k, v, out, lse, *arguments[3:], *needs))


def test_a_full_graph_compile_changes_nothing() -> None:
    tensors = inputs((1, 20, 16), axis=1)

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.tanh(kernels._forward(q * 2, k, v, None, None, 1, None, 4, False, 0, 0, 0.25)[0])

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for needs in ((True, True, True), (True, False, False)):
        want, got = [], []
        for function, store in ((model, want), (compiled, got)):
            leaves = [x.clone().requires_grad_(need) for x, need in zip(tensors, needs, strict=True)]
            out = function(*leaves)
            asked = [x for x in leaves if x.requires_grad]
            store += [out.detach(), *torch.autograd.grad(out.sum(), asked)]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("dtype", "width", "sentence"),
    [
        (torch.float64, 16, "rung='eager'"),
        (torch.bfloat16, 16, "takes float32 or float16"),
        (torch.float32, 257, "at most 256, got 257"),
    ],
)
def test_what_the_kernels_do_not_take(dtype: torch.dtype, width: int, sentence: str) -> None:
    x = torch.zeros(1, 4, width, dtype=dtype)
    with pytest.raises(RungUnavailable, match=sentence):
        short_swa(x, x, x, axis=1, window=2, rung="kernels")


def test_a_launch_that_does_not_fit_says_which_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        arg_names = ()

        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            def launch(**arguments: Any) -> None:
                raise OutOfResources(70000, 65536, "shared memory")

            return launch

    monkeypatch.setattr(kernels, "forward", Full())
    x = torch.zeros(1, 4, 16)
    with pytest.raises(RungUnavailable, match=r"needs 70000 of shared memory .* cpu has 65536"):
        short_swa(x, x, x, axis=1, window=2, rung="kernels")


def test_no_sum_is_atomic() -> None:
    assert "tl.atomic" not in inspect.getsource(kernels)


def test_a_lone_key_of_minus_infinity_is_not_an_empty_window(both_forms: None) -> None:
    """A softmax over -inf alone has no value; only a query that sees nothing reads 0."""
    q, v = torch.ones(3, 8), torch.ones(3, 8)
    k = torch.ones(3, 8)
    k[0] = -torch.inf
    valid = torch.tensor([True, True, False])
    got = short_swa(q, k, v, window=1, axis=0, valid=valid, rung="kernels")
    want = short_swa(q, k, v, window=1, axis=0, valid=valid, rung="eager")
    assert got[0].isnan().all()
    assert torch.equal(got[1:], torch.stack([v[1], torch.zeros(8)]))
    torch.testing.assert_close(got, want, equal_nan=True)


def test_large_upstream_gradients_in_float16(both_forms: None) -> None:
    """What overflows on its way through float16 is computed again in float32."""
    q, k, v = (x.requires_grad_() for x in inputs((1, 40, 16), axis=1, dtype=torch.float16))
    upstream = (3e4 * torch.sign(normal(1, 40, 16))).half()
    gradients = [
        torch.autograd.grad(short_swa(q, k, v, window=6, axis=1, rung=rung), (q, k), upstream)
        for rung in ("kernels", "eager")
    ]
    for got, want in zip(*gradients, strict=True):
        assert torch.equal(got.isfinite(), want.isfinite())
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-3 * float(want.abs().max()))
