"""Every stream in the decoder, by name: it records what it did, stays causal, compiles, refuses.

That it trains, is saved and loaded, and starts as the plain one where it promises to: `test_claims`.
"""

import pytest
import torch
from sublayers import close

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.lab import load_decoder
from t2lib.streams import STREAMS
from t2lib.streams._variants import VARIANTS
from t2lib.streams.mixing import mix
from t2lib.streams.stream import every_way

SHAPE = {"vocabulary": 31, "width": 16, "blocks": 3, "heads": 2, "hidden": 24, "context": 12}
everyone = pytest.mark.parametrize("variant", VARIANTS)
# What one weight of a mixing matrix is, in the designs that have such a matrix.
KINDS = ("number", "channel", "matrix")


def decoder(variant, dtype=torch.float64, **fields):
    name, options, blocks = VARIANTS[variant]
    torch.manual_seed(0)
    shape = {**SHAPE, "blocks": blocks, **fields}
    return Decoder(**shape, stream=name, stream_options=options).to(dtype)


# One variant a design.
DESIGNS = {variant.design: name for name, variant in reversed(VARIANTS.items())}.values()


def tokens(shape=(2, 9)):
    return torch.randint(0, 31, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("variant", DESIGNS)
def test_records_what_it_did(variant):
    model, text = decoder(variant).eval(), tokens()
    with torch.no_grad():
        for parameter in model.stream.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        seen = model.record(text)
    count = 2 * VARIANTS[variant].blocks
    assert (len(seen.levels), len(seen.reads), len(seen.branches)) == (count + 1, count, count)
    assert torch.equal(model.unembed(seen.out), model(text))
    assert torch.equal(model.hidden_states(text, unit="sublayer"), torch.stack(seen.levels))
    assert torch.equal(model.branches(text), torch.stack(seen.branches))
    assert model.hidden_states(text).shape == (count // 2 + 1, 2, 9, 16)
    matrices = model.mixing_matrix(text)
    sources = torch.stack([model.embed(text), *seen.branches])
    for way, matrix in matrices.items() if isinstance(matrices, dict) else [("x", matrices)]:
        read = torch.stack([every_way(read, way) for read in [*seen.reads, seen.out]])
        close(mix(matrix, sources), read)


@everyone
def test_causal_and_rows_do_not_meet(variant):
    model, text = decoder(variant).eval(), tokens()
    changed = text.clone()
    changed[0, 5] = (text[0, 5] + 1) % 31
    logits, other = model(text), model(changed)
    close(logits[0, :5], other[0, :5], 1e-12)
    close(logits[1], other[1], 1e-12)
    assert (logits[0, 5:] != other[0, 5:]).any()


@pytest.mark.parametrize("variant", ["denseformer 1x1"])
def test_compiles_whole(variant):
    """One graph, forward and backward, with the same loss and gradients."""
    model, text = decoder(variant, torch.float32, blocks=1), tokens()
    with torch.no_grad():
        for parameter in model.stream.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    compiled = torch.compile(lambda embedding: walk(model, embedding), fullgraph=True)
    grads = []
    # The compiled one first: nothing may depend on an earlier call without the compiler.
    for call in (compiled, lambda e: walk(model, e)):
        model.zero_grad()
        out = call(model.embed(text))
        out.square().mean().backward()
        grads.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def walk(model, embedding):
    """The decoder after its embedding: checking tokens looks at their values, which no graph can."""
    state = model.stream.start(embedding)
    for i, (norm, sublayer) in enumerate(model.sublayers()):
        state = model.stream.write(state, i, sublayer(norm(model.stream.read(state, i))))
    return model.unembed(model.stream.finish(state))


@pytest.mark.parametrize("variant", DESIGNS)
def test_the_decoder_compiles_in_one_graph(variant):
    """The call that users compile, tokens in and logits out, and its gradients, one graph for all lengths;
    all variants are compiled by `python -m t2lib.verify streams --compile`."""
    # One function compiled for many modules runs into the limit of its recompilations.
    torch._dynamo.reset()
    model = decoder(variant, torch.float32, blocks=2)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for length in (9, 5):
        grads = []
        for call in (compiled, model):
            model.zero_grad()
            out = call(tokens((2, length)))
            out.square().mean().backward()
            grads.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for got, want in zip(*grads, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if VARIANTS[v].build(8).mixing in KINDS])
def test_mixing_matrix_in_inference_mode(variant):
    """Where no gradient is kept, the derivative is the same."""
    model = decoder(variant)
    want = model.mixing_matrix(tokens())
    with torch.inference_mode():
        got = model.mixing_matrix(tokens())
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if VARIANTS[v].design in ("hyper_connections", "deep_delta")]
)
def test_autocast_rounds_no_state(variant):
    """Branch outputs given, what a stream makes of them is exact; only its projections are half precision."""
    model = decoder(variant, torch.float32)
    seen = model.record(tokens())
    ends = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            state = model.stream.start(model.embed(tokens()))
            for i, y in enumerate(seen.branches):
                state = model.stream.write(state, i, y.float(), seen.normed[i])
            ends.append(model.stream.finish(state))
    assert (ends[0] - ends[1]).norm() < 1e-2 * ends[0].norm()


@everyone
def test_autocast_keeps_the_stream_wide(variant):
    """Forward and backward: levels, logits near those of float32, and every gradient in float32."""
    model = decoder(variant, torch.float32)
    want = model(tokens())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = model.record(tokens())
        got = model(tokens())
    assert all(level.dtype == torch.float32 for level in seen.levels)
    assert (got.float() - want).norm() < 0.2 * want.norm()
    got.float().square().mean().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())


def test_shipped_weights_know_no_stream():
    """The pre-norm decoder has the parameters it always had, and no others."""
    names = set(load_decoder().state_dict())
    assert not any(name.startswith("stream.") for name in names)
    assert load_decoder().config.stream == "prenorm"


def test_every_name_of_the_registry_makes_a_decoder():
    for name in STREAMS:
        model = Decoder(**SHAPE, stream=name)
        assert type(model.stream).__name__ == STREAMS[name].cls
        assert model(tokens()).shape == (2, 9, 31)


def test_bad_configuration():
    with pytest.raises(ValueError, match=r"stream must be one of 'prenorm', .* got 'plain'"):
        DecoderConfig(stream="plain")
    with pytest.raises(ValueError, match="options of stream 'elc_bert' are 'variant'; got 'variants'"):
        DecoderConfig(stream="elc_bert", stream_options={"variants": "base"})
    with pytest.raises(TypeError, match="stream_options must be a dict, got list"):
        DecoderConfig(stream_options=[])
    with pytest.raises(TypeError, match="config must be None if fields are given by name, got stream too"):
        Decoder(DecoderConfig(), stream="elc_bert")
    assert hash(DecoderConfig()) == hash(DecoderConfig())
