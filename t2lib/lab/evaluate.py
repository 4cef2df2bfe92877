"""How well a decoder knows a text."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib.decoder import Decoder

# How many bytes go through the decoder at once; a matter of memory, not of the result.
AT_ONCE = 4096


@torch.no_grad()
def loss_per_byte(decoder: Decoder, text: bytes) -> float:
    """Mean negative log-likelihood in nats of every byte of `text` but the first.

    Windows of one context advance by half a context and each scores the bytes that the one before it did
    not reach, so a byte is predicted from at least half a context (near the beginning of the text, from
    what there is). Divide by log 2 for bits.
    """
    if len(text) < 2:
        raise ValueError(f"text must be at least 2 bytes long, got {len(text)}.")
    was_training = decoder.training
    decoder.eval()
    tokens = torch.tensor(list(text), dtype=torch.int64, device=decoder.embedding.weight.device)
    context = min(decoder.config.context, len(tokens) - 1)
    stride = max(1, context // 2)
    windows = tokens.unfold(0, context + 1, stride)
    losses = torch.cat(
        [window_losses(decoder, part) for part in torch.split(windows, max(1, AT_ONCE // context))]
    )
    total = losses[0].sum() + losses[1:, -stride:].sum()
    left = (len(tokens) - 1 - context) % stride
    if left:
        total += window_losses(decoder, tokens[None, -context - 1 :])[0, -left:].sum()
    decoder.train(was_training)
    return float(total) / (len(tokens) - 1)


def window_losses(decoder: Decoder, windows: Tensor) -> Tensor:
    """(W, n + 1) tokens -> (W, n) losses of all but the first of each window, in float64."""
    logits = decoder(windows[:, :-1]).float()
    return F.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none").double()


def known_words(sample: str, corpus: str) -> float:
    """The share of the words of `sample` (letters only, three or more) that occur in `corpus`."""
    words = re.findall(r"[A-Za-z]{3,}", sample)
    known = set(re.findall(r"[A-Za-z]{3,}", corpus))
    return sum(word in known for word in words) / len(words) if words else 0.0
