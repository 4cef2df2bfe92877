"""Hyper-Connections, free and on the manifold: rank, stochastic rows, start."""

import pytest
import torch
from sublayers import close, rms_norm

from t2lib.ops.stream_mix import eager as stream_rung
from t2lib.streams import build
from t2lib.streams.stream import run


def realised(name, blocks=6, width=5, spread=0.5, **options):
    torch.manual_seed(0)
    stream = build(name, width=width, blocks=blocks, **options).double()
    for parameter in stream.parameters():
        parameter.data.add_(spread * torch.randn_like(parameter))
    x = torch.randn(3, width).double()
    record = run(stream, x, [lambda h, i=i: torch.sin((i + 1) * h) for i in range(2 * blocks)])
    return stream.mixing_matrix(x, record.branches)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hyper_connections", {}),
        ("hyper_connections", {"dynamic": False}),
        ("manifold_hyper_connections", {}),
    ],
)
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_blocks_below_the_diagonal_have_rank_n_at_most(name, options, streams):
    """Readers k.. against sources ..k-1: everything passes through n streams. The largest rank is reached."""
    matrix = realised(name, streams=streams, **options)[..., 0]
    ranks = [int(torch.linalg.matrix_rank(matrix[k:, : k + 1], rtol=1e-10)) for k in range(12)]
    assert ranks == [min(streams, k + 1, 13 - k) for k in range(12)]


def test_manifold_never_subtracts_and_rows_of_its_mix_are_exact():
    assert (realised("manifold_hyper_connections") >= 0).all()
    torch.manual_seed(0)
    stream = build("manifold_hyper_connections", width=5, blocks=2).double()
    stream.phi.data.normal_(std=0.5)
    stream.scales.data.fill_(1.0)
    read, mix, write = stream.coefficients(torch.randn(7, 4, 5).double(), 0)
    assert (mix > 0).all()
    assert (mix.sum(-1) - 1).abs().max() < 1e-14
    # Columns only nearly, but much more nearly than without the iteration.
    assert 1e-14 < (mix.sum(-2) - 1).abs().max() < 0.3
    assert ((read > 0) & (read < 1)).all()
    assert ((write > 0) & (write < 2)).all()


def test_free_weights_may_be_negative():
    assert (realised("hyper_connections") < 0).any()


@pytest.mark.parametrize("options", [{}, {"dynamic": False}, {"streams": 2}, {"tanh": False, "norm": "rms"}])
def test_free_starts_as_copies_of_the_plain_stream(options):
    """Every read is the plain one, to the bit; the output is n times the plain one."""
    stream = build("hyper_connections", width=6, blocks=3, **options).double()
    x = torch.randn(4, 6).double()
    record = run(stream, x, [torch.sin] * 6)
    h = x
    for read, y in zip(record.reads, record.branches, strict=True):
        close(read, h, 1e-15)
        h = h + y
    close(record.out, options.get("streams", 4) * h, 1e-14)


def test_manifold_starts_as_the_plain_stream_without_spread():
    """Up to the scale of reads, Σ H_pre: equal streams stay equal under any row-stochastic mix."""
    stream = build("manifold_hyper_connections", width=6, blocks=3, spread=0.0).double()
    assert stream.identity_at_start
    assert not build("manifold_hyper_connections", width=6, blocks=3).identity_at_start
    x = torch.randn(4, 6).double()
    record = run(stream, x, [lambda h: torch.sin(rms_norm(h, None, 0.0))] * 6)
    h = x
    for read, y in zip(record.reads, record.branches, strict=True):
        close(rms_norm(read, None, 0.0), rms_norm(h, None, 0.0), 1e-14)
        h = h + y
    close(record.out, 4 * h, 1e-14)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"dynamic": False}, 768),
        ({"norm": "rms"}, 394_048 + 32 * 2048),
        ({"norm": "layer"}, 394_048 + 64 * 2048),
    ],
)
def test_published_parameter_counts_free(options, count):
    """OLMo-1B has 768 static and 394,048 dynamic ones; its norm has none, ours a gain and perhaps a bias."""
    with torch.device("meta"):
        stream = build("hyper_connections", width=2048, blocks=16, **options)
    assert sum(p.numel() for p in stream.parameters()) == count == stream.cost().parameters


def test_published_parameter_count_manifold():
    with torch.device("meta"):
        stream = build("manifold_hyper_connections", width=2560, blocks=30)
    assert sum(p.numel() for p in stream.parameters()) == 60 * 245_787 == stream.cost().parameters


@pytest.mark.parametrize(
    ("name", "options", "error", "sentence"),
    [
        ("hyper_connections", {"streams": 0}, ValueError, "streams must be an integer of at least 1; got 0"),
        ("hyper_connections", {"norm": "batch"}, ValueError, "norm must be one of 'layer', 'rms'"),
        ("hyper_connections", {"dynamic": 1}, TypeError, "dynamic must be True or False; got 1"),
        ("manifold_hyper_connections", {"streams": 0}, ValueError, "streams must be an integer of"),
        ("manifold_hyper_connections", {"numerics": "v4"}, ValueError, "numerics must be one of 'paper'"),
        ("manifold_hyper_connections", {"head": "mean"}, ValueError, "head must be one of 'sum', 'learned'"),
        ("manifold_hyper_connections", {"iterations": 0}, ValueError, "iterations must be an integer of"),
        ("manifold_hyper_connections", {"spread": -1.0}, ValueError, "spread must be at least 0; got -1"),
    ],
)  # fmt: skip
def test_bad_options(name, options, error, sentence):
    with pytest.raises(error, match=sentence):
        build(name, width=4, blocks=2, **options)


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_sinkhorn_as_one_operator_of_a_compiled_graph(iterations, eps):
    """Written backward against the steps differentiated one by one, at logits of scale 3."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(50, 4, 4).double()).requires_grad_()
    upstream = torch.randn(50, 4, 4).double()
    found = [function(logits, iterations, eps) for function in (stream_rung._whole, stream_rung.steps)]
    close(*found, 1e-14)
    close(*(torch.autograd.grad(mix, logits, upstream)[0] for mix in found), 1e-12)
    small = logits[:2].detach().requires_grad_()
    torch.library.opcheck(stream_rung._whole, (small, iterations, eps))
