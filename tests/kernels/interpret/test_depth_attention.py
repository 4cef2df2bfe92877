"""The kernels of depth_attention, interpreted, against `eager` in float64: every gradient of every input."""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from t2lib.ops import RungUnavailable, _kernel_cases, depth_attention, merge
from t2lib.ops._cases_depth_attention import example, examples, joined
from t2lib.ops._kernel_cases import TOLERANCE, normal
from t2lib.ops._touched import touched
from t2lib.ops.depth_attention import kernels
from t2lib.ops.depth_attention.kernels import Config

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def check(one: Any, dtype: torch.dtype = torch.float32) -> None:
    for name, error in _kernel_cases.errors(one, dtype).items():
        assert error <= TOLERANCE[dtype], f"{name}: error {error:.1e}"


def gradients(rung: str, states: list[Tensor], query: Tensor, upstream: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (*states, query)]
    z = depth_attention(leaves[:-1], leaves[-1], rung=rung)
    return [z.detach(), *torch.autograd.grad(z, leaves, upstream)]


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def force(config: Config, most: int, unrolled: int = 2) -> None:
        monkeypatch.setattr(kernels, "pick_config", lambda *arguments, **keywords: config)
        monkeypatch.setattr(kernels, "MOST_STATES", most)
        monkeypatch.setattr(kernels, "group", lambda *arguments, **keywords: unrolled)

    return force


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("one", examples(), ids=lambda one: one.what)
def test_results_gradients_and_the_bytes_stated(one: Any, dtype: torch.dtype) -> None:
    errors, forward, backward = _kernel_cases.measure(one, dtype)
    assert max(errors.values()) <= TOLERANCE[dtype], errors
    assert (forward, backward) == one.stated(dtype.itemsize)


@pytest.mark.parametrize("queries", [0, 3])
@pytest.mark.parametrize("own", [False, True])
def test_the_bytes_of_several_launches(queries: int, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_STATES", 1)
    one = example("", (2, 16), 3, queries=queries, query=own and not queries, gain=own)
    _, forward, backward = _kernel_cases.measure(one, torch.float32)
    assert (forward, backward) == one.stated(4)


def test_the_bytes_of_more_queries_than_a_program_sums() -> None:
    one = example("", (2, 16), 2, queries=kernels.MOST_SUMS + 1)
    errors, forward, backward = _kernel_cases.measure(one, torch.float32)
    assert max(errors.values()) <= TOLERANCE[torch.float32], errors
    assert (forward, backward) == one.stated(4)


def some_gradients(one: Any, names: list[str]) -> tuple[dict[str, Tensor], int]:
    """Those of some inputs, the others needing none, and the bytes touched for them."""
    leaves = {name: x.float().requires_grad_(name in names) for name, x in one.inputs.items()}
    results = one.call("kernels", leaves)
    upstream = [normal(*x.shape, seed=90 + place).float() for place, x in enumerate(results)]
    with touched() as launches:
        found = torch.autograd.grad(results, [leaves[name] for name in names], upstream)
    return dict(zip(names, found, strict=True)), launches.distinct


SUBSETS = [["states"], ["shared"], ["own"], ["gain"], ["parts"], ["lses"], ["norm"]]
SUBSETS += [["states", "own"], ["shared", "gain"], ["parts", "lses"], ["states", "norm"], ["shared", "lses"]]


@pytest.mark.parametrize("needed", SUBSETS, ids="+".join)
def test_what_nobody_needs_is_not_computed(needed: list[str]) -> None:
    """Each gradient alone and a few together are those of the full pass, for the bytes that are stated."""
    own = "own" in needed or "gain" in needed
    ones = [joined("", (5, 24), 2, 3, query=own, norm=True, pseudo_query="gain" not in needed)]
    if needed[0] in ("states", "shared"):
        ones += [example("", (5, 24), 3, queries=3), example("", (5, 24), 3)]
    kinds = {"state": "states", "pseudo_query": "shared", "query": "own", "gain": "gain", "norm_gain": "norm"}
    kinds |= {"read": "parts", "lse": "lses"}
    for one in ones:
        names = [name for name in one.inputs if kinds[name.split()[0]] in needed]
        if not names:
            continue
        (found, bytes_touched), (full, most) = (
            some_gradients(one, some) for some in (names, list(one.inputs))
        )
        for name, x in found.items():
            assert torch.equal(x, full[name]), name
        assert bytes_touched == one.stated(4, needed)[1]
        assert bytes_touched < most


@pytest.mark.parametrize("states", [1, 4, 5])
def test_groups_of_states_that_lie_differently(states: int, force: Callable[..., None]) -> None:
    force(Config(2, 2, 1, 16, 2), 24)
    listed = [normal(3, 2, 17, seed=j).float() for j in range(states)]
    listed[1::2] = [x.permute(2, 1, 0).contiguous().permute(2, 1, 0) for x in listed[1::2]]
    listed[2:] = [x.repeat(1, 1, 2)[..., :17] for x in listed[2:]]
    query, upstream = normal(17, seed=50).float() / 4, normal(3, 2, 17, seed=51).float()
    got, want = (gradients(rung, listed, query, upstream) for rung in ("kernels", "eager"))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# Groups of queries, runs of tokens and blocks of channels with a ragged tail; one launch, and more than one;
# groups of states with a ragged tail.
@pytest.mark.parametrize("most", [24, 2])
@pytest.mark.parametrize(("queries", "held"), [(0, 1), (3, 1), (3, 2), (3, 4)])
def test_every_configuration(queries: int, held: int, most: int, force: Callable[..., None]) -> None:
    force(Config(held, 2, 1, 16, 2), most)
    check(example("", (3, 20), 3, queries=queries, gain=True))


def test_each_token_with_a_query_of_its_own_in_several_launches(force: Callable[..., None]) -> None:
    force(Config(1, 2, 1, 16, 2), 2)
    check(example("", (3, 20), 3, gain=True, query=True))
    check(example("", (3, 20), 3, query=True, pseudo_query=False))


@pytest.mark.parametrize("shape", [(1,), (24,), (2, 1), (1, 2, 13)])
def test_lengths_and_widths(shape: tuple[int, ...]) -> None:
    check(example("", shape, 2))


def test_more_queries_than_a_program_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_SUMS", 2)
    check(example("", (2, 16), 2, queries=3, gain=True))


def test_the_second_phase_goes_on_from_the_first() -> None:
    check(joined("", (2, 3, 20), 1, 1))


def test_two_phases_are_one_read() -> None:
    states = [normal(2, 24, seed=j).float() for j in range(3)]
    queries, gain = normal(2, 24, seed=9).float(), normal(24, seed=8).float()
    reads, lses = kernels.depth_attention(tuple(states[:2]), queries, None, None, 1e-6)
    z, lse, normed = depth_attention(
        states[2:], queries[1], parts=[(reads[1], lses[1])], norm_gain=gain, return_lse=True, rung="kernels"
    )
    want, whole = depth_attention(states, queries[1], return_lse=True, rung="eager")
    torch.testing.assert_close(z, want)
    torch.testing.assert_close(lse, whole)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(want, (24,), gain, 1e-6))


def test_layouts_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = torch.full((4, 3, 30), float("nan"))
    sliced = buffer[1:3, :2, 4:21]
    sliced.copy_(normal(2, 2, 17))
    states = [sliced, normal(17, 2, 2, seed=1).float().permute(2, 1, 0), normal(2, 2, 17, seed=2).float()]
    seen: list[dict[str, Any]] = []
    launch = kernels._Call.launch

    def record(call: Any, kernel: Any, programs: int, given: dict[str, Any]) -> None:
        seen.append(given)
        launch(call, kernel, programs, given)

    monkeypatch.setattr(kernels._Call, "launch", record)
    query, upstream = normal(17, seed=3).float() / 4, torch.ones(()).expand(2, 2, 17)
    got, want = (gradients(rung, states, query, upstream) for rung in ("kernels", "eager"))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(seen) == 2
    for given in seen:
        for mine, state in zip(given["states"], states, strict=True):
            assert mine.data_ptr() == state.data_ptr(), "a copy was made"
            assert mine.stride() == state.stride(), "a copy was made"


def test_queries_and_gains_in_any_layout() -> None:
    states = tuple(normal(2, 16, seed=j).float() for j in range(2))
    query, gain, lse = (normal(16, 3, seed=j).float().T[1] / 4 for j in (7, 8, 9))
    lse = lse[:2]

    def second_phase(query: Tensor, lse: Tensor, gain: Tensor) -> Any:
        options: dict[str, Any] = {"parts": [(states[0], lse)], "norm_gain": gain, "rung": "kernels"}
        return depth_attention(states, query, return_lse=True, **options)

    torch.testing.assert_close(
        second_phase(query, lse, gain), second_phase(query.clone(), lse.clone(), gain.clone())
    )
    own = normal(2, 16, seed=6).float() / 4
    a, b = (depth_attention(states, query, gain=gain, query=own, rung=rung) for rung in ("kernels", "eager"))
    torch.testing.assert_close(a, b)


def test_upstream_gradients_in_any_layout() -> None:
    states, query = [normal(2, 16, seed=j).float() for j in range(2)], normal(16, seed=9).float() / 4
    for upstream in (normal(16, 2).float().T, normal(2, 32).float()[:, ::2]):
        got, want = (gradients(rung, states, query, upstream) for rung in ("kernels", "eager"))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_reaches_its_own_token(bad: float) -> None:
    states, query = [normal(3, 16, seed=j).float() for j in range(3)], normal(16, seed=9).float() / 4
    states[1][2, 5] = bad
    got, want = (gradients(rung, states, query, torch.ones(3, 16)) for rung in ("kernels", "eager"))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
    assert got[0].isnan().any(-1).tolist() == [False, False, True]


def test_an_empty_part_has_no_weight() -> None:
    read, nothing = normal(2, 16).float(), torch.full((2,), float("-inf"))
    z, lse = merge([(read * 0, nothing), (read, torch.ones(2))], return_lse=True, rung="kernels")
    torch.testing.assert_close(z, read)
    torch.testing.assert_close(lse, torch.ones(2))


def test_an_offset_beyond_32_bits_without_the_memory() -> None:
    """Two tokens 2^31 numbers apart: pages of the map that nobody touches take no memory."""
    apart, width = 2**31 + 16, 16
    pages = mmap.mmap(-1, 4 * (apart + width), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    state = torch.frombuffer(pages, dtype=torch.float32).as_strided((2, width), (apart, 1))
    state.copy_(normal(2, width))
    torch.testing.assert_close(depth_attention([state, state], torch.ones(width), rung="kernels"), state + 0)


def test_an_empty_batch_is_an_empty_result() -> None:
    z, *rest = gradients("kernels", [torch.ones(0, 8)] * 2, torch.ones(8), torch.ones(0, 8))
    assert z.shape == rest[0].shape == (0, 8)
    assert torch.equal(rest[-1], torch.zeros(8))


@triton.jit
def without_the_norm(block, ask, above, norm, lse, delta):  # type: ignore[no-untyped-def]
    weight = tl.exp(tl.sum(block * ask) * norm - lse)
    d_score = weight * (tl.sum(block * above) - delta)
    return weight, d_score * norm, d_score * 0.0


@triton.jit
def without_shrinking(score, block, peak, total, mixed):  # type: ignore[no-untyped-def]
    new_peak = tl.maximum(peak, score)
    weight = tl.exp(score - new_peak)
    return new_peak, total + weight, mixed + weight * block


@pytest.mark.parametrize(
    ("name", "wrong"), [("_pull_back", without_the_norm), ("_absorb", without_shrinking)]
)
def test_a_wrong_formula_is_caught(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, name, wrong)
    with pytest.raises(AssertionError, match="error"):
        check(example("", (3, 16), 3))


def test_the_operators_are_registered_whole() -> None:
    states = [normal(1, 16, seed=j).float().requires_grad_() for j in range(2)]
    ask, read = (normal(1, 16).float() / 4).requires_grad_(), normal(1, 1, 16).float().requires_grad_()
    lse, gain = torch.ones(1, 1, requires_grad=True), torch.ones(16, requires_grad=True)
    torch.library.opcheck(kernels._forward, (states, ask, None, None, 1e-6, [read], [lse], gain, 1e-6))


@pytest.mark.parametrize("needs", [kernels.Needs(), kernels.Needs(states=False, parts=False)])
def test_the_operators_of_the_backward_pass_are_registered_whole(needs: kernels.Needs) -> None:
    state, ask, gain = normal(2, 16).float(), normal(1, 16, seed=1).float() / 4, torch.ones(16)
    z, lse, norms, _ = kernels._forward(
        [state], ask, state, gain, 1e-6, [state[None]], [state[None, :, 0]], None, 0.0
    )
    given = (z, lse, z, lse, norms, [state], ask, state, gain, [z], [lse], list(needs))
    torch.library.opcheck(kernels._backward, given)
    torch.library.opcheck(kernels._backward_norm, (z, z, z, gain, 1e-6, needs.states, True))


def test_a_full_graph_compile_changes_nothing() -> None:
    states, query = [normal(2, 16, seed=j).float() for j in range(2)], normal(1, 16, seed=9).float() / 4

    def model(a: Tensor, b: Tensor, query: Tensor) -> Tensor:
        return torch.tanh(kernels._forward([a * 2, b], query, None, None, 1e-6, [], [], None, 0.0)[0])

    want, got = [], []
    for function, store in ((model, want), (torch.compile(model, fullgraph=True, backend="aot_eager"), got)):
        leaves = [x.clone().requires_grad_() for x in (*states, query)]
        z = function(*leaves)
        store += [z.detach(), *torch.autograd.grad(z.sum(), leaves)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("dtype", "width", "sentence"),
    [
        (torch.float64, 4, "rung='eager'"),
        (torch.bfloat16, 4, "takes float32 or float16"),
        (torch.float32, 8193, "at most 8192, got 8193"),
    ],
)
def test_what_the_kernels_do_not_take(dtype: torch.dtype, width: int, sentence: str) -> None:
    x = torch.zeros(1, width, dtype=dtype)
    with pytest.raises(RungUnavailable, match=sentence):
        depth_attention([x], x[0], rung="kernels")


def test_no_sum_is_atomic() -> None:
    assert "tl.atomic" not in inspect.getsource(kernels)
