"""What delta_rewrite must satisfy, whoever computes it: its geometry, and its two other forms over depth."""

from __future__ import annotations

from typing import Any

import numpy as np

from t2lib.ops import _laws_streams
from t2lib.ops._laws import error, random
from t2lib.ops._laws_streams import Array, Operator, law

LAWS = _laws_streams.LAWS["delta_rewrite"]


def unit(*shape: int, seed: int = 0) -> Array:
    k = random(*shape, seed=seed)
    result: Array = k / np.sqrt((k * k).sum(-1, keepdims=True))
    return result


def shortcut(rewrite: Operator, k: Array, beta: float, **guard: Any) -> Array:
    """A = I − β k kᵀ: what the rewrite does to the columns of the identity when the target is 0."""
    d = k.shape[-1]
    result: Array = rewrite(np.eye(d), k, np.zeros(d), np.array(beta), **guard)
    return result


@law("delta_rewrite")
def delta_rewrite_definition(rewrite: Operator) -> float:
    """(I − β k kᵀ) X + β k vᵀ as matrices, for both guards and for none, with the erase and without."""
    X, k, v, beta = random(7, 4, seed=1), random(7, seed=2), random(4, seed=3), 0.7
    worst = 0.0
    for guard, floor in (("eager", 0.09), ("kernel", 7 * 0.09), ("none", None)):
        n = k if floor is None else k / np.sqrt(k @ k + floor)
        for erase in (True, False):
            A = np.eye(7) - beta * np.outer(n, n) * erase
            got = rewrite(X, k, v, np.array(beta), guard=guard, eps=0.3, erase=erase)
            worst = max(worst, error(got, A @ X + beta * np.outer(n, v)))
    return worst


@law("delta_rewrite")
def gate_zero_changes_nothing(rewrite: Operator) -> float:
    X = random(3, 6, 2, seed=1)
    return error(rewrite(X, random(3, 6, seed=2), random(3, 2, seed=3), np.zeros(3)), X)


@law("delta_rewrite")
def gate_one_overwrites(rewrite: Operator) -> float:
    """Behind it, the reading along k is the target."""
    X, k, v = random(3, 6, 2, seed=1), unit(3, 6, seed=2), random(3, 2, seed=3)
    after = rewrite(X, k, v, np.ones(3), guard="none")
    return error((k[..., None] * after).sum(-2), v)


@law("delta_rewrite")
def gate_two_reflects(rewrite: Operator) -> float:
    """The shortcut is a Householder reflection: orthogonal, its own inverse, and k goes to −k."""
    k = unit(6, seed=2)
    A = shortcut(rewrite, k, 2.0, guard="none")
    return max(error(A @ A.T, np.eye(6)), error(A @ A, np.eye(6)), error(A @ k, -k))


@law("delta_rewrite")
def spectrum_of_the_shortcut(rewrite: Operator) -> float:
    """1, d − 1 times, and 1 − βκ, with κ = |k|²/(|k|² + floor); determinant and trace follow."""
    worst = 0.0
    for scale, eps in ((1.0, 1e-5), (1e-1, 0.2)):
        k = scale * random(6, seed=2)
        kappa = (k @ k) / (k @ k + eps * eps)
        for beta in (0.0, 0.5, 1.0, 1.7, 2.0):
            A = shortcut(rewrite, k, beta, eps=eps)
            want = np.sort([1.0] * 5 + [1 - beta * kappa])
            worst = max(worst, error(np.sort(np.linalg.eigvalsh(A)), want), error(A, A.T))
            worst = max(worst, abs(np.linalg.det(A) - want.prod()), abs(np.trace(A) - want.sum()))
    return worst


@law("delta_rewrite")
def the_error_contracts(rewrite: Operator) -> float:
    """With e = k̂ᵀX − vᵀ: e behind = (1 − βκ) e before, with κ = |k̂|², which is 1 without a guard."""
    X, k, v = random(3, 6, 2, seed=1), unit(3, 6, seed=2), random(3, 2, seed=3)
    worst = 0.0
    for guard, kappa in (("none", 1.0), ("eager", 1 / 1.25), ("kernel", 1 / 2.5)):
        n = np.sqrt(kappa) * k
        before = (n[..., None] * X).sum(-2) - v
        for beta in (0.3, 1.0, 1.5, 2.0):
            after = rewrite(X, k, v, np.full(3, beta), guard=guard, eps=0.5)
            worst = max(worst, error((n[..., None] * after).sum(-2) - v, (1 - beta * kappa) * before))
    return worst


@law("delta_rewrite")
def the_state_grows_by_no_more_than_the_target(rewrite: Operator) -> float:
    """|X'| <= |X| + β|v| for 0 <= β <= 2; returned is the excess."""
    X, k, v = random(200, 4, 2, seed=1), random(200, 4, seed=2), random(200, 2, seed=3)
    beta = np.linspace(0, 2, 200)
    now, then = (np.sqrt((x * x).sum((-1, -2))) for x in (rewrite(X, k, v, beta), X))
    return float(np.maximum(now - then - beta * np.sqrt((v * v).sum(-1)), 0).max())


@law("delta_rewrite")
def the_sign_of_k_and_v_cancels(rewrite: Operator) -> float:
    X, k, v, beta = random(3, 6, 2, seed=1), random(3, 6, seed=2), random(3, 2, seed=3), random(3, seed=4)
    return error(rewrite(X, -k, -v, beta), rewrite(X, k, v, beta))


@law("delta_rewrite")
def a_zero_direction_writes_nothing(rewrite: Operator) -> float:
    X = random(3, 6, 2, seed=1)
    return error(rewrite(X, np.zeros((3, 6)), random(3, 2, seed=3), np.ones(3)), X)


def chain(rewrite: Operator, L: int = 5, T: int = 4, d: int = 6, d_v: int = 3, **options: Any) -> Any:
    """A chain of L rewrites of T tokens; returns its inputs and the last state."""
    X, k, v = random(T, d, d_v, seed=1), unit(L, T, d, seed=2), random(L, T, d_v, seed=3)
    beta = 1 + np.tanh(random(L, T, seed=4))
    state = X
    for i in range(L):
        state = rewrite(state, k[i], v[i], beta[i], guard="none", **options)
    return X, k, v, beta, state


@law("delta_rewrite")
def depth_is_the_delta_rule_with_tokens_as_batch(rewrite: Operator) -> float:
    """S_τ = S_{τ−1} − β k (kᵀS_{τ−1} − vᵀ), run for each token over its sublayers as over a sequence."""
    X, k, v, beta, after = chain(rewrite)
    states = []
    for t in range(X.shape[0]):
        S = X[t]
        for tau in range(k.shape[0]):
            S = S - beta[tau, t] * np.outer(k[tau, t], k[tau, t] @ S - v[tau, t])
        states.append(S)
    return error(after, np.stack(states))


@law("delta_rewrite")
def a_chain_is_one_triangular_solve(rewrite: Operator) -> float:
    """(I + D G) P = D (V − K X⁰), X = X⁰ + KᵀP, G the strict lower triangle of K Kᵀ."""
    X, k, v, beta, after = chain(rewrite)
    solved = []
    for t in range(X.shape[0]):
        K, D = k[:, t], np.diag(beta[:, t])
        P = np.linalg.solve(np.eye(len(K)) + D @ np.tril(K @ K.T, -1), D @ (v[:, t] - K @ X[t]))
        solved.append(X[t] + K.T @ P)
    return error(after, np.stack(solved))


@law("delta_rewrite")
def without_the_erase_it_is_a_sum_of_products(rewrite: Operator) -> float:
    """X⁰ + Σ k_i (β_i v_i)ᵀ; and x + k, the plain residual, where β v = |k|."""
    X, k, v, beta, after = chain(rewrite, erase=False)
    products = np.einsum("lti,lt,ltj->tij", k, beta, v)
    x, y = random(4, 6, 1, seed=1), random(4, 6, seed=5)
    length = np.sqrt((y * y).sum(-1, keepdims=True) + 1e-10)
    plain = rewrite(x, y, length, np.ones(4), erase=False)
    return max(error(after, X + products), error(plain, x + y[..., None]))
