"""MUDDFormer: golden vectors of the official model, its start, and two unverified readings of a variant."""

import pytest
import torch
import torch.nn.functional as F
from sublayers import attention, close, load, rms_norm, swiglu, tensors

from t2lib.decoder import Decoder
from t2lib.streams import build
from t2lib.streams.mixing import mix
from t2lib.streams.stream import every_way, run


@pytest.fixture
def vectors():
    return tensors("muddformer")


def branches(vectors, rope=False):
    eps, found = vectors["eps"], []
    for block in range(4):
        w = {key.partition("_")[2]: x for key, x in vectors.items() if key.startswith(f"L{block}_")}

        def attend(read, w=w):
            q, k, v = (
                F.linear(rms_norm(every_way(read, way), w[f"n{way[0]}"], eps), w[f"W{way[0]}"])
                for way in ("query", "key", "value")
            )
            return attention(q, k, v, w["Wo"], heads=2, rope=rope)

        def mlp(x, w=w):
            return swiglu(rms_norm(x, w["nf"], eps), w["w1"], w["w3"], w["w2"])

        found += [attend, mlp]
    return found


def stream_of(vectors, variant="plain"):
    stream = build("muddformer", width=8, blocks=4, variant=variant, norm_eps=float(vectors["eps"])).double()
    for block, aggregate in enumerate(stream.aggregates):
        load(aggregate.inner, vectors[f"L{block}_da_w1"])
        load(aggregate.outer, vectors[f"L{block}_da_w2"])
        load(aggregate.prior, vectors[f"L{block}_da_a"])
        if variant != "plain":
            load(aggregate.gain, vectors[f"gdw_{block}"])
            post = stream.post[block]
            recorded = (
                vectors[f"gpost_{block}"][None] if variant == "prepost_code" else vectors[f"gpost4_{block}"]
            )
            load(post, recorded[: len(post)])
    for source, gain in enumerate(stream.pre):
        load(gain, vectors[f"gpre_{source}"])
    return stream


def finished(record, vectors):
    return rms_norm(record.out, vectors["final_gain"], vectors["eps"])


@pytest.mark.parametrize("rope", [False, True])
def test_golden_network_and_gradient(vectors, rope):
    record = run(stream_of(vectors), vectors["x"], branches(vectors, rope))
    out, prefix = finished(record, vectors), "rope_" if rope else ""
    close(out, vectors[f"{prefix}out"])
    (out * vectors["cot"]).sum().backward()
    close(vectors["x"].grad, vectors[f"{prefix}grad_x"])


def test_golden_states_weights_and_streams(vectors):
    stream = stream_of(vectors)
    state = stream.start(vectors["x"])
    for i, branch in enumerate(branches(vectors)):
        state = stream.write(state, i, branch(stream.read(state, i)))
        if i % 2:
            block, sources = i // 2, state.content.sources
            close(torch.stack(sources), vectors["X_states"][: block + 2])
            aggregate = stream.aggregates[block]
            weights = aggregate.weights(sources[-1]) + aggregate.prior
            close(weights.movedim(-2, 0), vectors[f"dw_{block}"])
            close(torch.stack(state.content.reads), vectors[f"streams_{block}"])


def test_golden_start_is_the_plain_transformer(vectors):
    for variant in ("plain", "prepost_code", "prepost_paper"):
        stream = build(
            "muddformer", width=8, blocks=4, variant=variant, norm_eps=float(vectors["eps"])
        ).double()
        close(finished(run(stream, vectors["x"], branches(vectors)), vectors), vectors["init_out"])


@pytest.mark.parametrize(("variant", "recorded"), [("prepost_code", "jax"), ("prepost_paper", "paper")])
def test_golden_readings_of_the_unverified_variant(vectors, variant, recorded):
    """These arrays are a reading of code and of text; no reference was run for them."""
    out = finished(run(stream_of(vectors, variant), vectors["x"], branches(vectors)), vectors)
    close(out, vectors[f"prepost_{recorded}_out"])
    (out * vectors["cot"]).sum().backward()
    close(vectors["x"].grad, vectors[f"prepost_{recorded}_grad_x"])


@pytest.mark.parametrize("variant", ["plain", "prepost_code", "prepost_paper"])
def test_the_decoder_starts_as_the_plain_one_and_learns(variant):
    shape = {"blocks": 3, "width": 16, "heads": 2, "hidden": 24}
    torch.manual_seed(0)
    plain = Decoder(**shape).double()
    torch.manual_seed(0)
    mine = Decoder(**shape, stream="muddformer", stream_options={"variant": variant}).double()
    tokens = torch.randint(256, (2, 7))
    assert torch.equal(mine(tokens), plain(tokens)) or (mine(tokens) - plain(tokens)).abs().max() < 1e-14
    mine(tokens).square().sum().backward()
    # W2 is zero, so W1 waits a step; W2 and the prior do not.
    for aggregate in mine.stream.aggregates:
        assert not aggregate.inner.grad.any()
        assert aggregate.outer.grad.any()
        assert aggregate.prior.grad.any()


@pytest.mark.parametrize("variant", ["plain", "prepost_code", "prepost_paper"])
def test_mixing_matrix_says_what_was_read(variant):
    torch.manual_seed(2)
    stream = build("muddformer", width=6, blocks=3, variant=variant).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    ys = [
        lambda read, a=a: torch.sin(a * sum(read.values()) if isinstance(read, dict) else read)
        for a in range(6)
    ]
    x = torch.randn(2, 3, 6).double()
    record = run(stream, x, ys)
    matrices = stream.mixing_matrix(x, record.branches)
    assert list(matrices) == ["query", "key", "value", "residual"]
    for way, matrix in matrices.items():
        assert matrix.ndim == (4 if variant == "plain" else 5)
        got = mix(matrix, torch.stack([x, *record.branches]))
        close(got, torch.stack([every_way(read, way) for read in [*record.reads, record.out]]))


def test_mixing_matrix_at_the_start_is_all_ones():
    stream = build("muddformer", width=6, blocks=3).double()
    x = torch.randn(2, 3, 6).double()
    for matrix in stream.mixing_matrix(x, [torch.randn_like(x) for _ in range(6)]).values():
        assert torch.equal(matrix, torch.ones(7, 7).tril().double()[..., None, None].expand_as(matrix))


def test_four_ways_and_one_after_the_last_block():
    stream = build("muddformer", width=8, blocks=3)
    assert [aggregate.ways for aggregate in stream.aggregates] == [4, 4, 1]
    assert [aggregate.inner.shape[1] for aggregate in stream.aggregates] == [8, 12, 16]
    assert [stream.ways(i) for i in (0, 1)] == [("x",), ("x",)]
    assert stream.ways(2) == ("query", "key", "value", "residual")
    rounded = build("muddformer", width=8, blocks=16, round64=True)
    assert {aggregate.inner.shape[1] for aggregate in rounded.aggregates} == {64, 128}
    # Strictly up: 4 * 16 is 64 already, and becomes 128.
    assert rounded.aggregates[14].inner.shape[1] == 128


def test_costs():
    L, d = 12, 768
    stream = build("muddformer", width=d, blocks=L)
    found = stream.cost()
    assert found.parameters == sum(p.numel() for p in stream.parameters())
    flops = parameters = 0
    for n in range(2, L + 2):
        ways, hidden = (1 if n == L + 1 else 4), 4 * n
        flops += 2 * d * hidden + 2 * hidden * ways * n + 2 * d * ways * n
        parameters += d * hidden + hidden * ways * n + ways * n
    assert (found.flops, found.parameters, found.live) == (flops, parameters, L + 1)
    assert found.boundary == tuple(range(2, L + 1))
    # The paper's estimate of the parameter ratio, eta/6 with eta = (L + 3)/d, against 12 L d².
    assert abs(parameters / (12 * L * d**2) / ((L + 3) / d / 6) - 1) < 0.12


def test_bad_input():
    with pytest.raises(ValueError, match="variant must be one of 'plain', 'prepost_code', 'prepost_paper'"):
        build("muddformer", width=8, blocks=3, variant="pre")
    with pytest.raises(TypeError, match="round64 must be True or False"):
        build("muddformer", width=8, blocks=3, round64=64)
