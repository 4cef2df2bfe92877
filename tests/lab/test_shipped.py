"""The shipped model is what its card says, and has learnt something one can see."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch

from t2lib.decoder import Decoder
from t2lib.lab import card, decode, encode, load_decoder, validation_text
from t2lib.lab.corpus import load_corpus
from t2lib.lab.evaluate import known_words, loss_per_byte
from t2lib.lab.shipped import WEIGHTS


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load_decoder()


def test_it_is_deep_and_small(decoder: Decoder) -> None:
    assert decoder.config.blocks >= 8
    assert sum(weight.numel() for weight in decoder.parameters()) == card()["parameters"] < 1_000_000
    assert len((WEIGHTS / "decoder.safetensors").read_bytes()) < 2 * 1000**2
    assert not decoder.training
    assert {weight.dtype for weight in decoder.parameters()} == {torch.float32}


def test_validation_loss_is_the_recorded_one_and_beats_the_trigram(decoder: Decoder) -> None:
    recorded, trigram = card()["validation"]["nats_per_byte"], card()["trigram"]["nats_per_byte"]
    assert loss_per_byte(decoder, validation_text().encode()) == pytest.approx(recorded, abs=1e-3)
    assert recorded < trigram - 0.3


def test_validation_text_is_the_recorded_one() -> None:
    corpus = card()["corpus"]
    assert hashlib.sha256(validation_text().encode()).hexdigest() == corpus["sha256"]["validation"]
    assert len(validation_text().encode()) == corpus["bytes"]["validation"]


def test_card_says_how_it_was_made() -> None:
    made = card()
    assert made["command"].startswith("python -m t2lib.lab.train")
    assert set(made["versions"]) == {"python", "torch", "numpy"}
    assert len(made["date"]) == 10
    assert made["processor"]
    assert made["step"] == made["settings"]["steps"]
    assert made["tokens_seen"] == made["step"] * made["settings"]["batch"] * made["config"]["context"]
    assert len(made["corpus"]["sha256"]["train"]) == 64
    steps, losses = zip(*made["train_curve"], strict=True)
    assert list(steps) == sorted(steps)
    # log 256 = 5.55 is where a decoder that knows nothing starts.
    assert losses[0] > 3.5
    assert losses[-1] < 1.6


def test_sampled_text_has_the_words_of_the_corpus(decoder: Decoder) -> None:
    """Four fifths of the sampled words are words of the corpus; random letters give next to none."""
    prompts = torch.stack([encode("The "), encode("If a"), encode("In P"), encode("This")])
    drawn = decoder.generate(prompts, 120, temperature=0.7, seed=0)
    sample = " ".join(decode(row).rsplit(" ", 1)[0] for row in drawn)
    corpus = load_corpus()
    text = (corpus.train + corpus.validation).decode()
    assert known_words(sample, text) > 0.8
    assert {".", ","} & set(sample)
    assert "\n" in sample
    generator = torch.Generator().manual_seed(0)
    noise = decode(torch.randint(97, 123, (900,), generator=generator))
    assert known_words(" ".join(noise[i : i + 5] for i in range(0, 900, 5)), text) < 0.1


def test_text_and_bytes() -> None:
    assert decode(encode("naïve: ∂")) == "naïve: ∂"
    assert encode("é").tolist() == [0xC3, 0xA9]
    assert encode("").shape == (0,)
    assert decode(torch.tensor([0xC3])) == "\N{REPLACEMENT CHARACTER}"


def test_text_and_bytes_refuse() -> None:
    with pytest.raises(TypeError, match="text must be a str, got bytes"):
        encode(b"if")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tokens must be an int64 tensor of shape \(T,\), got list"):
        decode([105])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got torch.int64 \(1, 2\)"):
        decode(torch.tensor([[105, 102]]))
    with pytest.raises(ValueError, match=r"tokens must lie in 0\.\.255, got values from 3 to 256"):
        decode(torch.tensor([3, 256]))


def test_the_lab_is_imported_without_torch() -> None:
    code = "import sys, t2lib.lab; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_name() -> None:
    import t2lib.lab

    with pytest.raises(AttributeError, match="no attribute 'load_encoder'"):
        t2lib.lab.load_encoder  # noqa: B018
