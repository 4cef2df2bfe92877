"""Operators in compiled functions, their sizes and numbers as symbols, and under autocast."""

import subprocess
import sys

import pytest
import torch

from t2lib.ops import (
    delta_rewrite,
    depth_attention,
    depth_attention_partial,
    depth_mix,
    merge,
    short_conv,
    short_swa,
    sinkhorn,
    stream_mix,
)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def states(count, tokens):
    return [normal(tokens, 8) for _ in range(count)]


def two_phases(earlier, own, pseudo_queries):
    reads, lses = depth_attention_partial(earlier, pseudo_queries)
    read, lse = depth_attention_partial(own, pseudo_queries)
    return merge([(reads, lses), (read, lse)])


# A function and two calls of it, which differ in all that may differ.
CALLS = {
    "short_swa": (
        lambda q, k, window, scale: short_swa(q, k, k, window=window, axis=-2, scale=scale),
        [
            (normal(2, T, 8), normal(2, T, 8), window, scale)
            for T, window, scale in ((9, 3, 0.3), (1, 5, 0.5))
        ],
    ),
    "short_swa, chunks": (
        lambda q, window: short_swa(q, q, q, window=window, axis=-2, window_type="chunk"),
        [(normal(2, T, 8), window) for T, window in ((9, 3), (14, 5))],
    ),
    "depth_mix": (depth_mix, [(states(3, 9), normal(3)), (states(4, 5), normal(4))]),
    "depth_attention": (
        lambda given, w, eps: depth_attention(given, w, eps=eps),
        [(states(3, 9), normal(8), 1e-5), (states(4, 5), normal(8), 1e-6)],
    ),
    "two phases": (two_phases, [(states(3, T), states(1, T), normal(2, 8)) for T in (9, 5)]),
    "stream_mix": (
        lambda streams, mix, write, branch: stream_mix(streams, mix=mix, write=write, branch=branch),
        [(normal(T, n, 8), normal(n, n), normal(n), normal(T, 8)) for T, n in ((9, 3), (5, 4))],
    ),
    "sinkhorn": (
        lambda logits, iterations, eps: sinkhorn(logits, iterations=iterations, eps=eps),
        [(normal(9, 4, 4), 3, 1e-5), (normal(5, 4, 4), 5, 1e-6)],
    ),
    "delta_rewrite": (
        lambda X, k, v, beta, eps: delta_rewrite(X, k, v, beta, eps=eps),
        [(normal(T, 8, 2), normal(T, 8), normal(T, 2), normal(T), eps) for T, eps in ((9, 1e-5), (5, 1e-6))],
    ),
    "short_conv": (
        lambda x, weight: short_conv(x, weight, axis=-2, activation="silu"),
        [(normal(2, T, 8), normal(8, taps)) for T, taps in ((9, 3), (2, 4))],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_sizes_and_numbers_as_symbols(name):
    torch._dynamo.reset()
    function, calls = CALLS[name]
    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=True)
    for given in calls:
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-12, atol=1e-12)


def test_the_first_call_may_be_compiled():
    """In a process of its own: nothing is imported yet that a call would import."""
    program = """
import torch
from t2lib.ops import depth_mix
mix = torch.compile(lambda x, w: depth_mix([x, x], w), fullgraph=True, backend="eager")
assert torch.equal(mix(torch.ones(2, 3), torch.ones(2)), torch.full((2, 3), 2.0))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", CALLS)
def test_autocast_rounds_nothing_inside(name):
    """Sums are float32, whatever autocast would make of the products that they come from."""
    function, (given, *_) = CALLS[name]
    given = [_single(x) for x in given]
    want = function(*given)
    with torch.autocast("cpu", torch.bfloat16):
        got = function(*given)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def _single(x):
    if isinstance(x, list):
        return [_single(part) for part in x]
    return x.float() if isinstance(x, torch.Tensor) else x
