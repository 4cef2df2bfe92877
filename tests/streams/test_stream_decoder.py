"""Every stream in the decoder, by name: it trains, is saved and loaded, compiles, and records what it did."""

import pytest
import torch
from sublayers import close
from variants import VARIANTS

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.lab import load_decoder
from t2lib.streams import STREAMS
from t2lib.streams.mixing import mix

SHAPE = {"vocabulary": 31, "width": 16, "blocks": 3, "heads": 2, "hidden": 24, "context": 12}
everyone = pytest.mark.parametrize("variant", VARIANTS)


def decoder(variant, dtype=torch.float64, **fields):
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    return Decoder(**{**SHAPE, **fields}, stream=name, stream_options=options).to(dtype)


def tokens(shape=(2, 9)):
    return torch.randint(0, 31, shape, generator=torch.Generator().manual_seed(1))


def loss(model, text):
    logits = model(text[..., :-1]).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), text[..., 1:].flatten())


@everyone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trains_saves_and_loads(variant, dtype, tmp_path):
    """Steps lower the loss and move the stream; what is saved and loaded again is the same to the bit."""
    model, text = decoder(variant, dtype), tokens()
    before = {name: p.detach().clone() for name, p in model.stream.named_parameters()}
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = loss(model, text)
    for _ in range(3):
        optimiser.zero_grad()
        loss(model, text).backward()
        optimiser.step()
    assert loss(model, text) < first
    assert model(text).dtype == dtype
    if before:
        assert any(not torch.equal(before[name], p) for name, p in model.stream.named_parameters())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = decoder(variant, dtype)
    again.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(again(text), model(text))


@everyone
def test_records_what_it_did(variant):
    model, text = decoder(variant).eval(), tokens()
    with torch.no_grad():
        for parameter in model.stream.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        seen = model.record(text)
    assert (len(seen.levels), len(seen.reads), len(seen.branches)) == (7, 6, 6)
    assert torch.equal(model.unembed(seen.out), model(text))
    assert torch.equal(model.hidden_states(text, unit="sublayer"), torch.stack(seen.levels))
    assert torch.equal(model.branches(text), torch.stack(seen.branches))
    assert model.hidden_states(text).shape == (4, 2, 9, 16)
    # Level 0 is the embedding, of which n streams hold n copies.
    if not variant.startswith(("hc", "mhc", "vertical branch")):
        assert torch.equal(seen.levels[0], model.embed(text))
    read = mix(model.mixing_matrix(text), torch.stack([model.embed(text), *seen.branches]))
    close(read, torch.stack([*seen.reads, seen.out]))


@everyone
def test_causal_and_rows_do_not_meet(variant):
    model, text = decoder(variant).eval(), tokens()
    changed = text.clone()
    changed[0, 5] = (text[0, 5] + 1) % 31
    logits, other = model(text), model(changed)
    assert torch.equal(logits[0, :5], other[0, :5])
    assert torch.equal(logits[1], other[1])
    assert (logits[0, 5:] != other[0, 5:]).any()
    assert model.generate(text, 3, temperature=0).shape == (2, 12)


STARTS_PLAIN = ("prenorm", "denseformer", "depth_window", "hyper_connections")
IDENTITY = [variant for variant, (name, _) in VARIANTS.items() if name in STARTS_PLAIN]


@pytest.mark.parametrize("variant", IDENTITY)
def test_starts_as_the_plain_decoder(variant):
    """Untrained and with one seed, the logits are the plain ones; n equal streams differ by eps alone."""
    plain, mine = decoder("prenorm", norm_eps=1e-13), decoder(variant, norm_eps=1e-13)
    if not mine.stream.identity_at_start:
        assert variant == "window 3 replace"
        return
    weights = mine.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in plain.state_dict().items())
    close(mine(tokens()), plain(tokens()), 1e-8)


@pytest.mark.parametrize("variant", ["mhc", "denseformer 2x1", "prenorm", "hc"])
def test_compiles_whole(variant):
    """One graph, forward and backward, with the same loss and gradients."""
    model, text = decoder(variant, torch.float32, blocks=1 if variant == "mhc" else 2), tokens()
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


def test_autocast_keeps_the_stream_wide():
    model = decoder("denseformer 1x1", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = model.record(tokens())
    assert all(level.dtype == torch.float32 for level in seen.levels)


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
