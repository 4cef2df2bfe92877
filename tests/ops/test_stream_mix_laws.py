"""stream_mix and sinkhorn: laws, golden vectors, gradients, dtypes; and that wrong ones would fail."""

import numpy as np
import pytest
import torch
from stream_cases import CPU_RUNGS, claims, draw, name_of

from t2lib.bench._measure import peak_of_tensors
from t2lib.ops import sinkhorn, stream_mix
from t2lib.ops._laws import error, random
from t2lib.ops._laws_streams import LAWS
from t2lib.ops.stream_mix import cost


@pytest.mark.parametrize("claim", claims("stream_mix"), ids=name_of)
def test_claims(claim):
    _, _, tolerance, measure = claim
    assert measure() <= tolerance


def transposed(X, *, mix=None, **others):
    return stream_mix(X, mix=None if mix is None else mix.swapaxes(-1, -2), **others)


def reads_before_it_writes(X, *, read=None, **others):
    if not others:
        return stream_mix(X, read=read)
    new = stream_mix(X, **others)
    return new if read is None else (new, stream_mix(X, read=read))


def writes_everywhere_alike(X, *, write=None, **others):
    return stream_mix(X, write=None if write is None else np.ones_like(write), **others)


def rows_first(logits, **others):
    return np.swapaxes(sinkhorn(np.swapaxes(logits, -1, -2), **others), -1, -2)


def one_too_many(logits, *, iterations=20, **others):
    return sinkhorn(logits, iterations=iterations + 1, **others)


@pytest.mark.parametrize(
    ("mutant", "operator", "name"),
    [
        (transposed, "stream_mix", "definition"),
        (transposed, "stream_mix", "stochastic mixes keep what they should"),
        (transposed, "stream_mix", "one hot weights pick and permute"),
        (reads_before_it_writes, "stream_mix", "definition"),
        (reads_before_it_writes, "stream_mix", "one stream is the plain residual"),
        (writes_everywhere_alike, "stream_mix", "definition"),
        (rows_first, "sinkhorn", "definition"),
        (rows_first, "sinkhorn", "rows are exact and columns converge"),
        (rows_first, "sinkhorn", "symmetries of the projection"),
        (one_too_many, "sinkhorn", "definition"),
    ],
)
def test_a_wrong_operator_breaks_the_laws(mutant, operator, name):
    assert not LAWS[operator][name](mutant) <= 1e-4


@pytest.mark.parametrize("iterations", range(1, 21))
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_gradients_of_sinkhorn_at_every_number_of_iterations(iterations, eps):
    """Logits of scale 3, where the iteration and its gradient are far from their limits."""
    logits = 3 * draw(1, 4, 4, seed=iterations).detach()
    torch.autograd.gradcheck(lambda x: sinkhorn(x, iterations=iterations, eps=eps), logits.requires_grad_())


@pytest.mark.parametrize("rung", CPU_RUNGS)
def test_a_row_whose_exponentials_are_all_zero(rung):
    M = sinkhorn(np.array([[0.0, 0.0], [-800.0, -800.0]]), eps=0.0, rung=rung)
    assert np.allclose(M, 0.5, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_huge_logits_stay_finite(rung, eps):
    logits = (200 * random(3, 4, 4)).astype(np.float32)
    M = sinkhorn(logits, eps=eps, rung=rung)
    assert np.isfinite(M).all()
    assert error(M.sum(-1), np.ones((3, 4))) <= 1e-5
    x = torch.from_numpy(logits).requires_grad_()
    sinkhorn(x, eps=eps)[:, 0, 0].sum().backward()
    assert torch.isfinite(x.grad).all()


def test_mean_error_of_the_columns_after_twenty_iterations():
    """Convergence is slow for peaked logits: the worst column is off by 2e-7, 6e-4 and 9e-3 on average."""
    for scale, low, high in ((1, 5e-8, 8e-7), (2, 4e-4, 9e-4), (4, 7e-3, 1.1e-2)):
        M = sinkhorn(scale * random(2000, 4, 4, seed=3))
        assert low <= np.abs(M.sum(-2) - 1).max(-1).mean() <= high


def test_a_product_of_many_mixes_is_bounded():
    product = np.eye(4)
    for M in sinkhorn(8 * random(60, 4, 4, seed=5)):
        product = M @ product
    assert error(product.sum(-1), np.ones(4)) <= 1e-12
    assert product.sum(-2).max() <= 4


def forms(leading=(2, 3)):
    M, w, a, y = random(*leading, 4, 4), random(*leading, 4), random(*leading, 4), random(2, 3, 6)
    return {
        "read": {"read": a},
        "mix": {"mix": M},
        "write": {"write": w, "branch": y},
        "mix and write": {"mix": M, "write": w, "branch": y},
        "all": {"mix": M, "write": w, "branch": y, "read": a},
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_gradients_of_every_form(form, leading):
    names, given = zip(*forms(leading)[form].items(), strict=True)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (random(2, 3, 4, 6, seed=9), *given)]

    def function(X, *given):
        return stream_mix(X, **dict(zip(names, given, strict=True)))

    torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_narrow_dtypes_sum_in_float32(rung, dtype, tolerance):
    arrays = {"streams": random(2, 3, 4, 6, seed=9), **forms()["all"]}
    narrow = {name: torch.from_numpy(x).to(getattr(torch, dtype)) for name, x in arrays.items()}
    found = stream_mix(**narrow, rung=rung)
    wanted = stream_mix(**{name: x.double() for name, x in narrow.items()})
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == narrow["streams"].dtype
        assert (got.double() - want).abs().max() <= tolerance * want.abs().max()


def test_coefficients_may_stay_in_float32():
    X = draw(3, 4, 6, seed=1, dtype=torch.bfloat16)
    mix = sinkhorn(draw(3, 4, 4, seed=2, dtype=torch.float32))
    new = stream_mix(X, mix=mix)
    assert new.dtype == torch.bfloat16
    want = stream_mix(X.double(), mix=mix.double())
    assert (new.double() - want).abs().max() <= 4e-3 * want.abs().max()


@pytest.mark.parametrize("rung", ["arrays", "eager"])
def test_a_nan_stays_in_its_token_and_channel(rung):
    X, given = random(2, 3, 4, 6, seed=9), forms()["all"]
    X[1, 2, 3, 4] = np.nan
    for got, want in zip(
        stream_mix(X, **given, rung=rung), stream_mix(X, **given, rung="loops"), strict=True
    ):
        assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want).sum() == 1


@pytest.mark.parametrize("rung", ["arrays", "eager"])
@pytest.mark.parametrize(("n", "d"), [(1, 5), (2, 1), (3, 17), (4, 64), (8, 24)])
@pytest.mark.parametrize("tokens", [0, 1, 300])
def test_numbers_of_streams_widths_and_lengths(rung, n, d, tokens):
    X, y = random(tokens, n, d, seed=1), random(tokens, d, seed=2)
    M, w, a = random(tokens, n, n, seed=3), random(n, seed=4), random(tokens, n, seed=5)
    found, wanted = (stream_mix(X, mix=M, write=w, branch=y, read=a, rung=which) for which in (rung, "loops"))
    assert max(error(got, want) for got, want in zip(found, wanted, strict=True)) <= 1e-12


def test_memory_is_linear_in_the_length():
    peaks = []
    for tokens in (500, 1000):
        X, M = draw(tokens, 4, 32, seed=1), draw(tokens, 4, 4, seed=2)
        peaks.append(peak_of_tensors(lambda X=X, M=M: stream_mix(X, mix=M).sum().backward()))
    assert peaks[1] <= 2.1 * peaks[0]


def test_costs_are_those_of_the_cost_page():
    n, d = 4, 768
    # Static FLOPs of Hyper-Connections: 2 n d (n + 2).
    assert cost.forward_flops(n, d) == 2 * n * d * (n + 2)
    # A read, and then mix and write: (3 n + 2) d elements.
    alone = cost.forward_bytes(n, d, itemsize=2, mix=False, write=False, per_token=False)
    rest = cost.forward_bytes(n, d, itemsize=2, read=False, per_token=False)
    assert alone + rest == 2 * (3 * n + 2) * d
    per_token = cost.forward_bytes(n, d, itemsize=2) - cost.forward_bytes(n, d, itemsize=2, per_token=False)
    assert per_token == 2 * (n * n + 2 * n)
    assert cost.sinkhorn_flops(4, 20, tokens=3) == 3 * 4 * 16 * 20
