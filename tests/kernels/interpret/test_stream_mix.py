"""The kernels of stream_mix and of Sinkhorn, interpreted, against `eager` in float64: every gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from compare import sliced, turned
from torch import Tensor

from t2lib.ops import RungUnavailable, _cases_stream_mix, _registry, stream_mix
from t2lib.ops._cases_stream_mix import FORMS, mixed, projected
from t2lib.ops._kernel_cases import TOLERANCE, Example, error, errors, measure, normal, run
from t2lib.ops._touched import touched
from t2lib.ops.stream_mix import cost, kernels, sinkhorn

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def check(example: Example, dtype: torch.dtype = torch.float32) -> None:
    found = errors(example, dtype)
    assert set(found) > {f"gradient of {name}" for name in example.inputs}
    worst = max(found, key=lambda name: found[name])
    assert found[worst] <= TOLERANCE[dtype], f"{worst}: error {found[worst]:.1e}"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("example", _cases_stream_mix.examples(), ids=lambda example: example.what)
def test_results_gradients_and_the_bytes_stated(example: Example, dtype: torch.dtype) -> None:
    found, *bytes_touched = measure(example, dtype)
    assert max(found.values()) <= TOLERANCE[dtype], found
    assert example.stated is not None
    assert tuple(bytes_touched) == example.stated(dtype.itemsize)


def test_no_byte_is_touched_twice() -> None:
    example = mixed("all", 4, 20, (3,))
    passes = run(example, "kernels", torch.float32, touched)
    assert passes.forward.total == passes.forward.distinct
    assert passes.backward.total == passes.backward.distinct


# 300 channels and vectors of 128: two whole ones and a ragged tail.
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("n", [3, 5])
def test_every_configuration(n: int, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = kernels.pick_config
    monkeypatch.setattr(
        kernels, "pick_config", lambda _, name, streams, few: plain((7, 5), name, streams, few=few)
    )
    monkeypatch.setattr(kernels, "FEW", 10 if few else 0)
    check(mixed("all", n, 300, (2,)))


@pytest.mark.parametrize("width", [1, 16, 24, 64, 1500])
def test_widths(width: int) -> None:
    check(mixed("mix and write", 2, width, (2,)))


@pytest.mark.parametrize("leading", [(), (1,), (2, 1, 2)])
def test_any_leading_axes(leading: tuple[int, ...]) -> None:
    check(mixed("all", 2, 5, leading))


def test_a_batch_of_none() -> None:
    passes = run(mixed("all", 2, 5, (3, 0), per_token=False), "kernels", torch.float32)
    assert passes.arrays["result 0"].shape == (3, 0, 2, 5)
    assert torch.equal(passes.arrays["gradient of mix"], torch.zeros(2, 2))
    logits = torch.zeros(0, 2, 2, requires_grad=True)
    sinkhorn(logits, rung="kernels").sum().backward()
    assert logits.grad is not None
    assert logits.grad.shape == (0, 2, 2)


# Half precision beside float32 coefficients, as a doubly stochastic mix should be.
def test_coefficients_in_float32_beside_half_precision() -> None:
    example = mixed("all", 4, 20, (3,))
    leaves = {
        name: x.to(torch.float16 if name in ("streams", "branch") else torch.float32).requires_grad_()
        for name, x in example.inputs.items()
    }
    got = example.call("kernels", leaves)
    gradients = torch.autograd.grad(got, list(leaves.values()), [torch.ones_like(x) for x in got])
    wide = {name: x.detach().double().requires_grad_() for name, x in leaves.items()}
    want = example.call("eager", wide)
    truths = torch.autograd.grad(want, list(wide.values()), [torch.ones_like(x) for x in want])
    for x, mine, truth in zip(leaves.values(), gradients, truths, strict=True):
        assert mine.dtype == x.dtype
        assert error(mine, truth) <= TOLERANCE[x.dtype]
    for x, truth in zip(got, want, strict=True):
        assert x.dtype == torch.float16
        assert error(x.detach(), truth.detach()) <= TOLERANCE[x.dtype]


@pytest.mark.parametrize("layout", [sliced, turned])
def test_layouts_are_read_where_they_lie(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    launch = kernels._launch
    monkeypatch.setattr(kernels, "_launch", lambda kernel, args: (seen.append(args), launch(kernel, args)))
    example = mixed("all", 3, 10, (2, 2))
    inputs = {name: layout(x.float()).requires_grad_() for name, x in example.inputs.items()}
    upstream = [layout(normal(2, 2, 3, 10, seed=1).float()), layout(normal(2, 2, 10, seed=2).float())]
    got = example.call("kernels", inputs)
    gradients = torch.autograd.grad(got, list(inputs.values()), upstream)
    for name, x in (inputs | {"dnew": upstream[0], "dh": upstream[1]}).items():
        assert seen[-1][name].data_ptr() == x.data_ptr(), f"{name}: a copy was made"
        assert seen[-1][name].stride() == x.stride(), f"{name}: a copy was made"
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    want = example.call("eager", wide)
    truths = torch.autograd.grad(want, list(wide.values()), [x.double() for x in upstream])
    for mine, truth in zip((*got, *gradients), (*want, *truths), strict=True):
        assert error(mine.detach(), truth.detach()) <= TOLERANCE[torch.float32]


# A sum has an upstream gradient of stride 0, and each result may be left unused.
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_upstream_gradients_of_stride_zero_and_results_left_unused(used: tuple[int, ...]) -> None:
    example = mixed("all", 3, 10, (2,), per_token=False)
    found = []
    for rung, dtype in (("kernels", torch.float32), ("eager", torch.float64)):
        leaves = {name: x.to(dtype).requires_grad_() for name, x in example.inputs.items()}
        results = example.call(rung, leaves)
        total = sum(results[place].sum() for place in used)
        found.append(torch.autograd.grad(total, list(leaves.values()), materialize_grads=True))
    for mine, truth in zip(*found, strict=True):
        assert error(mine, truth) <= TOLERANCE[torch.float32]


NEEDS = [
    *((name,) for name in cost.NEEDS), ("streams", "branch"), ("mix", "write", "read"), ("streams", "mix"),
]  # fmt: skip


@cache
def whole_call(form: str, per_token: bool) -> tuple[Example, dict[str, Tensor]]:
    example = mixed(form, 3, 10, (2,), per_token=per_token)
    return example, run(example, "kernels", torch.float32).arrays


@pytest.mark.parametrize("form", ["all", "mix and write", "read"])
@pytest.mark.parametrize("needs", NEEDS, ids=str)
def test_only_the_gradients_that_are_wanted(needs: tuple[str, ...], form: str) -> None:
    for per_token in (True, False):
        example, whole = whole_call(form, per_token)
        inputs = {name: x for name, x in example.inputs.items() if name in needs}
        if not inputs:
            continue
        fixed = {name: x.float() for name, x in example.inputs.items() if name not in needs}

        def call(rung: str, given: dict[str, Tensor], example: Any = example, fixed: Any = fixed) -> Any:
            return example.call(rung, fixed | given)

        passes = run(example._replace(inputs=inputs, call=call), "kernels", torch.float32, touched)
        for name in inputs:
            assert torch.equal(passes.arrays[f"gradient of {name}"], whole[f"gradient of {name}"]), name
        has = {name: name in example.inputs for name in ("mix", "write", "read")}
        stated = cost.kernel_bytes(3, 10, itemsize=4, tokens=2, per_token=per_token, needs=needs, **has)
        assert passes.backward.distinct == stated[1]


def test_what_a_gradient_of_the_branch_alone_moves() -> None:
    # The gradient of the new streams and n numbers in, its own out; all gradients move almost three times it.
    sizes: dict[str, Any] = {"itemsize": 2, "tokens": 40, "read": False}
    alone = cost.kernel_bytes(4, 256, needs=("branch",), **sizes)[1]
    assert alone == 2 * 40 * (4 * 256 + 4 + 256) == 102_720
    assert cost.kernel_bytes(4, 256, **sizes)[1] == 289_920


@pytest.mark.parametrize("place", ["streams", "mix", "write", "branch", "read"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_reach_what_they_reach_in_eager(place: str, bad: float) -> None:
    example = mixed("all", 3, 5, (2,))
    x = example.inputs[place]
    x[(1, *[0] * (x.ndim - 1))] = bad
    want, got = (run(example, rung, torch.float32).arrays for rung in ("eager", "kernels"))
    for name, truth in want.items():
        assert torch.equal(got[name].isfinite(), truth.isfinite()), name
        if name.startswith("result") or bad != bad:
            assert torch.equal(got[name].isnan(), truth.isnan()), name


@pytest.mark.parametrize("iterations", [1, 2, 7, 20])
@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_sinkhorn_has_the_gradient_of_the_iteration_as_it_ran(iterations: int, eps: float) -> None:
    example = projected(3, (2,), iterations, eps)
    # Peaked logits converge slowly, so the gradient of the limit would be another one.
    check(example._replace(inputs={"logits": 4 * example.inputs["logits"]}))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_sinkhorn_of_any_size(n: int) -> None:
    check(projected(n, (2, 2), 2))


def test_sinkhorn_over_several_programs_and_a_ragged_tail() -> None:
    check(projected(4, (3, 100), 2))


@pytest.mark.parametrize("eps", [0.0, 1e-2])
def test_sinkhorn_in_other_layouts(eps: float) -> None:
    logits = normal(2, 2, 3, 3).float()
    want = sinkhorn(logits.double(), iterations=2, eps=eps, rung="eager")
    for layout in (sliced, turned):
        leaf = layout(logits).requires_grad_()
        got = sinkhorn(leaf, iterations=2, eps=eps, rung="kernels")
        assert error(got.detach(), want) <= TOLERANCE[torch.float32]
        # Rows sum to one whatever the logits are: nothing flows back from the sum of all.
        (gradient,) = torch.autograd.grad(got.sum(), leaf)
        assert gradient.abs().max() <= (1e-6 if eps == 0 else 1e-1)


def test_sinkhorn_keeps_a_nan_in_its_matrix() -> None:
    logits = normal(4, 3, 3).float()
    logits[1, 0, 2] = float("nan")
    found = []
    for rung in ("eager", "kernels"):
        leaf = logits.clone().requires_grad_()
        out = sinkhorn(leaf, iterations=2, rung=rung)
        (gradient,) = torch.autograd.grad(out.square().sum(), leaf)
        found.append((out.detach(), gradient))
    for mine, truth in zip(*found, strict=True):
        assert torch.equal(mine.isnan(), truth.isnan())
        assert mine[1].isnan().all()
        assert not mine[0].isnan().any()


def test_offsets_beyond_two_to_the_31() -> None:
    # Memory that is not touched is not there: 4 GB of addresses, a few pages.
    far = 2**31 + 64
    buffer = torch.from_numpy(np.zeros(far + 64, np.float16))
    streams = buffer.as_strided((2, 2, 3), (far, 8, 1))
    streams.copy_(normal(2, 2, 3))
    got = stream_mix(streams, read=torch.ones(2, dtype=torch.float16), rung="kernels")
    assert torch.equal(got, streams.sum(1))
    wide = buffer.as_strided((1, 2, 3), (1, far, 8))
    got = stream_mix(wide, read=torch.ones(2, dtype=torch.float16), rung="kernels")
    assert torch.equal(got, wide.sum(1))


def test_a_product_of_a_stride_is_not_one_of_32_bits() -> None:
    # Strides below 2^31 are numbers of 32 bits; their products with the number of a stream are not.
    step = 2**30
    buffer = torch.from_numpy(np.zeros(3 * step, np.float16))
    streams, read = buffer.as_strided((2, 3, 8), (8, step, 1)), buffer[64:].as_strided((3,), (step,))
    mix, write = (buffer[place:].as_strided((2, 2), (step, step // 2)) for place in (128, 192))
    for x in (streams, read, mix, write):
        x.copy_(normal(*x.shape))
    got = stream_mix(streams, read=read, rung="kernels")
    want = stream_mix(streams.double(), read=read.double())
    assert error(got, want) <= TOLERANCE[torch.float16]
    given = {"mix": mix, "write": write[0], "branch": torch.ones(2, 8).half()}
    got = stream_mix(streams[:, 1:], **given, rung="kernels")
    want = stream_mix(streams[:, 1:].double(), **{name: x.double() for name, x in given.items()})
    assert error(got, want) <= TOLERANCE[torch.float16]


@triton.jit
def not_transposed(mix, X, N: tl.constexpr, TRANSPOSED: tl.constexpr = False):  # type: ignore[no-untyped-def]
    found = ()
    for out in tl.static_range(N):
        total = mix[out * N] * X[0]
        for i in tl.static_range(1, N):
            total += mix[out * N + i] * X[i]
        found = found + (total,)  # noqa: RUF005
    return found


@triton.jit
def one_step_not_undone(M, gradient, total, AXIS: tl.constexpr, LOGS: tl.constexpr):  # type: ignore[no-untyped-def]
    return M + total, gradient


@pytest.mark.parametrize(
    ("name", "wrong", "example"),
    [
        ("_mixed", not_transposed, mixed("mix", 2, 5, (2,))),
        ("_undo", one_step_not_undone, projected(3, (2,), 2)),
    ],
    ids=["mix", "undo"],
)
def test_a_wrong_kernel_is_caught(
    name: str, wrong: Any, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, name, wrong)
    with pytest.raises(AssertionError, match="error"):
        check(example)


def test_the_operators_are_registered_whole() -> None:
    leaves = {name: x.float().requires_grad_() for name, x in mixed("all", 2, 3, (2,)).inputs.items()}
    torch.library.opcheck(
        kernels._forward, tuple(leaves[name] for name in ("streams", "mix", "write", "branch", "read"))
    )
    torch.library.opcheck(kernels._forward, (leaves["streams"], None, None, None, leaves["read"][0]))
    torch.library.opcheck(kernels._sinkhorn, (leaves["mix"], 2, 0.0))
    given = {name: x.detach() for name, x in leaves.items()}
    for needs in ([True] * 5, [False, True, False, True, False]):
        arrive = (given["streams"], given["branch"])
        torch.library.opcheck(kernels._backward, (*given.values(), *arrive, needs))
    torch.library.opcheck(kernels._sinkhorn_backward, (given["mix"], given["mix"], 2, 0.0))


def test_a_full_graph_compile_changes_nothing() -> None:
    inputs = mixed("all", 2, 3, (2,)).inputs

    def model(*leaves: Tensor) -> Tensor:
        streams, logits, write, branch, read = leaves
        new, h = kernels._forward(streams, kernels._sinkhorn(logits, 2, 0.0), write, branch, read)
        return new.square().sum() + h.sum()

    found = []
    for function in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        leaves = [x.float().requires_grad_() for x in inputs.values()]
        out = function(*leaves)
        found.append((out.detach(), *torch.autograd.grad(out, leaves)))
    for mine, truth in zip(*found, strict=True):
        torch.testing.assert_close(mine, truth)


def test_what_the_kernels_do_not_take() -> None:
    for dtype, n, sentence in (
        (torch.float64, 2, "rung='eager'"),
        (torch.bfloat16, 2, "takes float32 or float16"),
        (torch.float32, 9, "at most 8 streams, got 9, takes rung='eager'"),
    ):
        streams = torch.zeros(3, n, 4, dtype=dtype)
        with pytest.raises(RungUnavailable, match=sentence):
            stream_mix(streams, read=streams[0, :, 0], rung="kernels")
        with pytest.raises(RungUnavailable, match=sentence):
            sinkhorn(torch.zeros(n, n, dtype=dtype), rung="kernels")


class OnAGpu(torch.Tensor):
    """A tensor that says it is on a GPU, to ask what "auto" takes there."""

    device = torch.device("cuda")
    is_cuda = True


def test_auto_takes_eager_for_what_the_kernels_refuse() -> None:
    rungs = [
        _registry.choose("stream_mix", torch.zeros(2, n, 4, dtype=dtype).as_subclass(OnAGpu))
        for n, dtype in ((8, torch.float32), (9, torch.float32), (8, torch.float64))
    ]
    assert rungs == ["kernels", "eager", "eager"]


def test_every_form_is_an_example() -> None:
    assert {example.what.partition(",")[0] for example in _cases_stream_mix.examples()} >= set(FORMS)
