"""The loss of a text counts every byte once, from as much context as it can."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.lab.evaluate import known_words, loss_per_byte


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(width=16, blocks=1, heads=2, hidden=16, context=8))
    with torch.no_grad():
        decoder.embedding.weight.mul_(50)
    return decoder


@torch.no_grad()
@pytest.mark.parametrize("length", [2, 8, 9, 10, 13, 14, 31])
def test_every_byte_is_counted_once(decoder: Decoder, length: int) -> None:
    """Byte i is predicted from window [start, i) of at least half a context, written here byte by byte."""
    text = bytes(range(40, 40 + length))
    tokens = torch.tensor(list(text))
    total = 0.0
    for i in range(1, length):
        # The first window scores bytes 1 to 8, each later one the next four, the last one what is left.
        stop = min(length, 9 + 4 * max(0, math.ceil((i - 8) / 4)))
        start = max(0, stop - 9)
        logits = decoder(tokens[start:i])[-1]
        total += float(F.cross_entropy(logits, tokens[i]))
    assert loss_per_byte(decoder, text) == pytest.approx(total / (length - 1), rel=1e-5)


def test_a_decoder_that_knows_nothing_pays_eight_bits() -> None:
    decoder = Decoder(DecoderConfig(width=16, blocks=1, heads=2, hidden=16, context=8))
    with torch.no_grad():
        decoder.embedding.weight.zero_()
    assert loss_per_byte(decoder, b"any text at all") == pytest.approx(math.log(256))
    assert decoder.training


def test_known_words() -> None:
    assert known_words("The class of ab xyz", "The class body") == pytest.approx(2 / 3)
    assert known_words("1 + 2", "The class body") == 0


def test_short_text(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="text must be at least 2 bytes long, got 1"):
        loss_per_byte(decoder, b"a")
