"""What every mixer promises: its start, its reach, its size, by name in a decoder with any stream."""

import pytest
import torch
from mixer_decoders import SHAPE, VARIANTS, decoder, tokens

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.mixers import MIXERS, build, options_of
from t2lib.streams import STREAMS

everyone = pytest.mark.parametrize("variant", VARIANTS)


def mixer_parameters(model):
    return [p for name, p in model.named_parameters() if ".mixer." in name]


PLAIN = [
    ("short_conv", {"initial": "plain"}),
    ("short_conv", {"initial": "plain", "placement": "branch", "kernel": 7, "bias": True}),
    ("canon", {"initial": "plain"}),
    ("canon", {"initial": "plain", "residual": False, "positions": "BD"}),
    ("short_swa", {"window": 4}),
    ("short_swa", {"window": 4, "window_type": "chunk", "key_heads": 1}),
    ("short_swa", {"window": 4, "placement": "branch"}),
]
STREAM_OPTIONS = {"depth_window": {"window": 3}}


def test_the_list_of_mixers():
    assert list(MIXERS) == ["none", "short_conv", "canon", "short_swa"]
    assert {variant[0] for variant in VARIANTS.values()} == set(MIXERS)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("name", "options"), PLAIN)
def test_plain_start_is_the_block_without_it(name, options, stream):
    """With the same seed all other weights are the same, and so are the logits, to the bit or to rounding."""
    logits = []
    for mixer, mixer_options in (("none", {}), (name, options)):
        torch.manual_seed(3)
        fields = {"stream": stream, "stream_options": STREAM_OPTIONS.get(stream, {})}
        model = Decoder(**SHAPE, **fields, mixer=mixer, mixer_options=mixer_options).double()
        logits.append(model(tokens(2, 9)))
    torch.testing.assert_close(*logits, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("name", "options"), PLAIN)
def test_plain_start_can_leave(name, options):
    """Where the mixer enters with weight zero, the gradient of that weight is not zero."""
    torch.manual_seed(0)
    model = Decoder(**SHAPE, mixer=name, mixer_options=options).double()
    model(tokens(2, 9)).square().sum().backward()
    moved = [p.grad.abs().max() for p in mixer_parameters(model) if p.grad is not None]
    assert max(moved) > 0


@everyone
def test_trains_saves_and_loads(variant, tmp_path):
    model = decoder(variant, torch.float32).train()
    text = tokens(2, 12)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        logits = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in mixer_parameters(model))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = decoder(variant, torch.float32)
    again.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(again(text), model.eval()(text))


@everyone
def test_half_precision_follows_float32(variant):
    model, text = decoder(variant, torch.float32), tokens(2, 12)
    want = model(text)
    got = model.bfloat16()(text)
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).abs().max() < 0.15 * want.abs().max()


@everyone
def test_autocast_follows_float32(variant):
    """Forward and backward; parameters and stream stay float32."""
    model, text = decoder(variant, torch.float32), tokens(2, 12)
    want = model(text)
    with torch.autocast("cpu", torch.bfloat16):
        got = model(text)
    assert (got.float() - want).abs().max() < 0.15 * want.abs().max()
    got.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in mixer_parameters(model))


@pytest.mark.parametrize("variant", ["canon ABCD", "short_swa", "short_conv"])
def test_the_stream_is_given_the_norm_of_its_read(variant):
    """Deep Delta's gate reads Norm(u) of what the stream gave out, whatever the mixer makes of it."""
    model = decoder(variant, stream="deep_delta", stream_options={"value_channels": 2})
    seen = model.record(tokens(2, 9))
    for i, (norm, _) in enumerate(model.sublayers()):
        torch.testing.assert_close(seen.normed[i], norm(seen.reads[i]), rtol=0, atol=1e-14)


@everyone
def test_causal_and_rows_do_not_meet(variant):
    model, text = decoder(variant), tokens(2, 9)
    changed = text.clone()
    changed[0, 5] = (text[0, 5] + 1) % 31
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[0, :5], after[0, :5], rtol=0, atol=1e-13)
    torch.testing.assert_close(before[1], after[1], rtol=0, atol=1e-13)
    assert (before[0, 5] - after[0, 5]).abs().max() > 1e-3


def reach(name, options, blocks):
    """How many tokens back the last one still feels a change, with attention switched off."""
    torch.manual_seed(0)
    config = DecoderConfig(**{**SHAPE, "blocks": blocks}, mixer=name, mixer_options=options)
    model = Decoder(config).double().eval()
    for block in model.blocks:
        torch.nn.init.normal_(block.mixer.output.weight if name == "short_swa" else block.mixer.taps.weight)
        torch.nn.init.zeros_(block.attention.output.weight)
    text = tokens(1, 20)
    embedding = model.embed(text).detach().requires_grad_()
    h = embedding
    for block in model.blocks:
        h = block(h)
    h[0, -1].sum().backward()
    felt = embedding.grad[0].abs().amax(-1) > 1e-12
    return 20 - int(felt.nonzero()[0])


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_receptive_field(blocks):
    """n strict layers reach (w - 1) n + 1 tokens; chunks without look-back never leave their own."""
    strict = {"window": 4, "initial": "normal", "rope": False}
    assert reach("short_swa", strict, blocks) == 3 * blocks + 1
    assert reach("short_conv", {"kernel": 4}, blocks) == 3 * blocks + 1
    chunk = {"window": 6, "window_type": "chunk", "initial": "normal"}
    # Token 19 is the second of the chunk 18 ... 23.
    assert reach("short_swa", {**chunk, "lookback": 0}, blocks) == 2
    assert reach("short_swa", {**chunk, "lookback": 1}, blocks) == 2 + 6 * blocks


def test_a_window_as_long_as_the_text_is_full_attention():
    """With the weights of the block's own attention, behind the same norm."""
    model = decoder("none", mixer="short_swa", mixer_options={"window": 12})
    block = model.blocks[0]
    for name in ("query", "key", "value", "output"):
        getattr(block.mixer, name).load_state_dict(getattr(block.attention, name).state_dict())
    block.mixer.norm.load_state_dict(block.attention_norm.state_dict())
    h = torch.randn(2, 12, 16).double()
    from t2lib.token_pass import Pass

    torch.testing.assert_close(block.mixer.sublayer(h, Pass()), block.attention(block.attention_norm(h)))


def test_parameters_of_the_published_models():
    """Canon-ABCD: 380,928 taps at 12 x 768, 2,064,384 at 24 x 2048; a ShortSWA sublayer 4 d² and a norm."""
    for width, blocks, hidden, published in ((768, 12, 2048, 380928), (2048, 24, 5632, 2064384)):
        config = DecoderConfig(width=width, blocks=blocks, heads=width // 64, hidden=hidden)
        with torch.device("meta"):
            one = build("canon", config.site(0))
        assert blocks * sum(p.numel() for p in one.parameters()) == published
    config = DecoderConfig(width=768, heads=12)
    with torch.device("meta"):
        full, grouped = build("short_swa", config.site(0)), build("short_swa", config.site(0), key_heads=3)
    assert sum(p.numel() for p in full.parameters()) == 4 * 768**2 + 768
    assert sum(p.numel() for p in grouped.parameters()) == 2 * 768**2 + 2 * 768 * 192 + 768


def test_canon_starts_as_its_author_insists():
    """U(-1/2, 1/2) for every tap, the current token's included: a standard deviation of 0.289."""
    torch.manual_seed(0)
    taps = build("canon", DecoderConfig(width=768, heads=12, hidden=2048).site(0)).taps["D"].weight
    assert taps.abs().max() <= 0.5
    assert taps.std().item() == pytest.approx(0.289, abs=0.005)
    assert taps[:, -1].std().item() == pytest.approx(0.289, abs=0.01)


def compiled_for_all_lengths(model, **options):
    """With symbolic lengths, which torch.compile takes to by itself when it has met two of them."""
    torch._dynamo.reset()
    return torch.compile(model, backend="eager", dynamic=True, **options)


LENGTHS = (12, 7, 1)


@pytest.mark.parametrize("variant", ["none", "canon ABCD", "short_swa", "short_swa chunk"])
def test_one_graph_for_all_lengths(variant):
    model = decoder(variant, torch.float32, blocks=1)
    compiled = compiled_for_all_lengths(model, fullgraph=True)
    for length in LENGTHS:
        torch.testing.assert_close(compiled(tokens(2, length)), model(tokens(2, length)))


@pytest.mark.parametrize(
    ("variant", "whole"),
    [("none", True), ("canon ABCD", True), ("short_swa", True), ("short_swa chunk", False)],
)
def test_padding_compiles(variant, whole):
    """In one graph, but for chunks: how far they move apart depends on the labels."""
    model = decoder(variant, torch.float32, blocks=1)
    compiled = compiled_for_all_lengths(model, fullgraph=whole)
    for length in LENGTHS:
        valid = torch.arange(length).expand(2, length) >= torch.tensor([[0], [length // 3]])
        text = tokens(2, length)
        torch.testing.assert_close(compiled(text, valid=valid), model(text, valid=valid))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("conv", {}, "mixer must be one of 'none', 'short_conv', 'canon', 'short_swa'; got 'conv'"),
        ("canon", {"position": "A"}, "options of mixer 'canon' are 'positions', .*; got 'position'"),
        ("canon", {"positions": "AE"}, "positions must be letters of 'ABCD', at least one; got 'AE'"),
        ("canon", {"positions": ""}, "positions must be letters of 'ABCD', at least one; got ''"),
        ("canon", {"positions": "AA"}, "positions must name each letter once; got 'AA'"),
        ("canon", {"kernel": 9}, "kernel must lie in 2 to 8; got 9"),
        ("short_conv", {"kernel": 1}, "kernel must be an integer of at least 2; got 1"),
        ("short_conv", {"activation": "relu"}, "activation must be None or 'silu'; got 'relu'"),
        (
            "short_conv",
            {"placement": "branch", "activation": "silu", "initial": "plain"},
            "initial must be 'uniform' on a branch with an activation; got 'plain'",
        ),
        ("short_swa", {"window": 0}, "window must be an integer of at least 1; got 0"),
        ("short_swa", {"lookback": -1}, "lookback must be an integer of at least 0; got -1"),
        ("short_swa", {"heads": 3}, "heads must divide width=16; got 3"),
        ("short_swa", {"key_heads": 3}, "key_heads must divide heads=2; got 3"),
        ("short_swa", {"placement": "branch", "heads": 2}, "heads and key_heads must be None on a branch"),
        ("short_swa", {"placement": "behind"}, "placement must be one of 'sublayer', 'branch'; got 'behind'"),
    ],
)
def test_bad_options(name, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        Decoder(**SHAPE, mixer=name, mixer_options=options)


def test_options_by_name():
    assert options_of("none") == {}
    assert options_of("canon") == {"positions": "ABCD", "residual": True, "kernel": 4, "initial": "uniform"}
    with pytest.raises(TypeError, match="mixer_options must be a dict, got list"):
        Decoder(**SHAPE, mixer="canon", mixer_options=[])
