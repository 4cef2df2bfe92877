"""The kernels of delta_rewrite, interpreted, against `eager` in float64: every gradient of every input."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from compare import sliced, turned
from torch import Tensor

from t2lib.ops import RungUnavailable, Tape, _cases_delta_rewrite, _registry, delta_rewrite
from t2lib.ops._cases_delta_rewrite import rewritten
from t2lib.ops._kernel_cases import TOLERANCE, Example, error, errors, measure, normal, run
from t2lib.ops._touched import touched
from t2lib.ops.delta_rewrite import cost, kernels
from t2lib.ops.delta_rewrite.kernels import Config

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
NAMES = ("X", "k", "v", "beta")


def check(example: Example, dtype: torch.dtype = torch.float32) -> None:
    found = errors(example, dtype)
    assert set(found) > {f"gradient of {name}" for name in example.inputs}
    worst = max(found, key=lambda name: found[name])
    assert found[worst] <= TOLERANCE[dtype], f"{worst}: error {found[worst]:.1e}"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("example", _cases_delta_rewrite.examples(), ids=lambda example: example.what)
def test_results_gradients_and_the_bytes_stated(example: Example, dtype: torch.dtype) -> None:
    found, *bytes_touched = measure(example, dtype)
    assert max(found.values()) <= TOLERANCE[dtype], found
    assert example.stated is not None
    assert tuple(bytes_touched) == example.stated(dtype.itemsize)


def force(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setattr(kernels, "pick_config", lambda capability, d, d_v, dense: config)


# 37 rows in blocks of 16: two whole ones and a ragged tail.
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("erase", [True, False])
def test_every_configuration(
    erase: bool, held: bool, compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, Config(16, held, 4))
    check(rewritten(37, 3, (2,), erase=erase, return_parts=erase, compress=compress))


def test_a_held_state_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for held in (True, False):
        force(monkeypatch, Config(16, held, 4))
        passes = run(rewritten(37, 3, (2,)), "kernels", torch.float32, touched)
        for launches, name in ((passes.forward, "X"), (passes.backward, "d_after")):
            loaded = launches[0].loaded[name]
            assert loaded.total == (1 if held else 2) * loaded.distinct


@pytest.mark.parametrize("d", [1, 16, 24, 64, 1500])
def test_widths(d: int) -> None:
    check(rewritten(d, 2, (2,)))


@pytest.mark.parametrize("d_v", range(1, 9))
def test_every_number_of_channels(d_v: int) -> None:
    check(rewritten(10, d_v, (2,)))


@pytest.mark.parametrize("leading", [(1,), (2, 1, 2)])
def test_any_leading_axes(leading: tuple[int, ...]) -> None:
    check(rewritten(5, 2, leading, compress=True))


def test_no_leading_axis_at_all() -> None:
    X, k, v, beta = normal(5, 2), normal(5, seed=1), normal(2, seed=2), torch.tensor(0.7).double()
    got = delta_rewrite(X.float(), k.float(), v.float(), beta.float(), rung="kernels")
    assert error(got, delta_rewrite(X, k, v, beta, rung="eager")) <= TOLERANCE[torch.float32]


def test_a_batch_of_none() -> None:
    passes = run(rewritten(5, 2, (3, 0), compress=True), "kernels", torch.float32)
    assert passes.arrays["result 0"].shape == (3, 0, 5, 2)
    assert torch.equal(passes.arrays["gradient of compress"], torch.zeros(5, 2))


def test_more_tokens_than_a_chunk_of_the_compressor(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three chunks of three blocks of rows each, on one axis of programs.
    monkeypatch.setattr(kernels, "CHUNK", 2)
    force(monkeypatch, Config(16, True, 4))
    check(rewritten(37, 2, (5,), compress=True))


def test_target_and_gate_in_float32_beside_half_precision() -> None:
    inputs = [x.to(torch.float16) for x in rewritten(20, 4, (3,)).inputs.values()]
    inputs[2:] = [x.float() for x in inputs[2:]]
    leaves = [x.requires_grad_() for x in inputs]
    got = torch.autograd.grad(delta_rewrite(*leaves, rung="kernels").sum(), leaves)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = torch.autograd.grad(delta_rewrite(*wide, rung="eager").sum(), wide)
    for leaf, mine, truth in zip(leaves, got, want, strict=True):
        assert mine.dtype == leaf.dtype
        assert error(mine, truth) <= TOLERANCE[torch.float16]


@pytest.mark.parametrize("layout", [sliced, turned])
def test_layouts_are_read_where_they_lie(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    launch = kernels._launch

    def record(kernel: Any, arguments: dict[str, Any], config: Config) -> None:
        seen.append(arguments)
        launch(kernel, arguments, config)

    monkeypatch.setattr(kernels, "_launch", record)
    example = rewritten(10, 3, (2, 2), return_parts=True)
    inputs = {name: layout(x.float()).requires_grad_() for name, x in example.inputs.items()}
    got = example.call("kernels", inputs)
    upstream = [layout(normal(*x.shape, seed=7).float()) for x in got]
    gradients = torch.autograd.grad(got, list(inputs.values()), upstream)
    names = ("d_after", "d_reading", "d_correction")
    for name, x in (inputs | dict(zip(names, upstream, strict=True))).items():
        assert seen[-1][name].data_ptr() == x.data_ptr(), f"{name}: a copy was made"
        assert seen[-1][name].stride() == x.stride(), f"{name}: a copy was made"
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    want = example.call("eager", wide)
    truths = torch.autograd.grad(want, list(wide.values()), [x.double() for x in upstream])
    for mine, truth in zip((*got, *gradients), (*want, *truths), strict=True):
        assert error(mine.detach(), truth.detach()) <= TOLERANCE[torch.float32]


def test_d_innermost_stays_innermost() -> None:
    X = normal(2, 3, 10).float().mT.requires_grad_()
    after = delta_rewrite(X, normal(2, 10).float(), normal(2, 3).float(), normal(2).float(), rung="kernels")
    assert after.stride() == X.stride() == (30, 1, 10)
    (gradient,) = torch.autograd.grad(after.sum(), X)
    assert gradient.stride() == X.stride()


@pytest.mark.parametrize("erase", [True, False])
def test_upstream_gradients_of_stride_zero_and_results_left_unused(erase: bool) -> None:
    example = rewritten(10, 3, (2,), return_parts=True, compress=True, erase=erase)
    for used in ((0,), (1,), (2,), (3,), (0, 3)):
        found = []
        for rung, dtype in (("kernels", torch.float32), ("eager", torch.float64)):
            leaves = {name: x.to(dtype).requires_grad_() for name, x in example.inputs.items()}
            results = example.call(rung, leaves)
            total = sum(results[place].sum() for place in used)
            found.append(
                torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
            )
        for mine, truth in zip(*found, strict=True):
            assert error(mine, truth) <= TOLERANCE[torch.float32], used


NEEDS = [*((name,) for name in cost.NEEDS), ("X", "k"), ("v", "beta"), ("k", "v", "beta", "compress")]


@cache
def whole_call(erase: bool, parts: bool, compress: bool) -> tuple[Example, dict[str, Tensor]]:
    example = rewritten(10, 3, (2,), erase=erase, return_parts=parts, compress=compress)
    return example, run(example, "kernels", torch.float32).arrays


@pytest.mark.parametrize(("erase", "parts"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("needs", NEEDS, ids=str)
def test_only_the_gradients_that_are_wanted(needs: tuple[str, ...], erase: bool, parts: bool) -> None:
    for compress in (False, True):
        example, whole = whole_call(erase, parts, compress)
        inputs = {name: x for name, x in example.inputs.items() if name in needs}
        if not inputs:
            continue
        fixed = {name: x.float() for name, x in example.inputs.items() if name not in needs}

        def call(rung: str, given: dict[str, Tensor], example: Any = example, fixed: Any = fixed) -> Any:
            found = example.call(rung, {name: (fixed | given)[name] for name in example.inputs})
            return found if isinstance(found, tuple) else (found,)

        passes = run(example._replace(inputs=inputs, call=call), "kernels", torch.float32, touched)
        for name in inputs:
            assert torch.equal(passes.arrays[f"gradient of {name}"], whole[f"gradient of {name}"]), name
        stated = cost.kernel_bytes(
            10, 3, itemsize=4, tokens=2, erase=erase, parts=parts, compress=compress, needs=needs
        )
        assert passes.backward.distinct == stated[1]


@pytest.mark.parametrize("erase", [True, False])
@pytest.mark.parametrize("guard", ["eager", "none"])
@pytest.mark.parametrize("place", NAMES)
def test_nan_reaches_what_it_reaches_in_eager(place: str, guard: str, erase: bool) -> None:
    example = rewritten(5, 3, (2,), guard=guard, erase=erase)
    x = example.inputs[place]
    x[(1, *[0] * (x.ndim - 1))] = float("nan")
    want, got = (run(example, rung, torch.float32).arrays for rung in ("eager", "kernels"))
    for name, truth in want.items():
        assert torch.equal(got[name].isnan(), truth.isnan()), name


def test_a_zero_direction_changes_nothing() -> None:
    X, k, v, beta = (x.float() for x in rewritten(6, 2, (3,)).inputs.values())
    k = torch.zeros_like(k).requires_grad_()
    after = delta_rewrite(X, k, v, beta, rung="kernels")
    assert torch.equal(after, X)
    (gradient,) = torch.autograd.grad(after.square().sum(), k)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("erase", [True, False])
def test_a_chain_on_a_tape(erase: bool) -> None:
    def chain(rung: str, dtype: torch.dtype, tape: Tape | None) -> list[Tensor]:
        X, *rest = (normal(*shape, seed=s).to(dtype) for s, shape in enumerate(SHAPES))
        leaves = [x.requires_grad_() for x in (X, *rest)]
        for i in range(3):
            X = delta_rewrite(X, *(x[i] for x in rest), rung=rung, tape=tape, erase=erase)
        return [X.detach(), *torch.autograd.grad(X.square().sum(), leaves)]

    SHAPES = ((2, 6, 3), (3, 2, 6), (3, 2, 3), (3, 2))
    want = chain("eager", torch.float64, None)
    for mine, truth in zip(chain("kernels", torch.float32, Tape()), want, strict=True):
        assert error(mine, truth) <= 4 * TOLERANCE[torch.float32]


def test_compress_is_the_same_on_every_rung() -> None:
    X, k, v, beta, C = rewritten(6, 4, (3,), compress=True).inputs.values()
    after, reading, correction, read = delta_rewrite(
        X.numpy(), k.numpy(), v.numpy(), beta.numpy(), compress=C.numpy(), return_parts=True, rung="loops"
    )
    assert np.allclose(read, (after * C.numpy()).sum(-1), rtol=0, atol=1e-14)
    for rung, dtype in (("arrays", torch.float64), ("eager", torch.float64), ("kernels", torch.float32)):
        given = [x.to(dtype) for x in (X, k, v, beta)]
        found = delta_rewrite(*given, compress=C.to(dtype), return_parts=True, rung=rung)
        for mine, truth in zip(found, (after, reading, correction, read), strict=True):
            assert error(mine, torch.from_numpy(truth)) <= TOLERANCE[torch.float32], rung
        assert torch.equal(delta_rewrite(*given, compress=C.to(dtype), rung=rung)[1], found[3])
        on_tape = delta_rewrite(*given, compress=C.to(dtype), rung=rung, tape=Tape())[1]
        assert error(on_tape, torch.from_numpy(read)) <= TOLERANCE[torch.float32]
    with pytest.raises(ValueError, match=r"compress must have shape \(6, 4\); got \(4, 6\)"):
        delta_rewrite(X, k, v, beta, compress=C.T)


def test_offsets_beyond_two_to_the_31() -> None:
    # Memory that is not touched is not there: 4 GB of addresses, a few pages.
    far = 2**31 + 64
    buffer = torch.from_numpy(np.zeros(far + 64, np.float16))
    k, v, beta = torch.ones(2, 3).half(), torch.ones(2, 2).half(), torch.ones(2).half()
    for shape, strides in (((2, 3, 2), (far, 2, 1)), ((1, 2, 2), (1, far, 8))):
        X = buffer.as_strided(shape, strides)
        X.copy_(normal(*shape))
        given = (k[: shape[0], : shape[1]], v[: shape[0]], beta[: shape[0]])
        got = delta_rewrite(X, *given, rung="kernels")
        assert error(got, delta_rewrite(X.double(), *(x.double() for x in given))) <= TOLERANCE[torch.float16]


def test_a_product_of_a_stride_is_not_one_of_32_bits() -> None:
    # A stride below 2^31 is a number of 32 bits; its product with the number of a channel is not.
    step = 2**29
    buffer = torch.from_numpy(np.zeros(6 * step, np.float16))
    v = buffer.as_strided((2, 6), (8, step))
    v.copy_(normal(2, 6))
    X, k, beta = normal(2, 3, 6).half(), normal(2, 3).half(), torch.ones(2).half()
    got = delta_rewrite(X, k, v, beta, rung="kernels")
    assert error(got, delta_rewrite(*(x.double() for x in (X, k, v, beta)))) <= TOLERANCE[torch.float16]


plain = kernels._summed


@triton.jit
def half_the_reading(  # type: ignore[no-untyped-def]
    state, compress, view, k, k_step, floor,
    D: tl.constexpr, D_V: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, NORMED: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    found, length, blocks, directions = plain(
        state, compress, view, k, k_step, floor, D, D_V, CHANNELS, ROWS, HELD, NORMED, READS
    )
    return found * 0.5, length, blocks, directions


def test_a_wrong_reading_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_summed", half_the_reading)
    with pytest.raises(AssertionError, match="error"):
        check(rewritten(10, 3, (2,)))


def test_the_operator_is_registered_whole() -> None:
    given = [x.float().requires_grad_() for x in rewritten(3, 2, (2,), compress=True).inputs.values()]
    torch.library.opcheck(kernels._forward, (*given, 1e-10, True, True))
    X, k, v, beta, C = (x.detach() for x in given)
    arrive = (X, v, v, k)
    for needs in ([True] * 5, [False, True, True, False, False], [False] * 4 + [True]):
        known = (X, k, v, beta, C, v.clone(), v.clone())
        torch.library.opcheck(kernels._backward, (*known, *arrive, 1e-10, True, needs))


def test_a_full_graph_compile_changes_nothing() -> None:
    inputs = [x.float() for x in rewritten(3, 2, (2,)).inputs.values()]

    def model(*leaves: Tensor, erase: bool) -> Tensor:
        after = kernels._forward(*leaves, None, 1e-10, erase, False)[0]
        return kernels._forward(after, *leaves[1:], None, 1e-10, True, False)[0].square().sum()

    for erase in (True, False):
        found = []
        whole = torch.compile(partial(model, erase=erase), fullgraph=True, backend="aot_eager")
        for function in (partial(model, erase=erase), whole):
            leaves = [x.clone().requires_grad_() for x in inputs]
            out = function(*leaves)
            found.append((out.detach(), *torch.autograd.grad(out, leaves)))
        for mine, truth in zip(*found, strict=True):
            torch.testing.assert_close(mine, truth)


@pytest.mark.parametrize(
    ("dtype", "d_v", "sentence"),
    [
        (torch.float64, 2, "rung='eager'"),
        (torch.bfloat16, 2, "takes float32 or float16"),
        (torch.float32, 9, "a d_v of at most 8, got 9, takes rung='eager'"),
    ],
)
def test_what_the_kernels_do_not_take(dtype: torch.dtype, d_v: int, sentence: str) -> None:
    given = [x.to(dtype) for x in rewritten(3, d_v, (2,)).inputs.values()]
    with pytest.raises(RungUnavailable, match=sentence):
        delta_rewrite(*given, rung="kernels")


class OnAGpu(torch.Tensor):
    """A tensor that says it is on a GPU, to ask what "auto" takes there."""

    device = torch.device("cuda")
    is_cuda = True


def test_auto_takes_eager_for_what_the_kernels_refuse() -> None:
    rungs = [
        _registry.choose("delta_rewrite", torch.zeros(2, 4, d_v, dtype=dtype).as_subclass(OnAGpu))
        for d_v, dtype in ((8, torch.float32), (9, torch.float32), (8, torch.float64))
    ]
    assert rungs == ["kernels", "eager", "eager"]
