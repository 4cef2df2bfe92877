"""delta_rewrite: its laws, its golden vectors, its gradients and the tape; and that wrong ones would fail."""

import numpy as np
import pytest
import torch
from stream_cases import CPU_RUNGS, claims, draw, name_of

from t2lib.bench._measure import peak_of_arrays, peak_of_tensors
from t2lib.ops import Tape, delta_rewrite, rewind
from t2lib.ops._laws import random
from t2lib.ops._laws_delta import LAWS
from t2lib.ops.delta_rewrite import cost


@pytest.mark.parametrize("claim", claims("delta_rewrite"), ids=name_of)
def test_claims(claim):
    _, _, tolerance, measure = claim
    assert measure() <= tolerance


def no_gate(X, k, v, beta, **options):
    return delta_rewrite(X, k, v, np.ones_like(beta), **options)


def no_target(X, k, v, beta, **options):
    return delta_rewrite(X, k, 0 * v, beta, **options)


def never_erases(X, k, v, beta, **options):
    return delta_rewrite(X, k, v, beta, **options | {"erase": False})


def always_erases(X, k, v, beta, **options):
    return delta_rewrite(X, k, v, beta, **options | {"erase": True})


def other_guard(X, k, v, beta, **options):
    other = {"eager": "kernel", "kernel": "eager", "none": "none"}[options.get("guard", "eager")]
    return delta_rewrite(X, k, v, beta, **options | {"guard": other})


def overshoots(X, k, v, beta, **options):
    return delta_rewrite(X, k, v, np.asarray(1.2 * beta), **options)


MUTANTS = {
    no_gate: ("gate zero changes nothing", "gate two reflects", "spectrum of the shortcut"),
    no_target: ("gate one overwrites", "the error contracts", "a chain is one triangular solve"),
    never_erases: ("spectrum of the shortcut", "gate two reflects",
                   "depth is the delta rule with tokens as batch"),
    always_erases: ("definition", "without the erase it is a sum of products"),
    other_guard: ("definition", "the error contracts"),
    overshoots: ("gate one overwrites", "gate two reflects", "the state grows by no more than the target"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_rewrite_breaks_the_laws(mutant):
    for name in MUTANTS[mutant]:
        assert not LAWS[name](mutant) <= 1e-3, name


def test_the_sign_law_sees_a_target_that_ignores_it():
    assert LAWS["the sign of k and v cancels"](lambda X, k, v, b: delta_rewrite(X, k, abs(v), b)) > 0.1


@pytest.mark.parametrize("erase", [True, False])
@pytest.mark.parametrize("guard", ["eager", "kernel", "none"])
@pytest.mark.parametrize("parts", [True, False])
def test_gradients_of_every_form(guard, erase, parts):
    inputs = draw(3, 5, 2, seed=1), draw(3, 5, seed=2), draw(3, 2, seed=3), draw(3, seed=4)

    def form(*inputs, tape=None):
        use = {"guard": guard, "erase": erase, "return_parts": parts, "tape": tape}
        return delta_rewrite(*inputs, **use)

    torch.autograd.gradcheck(form, inputs)
    torch.autograd.gradcheck(lambda *inputs: form(*inputs, tape=Tape()), inputs)


def test_parts_alone_have_gradients_too():
    inputs = draw(3, 5, 2, seed=1), draw(3, 5, seed=2), draw(3, 2, seed=3), draw(3, seed=4)
    for part in (1, 2):
        torch.autograd.gradcheck(
            lambda *inputs, part=part: delta_rewrite(*inputs, return_parts=True)[part], inputs
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_zero_direction_has_finite_gradients(dtype):
    inputs = [draw(2, 4, 3, seed=1, dtype=dtype), torch.zeros(2, 4, dtype=dtype, requires_grad=True)]
    inputs += [draw(2, 3, seed=3, dtype=dtype), draw(2, seed=4, dtype=dtype)]
    gradients = torch.autograd.grad(delta_rewrite(*inputs).sum(), inputs)
    assert torch.equal(delta_rewrite(*inputs), inputs[0])
    # Next to a zero direction the gradient is |∂k̂|/eps: large, and beyond the range of float16 infinite.
    assert all(torch.isfinite(x).all() for x in gradients[2:] + gradients[:1])
    assert dtype == torch.float16 or torch.isfinite(gradients[1]).all()


def test_an_upstream_gradient_of_stride_zero_and_one_of_a_slice():
    inputs = draw(3, 5, 2, seed=1), draw(3, 5, seed=2), draw(3, 2, seed=3), draw(3, seed=4)
    after = delta_rewrite(*inputs)
    for cotangent in (torch.ones(1, 1, 1, dtype=torch.float64).expand(3, 5, 2),
                      torch.full((5, 7, 4), torch.nan, dtype=torch.float64)[1:4, 1:6, 1:3]):  # fmt: skip
        if cotangent.isnan().any():
            cotangent.copy_(draw(3, 5, 2, seed=9).detach())
        plain = cotangent.clone(memory_format=torch.contiguous_format)
        one, other = (torch.autograd.grad(after, inputs, x, retain_graph=True) for x in (cotangent, plain))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_second_order_is_refused():
    inputs = draw(3, 5, 2, seed=1), draw(3, 5, seed=2), draw(3, 2, seed=3), draw(3, seed=4)
    (gradient,) = torch.autograd.grad(delta_rewrite(*inputs).square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize("guard", ["eager", "kernel"])
@pytest.mark.parametrize(("dtype", "eps"), [(np.float16, 1e-30), (np.float32, 1e-30), (np.float64, 1e-200)])
def test_a_zero_direction_under_an_eps_whose_square_is_zero(dtype, eps, guard, rung):
    inputs = random(3, 4, 2), np.zeros((3, 4)), random(3, 2), random(3)
    X, k, v, beta = (x.astype(dtype) for x in inputs)
    assert np.array_equal(delta_rewrite(X, k, v, beta, guard=guard, eps=eps, rung=rung), X)
    assert np.array_equal(rewind(X, k, v, guard=guard, eps=eps), X)


@pytest.mark.parametrize("rung", CPU_RUNGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_narrow_dtypes_sum_in_float32(rung, dtype, tolerance):
    narrow = [draw(5, 64, 3, seed=1), draw(5, 64, seed=2), draw(5, 3, seed=3), draw(5, seed=4)]
    narrow = [x.detach().to(getattr(torch, dtype)) for x in narrow]
    after, reading, correction = delta_rewrite(*narrow, rung=rung, return_parts=True)
    want, want_reading, _ = delta_rewrite(*(x.double() for x in narrow), rung="eager", return_parts=True)
    assert after.dtype == narrow[0].dtype
    assert reading.dtype == correction.dtype == torch.float32
    assert (after.double() - want).abs().max() <= tolerance * want.abs().max()
    assert (reading.double() - want_reading).abs().max() <= 1e-5


def test_coefficients_may_stay_in_float32():
    X, k = draw(5, 8, 3, seed=1, dtype=torch.bfloat16), draw(5, 8, seed=2, dtype=torch.bfloat16)
    v, beta = draw(5, 3, seed=3, dtype=torch.float32), draw(5, seed=4, dtype=torch.float32)
    gradients = torch.autograd.grad(delta_rewrite(X, k, v, beta).float().sum(), (X, k, v, beta))
    assert [x.dtype for x in gradients] == [torch.bfloat16] * 2 + [torch.float32] * 2


@pytest.mark.parametrize("rung", ["arrays", "eager"])
def test_a_nan_stays_in_its_token_and_channel(rung):
    X, k, v, beta = (x.detach().numpy() for x in (draw(4, 5, 3), draw(4, 5), draw(4, 3), draw(4)))
    X[2, 1, 0] = np.nan
    want = delta_rewrite(X, k, v, beta, rung="loops")
    assert np.array_equal(np.isnan(delta_rewrite(X, k, v, beta, rung=rung)), np.isnan(want))
    assert np.isnan(want).sum() == 5


def test_a_rewrite_holds_the_result_and_the_direction():
    """Beside the new state no more than the divided direction, a fourth of it, and a block."""
    given = [draw(*s, dtype=torch.float32).detach() for s in ((512, 256, 4), (512, 256), (512, 4), (512,))]
    most = 1.5 * given[0].nbytes
    assert peak_of_tensors(lambda: delta_rewrite(*given)) < most
    assert peak_of_arrays(lambda: delta_rewrite(*(x.numpy() for x in given))) < most


def chain_loss(X, k, v, beta, tape):
    for i in range(len(k)):
        X = delta_rewrite(X, k[i], v[i], beta[i], tape=tape)
    return X.square().sum()


def test_peak_memory_of_24_sublayers_with_and_without_a_tape():
    """A state is d_v = 4 times a direction. The tape saves 23 of 25 states forward and 16 of 27 in all.

    Of the other 11, the gradients of the 24 directions are 6.
    """
    L, T, d, d_v = 24, 64, 64, 4
    X = draw(T, d, d_v, seed=1)
    k, v, beta = ([draw(T, *s, seed=i) for i in range(L)] for s in ((d,), (d_v,), ()))
    leaves, forward, both, gradients = [X, *k, *v, *beta], [], [], []
    for make in (lambda: None, Tape):
        forward.append(peak_of_tensors(lambda make=make: chain_loss(X, k, v, beta, make())))

        def step(make=make):
            return torch.autograd.grad(chain_loss(X, k, v, beta, make()), leaves)

        both.append(peak_of_tensors(step))
        gradients.append(step())
    assert all((a - b).abs().max() <= 1e-10 * b.abs().max() for a, b in zip(*gradients, strict=True))
    state = T * d * d_v * 8
    assert forward[0] >= 24 * state
    assert forward[1] <= 4 * state
    assert both[1] <= both[0] - 15 * state


def test_a_tape_can_be_run_backward_twice_and_in_part():
    leaves = [draw(4, 6, 2, seed=1), draw(5, 4, 6, seed=2), draw(5, 4, 2, seed=3), draw(5, 4, seed=4)]
    tape = Tape()
    loss = chain_loss(*leaves, tape)
    assert len(tape) == 5
    first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert (tape.state(0) - leaves[0]).abs().max() <= 1e-14
    assert tape.state(5).shape == leaves[0].shape


def test_a_tape_notices_another_state_and_a_change_in_place():
    X, k, v, beta = draw(4, 6, 2, seed=1), draw(4, 6, seed=2), draw(4, 2, seed=3), draw(4, seed=4)
    tape = Tape()
    after = delta_rewrite(X, k, v, beta, tape=tape)
    with pytest.raises(ValueError, match="X must be the state that the last rewrite on the tape returned"):
        delta_rewrite(after + 1, k, v, beta, tape=tape)
    assert len(tape) == 1
    # Between two rewrites as well as after the last one.
    changed = Tape()
    once = delta_rewrite(X.detach(), k, v, beta, tape=changed)
    once.detach().mul_(2)
    with pytest.raises(ValueError, match="returned, unchanged; got another"):
        delta_rewrite(once, k, v, beta, tape=changed)
    after.detach().add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        after.sum().backward()


def test_rewind_of_a_chain_and_of_a_tensor():
    states, parts = [draw(4, 6, 2, seed=1).detach()], []
    for i in range(24):
        k, v, beta = (
            draw(4, 6, seed=3 * i).detach(),
            draw(4, 2, seed=3 * i + 1).detach(),
            torch.ones(4).double(),
        )
        after, _, correction = delta_rewrite(states[-1], k, v, beta, return_parts=True)
        states.append(after)
        parts.append((k, correction))
    X = states[-1]
    for i in reversed(range(24)):
        X = rewind(X, *parts[i])
        assert (X - states[i]).abs().max() <= 1e-13


def test_costs_are_those_of_the_cost_page():
    """The rewrite inside (8 d_v + 5) d: without gate 2 d, target 2 d d_v and compressor 2 d d_v."""
    d, d_v = 768, 4
    assert cost.forward_flops(d, d_v) == (8 * d_v + 5) * d - 2 * d - 4 * d * d_v
    assert cost.forward_flops(d, 1, erase=False) == 5 * d
    # In units of d, without the small vectors: 9 forward and 14 backward for d_v = 4.
    assert cost.forward_bytes(d, d_v, itemsize=2) == 2 * (9 * d + 5)
    assert cost.backward_bytes(d, d_v, itemsize=2) == 2 * (14 * d + 18)
    assert cost.kept_numbers(d, d_v) - cost.kept_numbers(d, d_v, tape=True) == d * d_v
