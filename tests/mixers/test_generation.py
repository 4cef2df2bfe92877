"""Generated text: the cache changes nothing, nor does the company of other prompts."""

import sys

import numpy as np
import pytest
import torch
from mixer_decoders import decoder, tokens

from t2lib.generation import generate, padded

PROMPTS = [tokens(5), tokens(1, seed=2), tokens(12, seed=3)]


@pytest.fixture(scope="module", params=["none", "canon ABCD", "short_swa chunk"])
def model(request):
    return decoder(request.param)


def by_hand(model, text, length):
    """Greedy, everything read anew for each token."""
    for _ in range(length):
        with torch.no_grad():
            text = torch.cat([text, model(text[..., -model.config.context :])[..., -1:, :].argmax(-1)], -1)
    return text


def test_greedy_is_greedy(model):
    text = tokens(2, 7)
    assert torch.equal(generate(model, text, 12, temperature=0), by_hand(model, text, 12))


def test_past_the_context(model):
    """The last 40 tokens are read, as without a cache."""
    text = tokens(2, 36)
    assert torch.equal(generate(model, text, 9, temperature=0), by_hand(model, text, 9))
    longer = tokens(2, 45)
    assert torch.equal(generate(model, longer, 2, temperature=0), by_hand(model, longer, 2))


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": [5, 6, 7]}, {"seed": [8, 6, 7], "top_k": 3}]
)
def test_a_list_of_prompts_is_each_alone(model, options):
    got = generate(model, PROMPTS, 32, **options)
    for place, (prompt, text) in enumerate(zip(PROMPTS, got, strict=True)):
        mine = {key: [x[place]] if key == "seed" else x for key, x in options.items()}
        assert torch.equal(text, generate(model, prompt, 32, **mine))
        assert text.shape == (len(prompt) + 32,)


def test_top_k_and_temperature():
    """One of the k most likely each time; a low temperature is greedy, seeds differ."""
    model, text = decoder("none"), tokens(4, 3)
    drawn = generate(model, text, 20, temperature=5.0, top_k=3, seed=1)
    with torch.no_grad():
        best = model(drawn[:, :-1])[:, 2:].topk(3).indices
    assert (drawn[:, 3:, None] == best).any(-1).all()
    assert torch.equal(generate(model, text, 9, temperature=1e-4), generate(model, text, 9, temperature=0))
    assert not torch.equal(drawn, generate(model, text, 20, temperature=5.0, top_k=3, seed=2))


def test_equal_logits_do_not_widen_top_k():
    """All weights zero: every token is as likely as another, and two of them are drawn."""
    model = decoder("none")
    torch.nn.init.zeros_(model.embedding.weight)
    assert len(generate(model, tokens(1), 30, top_k=2)[1:].unique()) == 2


def test_any_temperature_and_integers_of_numpy():
    model, text = decoder("none"), tokens(4)
    cold = generate(model, text, np.int64(4), temperature=1e-300, seed=np.int64(3))
    assert torch.equal(cold, generate(model, text, 4, temperature=0))
    generate(model, text, 4, temperature=1e300, top_k=3)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_numbers_that_are_none_are_not_drawn_from(temperature):
    model = decoder("none")
    torch.nn.init.constant_(model.final_norm.gain, float("nan"))
    with pytest.raises(ValueError, match="logits must be numbers to go on from; the decoder put out NaN"):
        generate(model, tokens(3), 2, temperature=temperature)


def test_each_token_is_read_once():
    model, lengths = decoder("none"), []
    seen = model.embedding.register_forward_hook(lambda module, args, out: lengths.append(args[0].shape[-1]))
    generate(model, tokens(6), 5)
    seen.remove()
    assert lengths == [6, 1, 1, 1, 1]


def test_training_goes_on_as_before():
    model = decoder("none").train()
    model.blocks[1].eval()
    generate(model, tokens(3), 1)
    assert model.training
    assert model.blocks[0].mlp.training
    assert not model.blocks[1].training


def test_a_bar_if_asked_for(capsys):
    generate(decoder("none"), tokens(3), 2, progress=True)
    assert "2/2" in capsys.readouterr().err
    generate(decoder("none"), tokens(3), 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("length", "terminal", "shown"), [(200, True, True), (199, True, False), (200, False, False)]
)
def test_a_bar_by_itself_when_long(capsys, monkeypatch, length, terminal, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    generate(decoder("none", blocks=1, context=8), tokens(3), length)
    assert (f"{length}/{length}" in capsys.readouterr().err) == shown


def test_padding():
    batch, real = padded([tokens(2), tokens(3)])
    assert real.tolist() == [[False, True, True], [True, True, True]]
    assert torch.equal(batch[0, 1:], tokens(2))


@pytest.mark.parametrize(
    ("prompts", "options", "sentence"),
    [
        ([], {}, "prompts must hold at least one prompt; got none"),
        ([[1, 2]], {}, r"prompts\[0\] must be int64 of shape \(T,\), not empty; got list"),
        ([torch.zeros(2, 2)], {}, r"prompts\[0\] must be int64 of shape \(T,\), not empty"),
        (tokens(3), {"length": -1}, "length must be an integer of at least 0; got -1"),
        (tokens(3), {"temperature": -0.5}, "temperature must be at least 0; got -0.5"),
        (tokens(3), {"top_k": 32}, r"top_k must lie in 1\.\.31 or be None; got 32"),
        (tokens(2, 3), {"seed": [1, 2, 3]}, "seed must be an integer or a list of 2, one a row; got 3 seeds"),
        (tokens(3), {"length": True}, "length must be an integer of at least 0; got True"),
        (tokens(3), {"temperature": "hot"}, "temperature must be a finite real number; got 'hot'"),
        (tokens(3), {"temperature": float("inf")}, "temperature must be a finite real number; got inf"),
        (tokens(3), {"top_k": 2.5}, "top_k must be an integer of at least 1; got 2.5"),
        (tokens(3), {"seed": None}, "seed must be an integer of at least 0; got None"),
        (tokens(2, 3), {"seed": [1.5, 2]}, "seed must be an integer of at least 0; got 1.5"),
        (tokens(3), {"seed": 2**70}, r"seed must lie below 2\^63; got 1180591620717411303424"),
        (tokens(3) + 31, {}, r"tokens must lie in 0\.\.30"),
    ],
)
def test_bad_input(prompts, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        generate(decoder("none"), prompts, **{"length": 1, **options})


def test_prompts_of_a_task():
    """The prompts that t2lib.lab.tasks hands out are NumPy arrays."""
    model = decoder("none", torch.float32)
    prompts = [tokens(2), tokens(5)]
    want = model.generate(prompts, 3, temperature=0)
    got = model.generate([prompt.numpy() for prompt in prompts], 3, temperature=0)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    with pytest.raises(TypeError, match=r"prompts\[0\] must be int64 of shape \(T,\), .*int32"):
        model.generate([prompts[0].numpy().astype("int32")], 3)
