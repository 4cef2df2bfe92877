"""How well a decoder knows a text."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F

from t2lib.decoder import Decoder


@torch.no_grad()
def loss_per_byte(decoder: Decoder, text: bytes) -> float:
    """Mean negative log-likelihood in nats of every byte of `text` but the first.

    Windows of one context advance by half a context, and a byte is scored in the first window in which
    it stands in the second half, so that it is predicted from at least half a context (the first
    half-context of the text from what there is). Divide by log 2 for bits.
    """
    if len(text) < 2:
        raise ValueError(f"text must be at least 2 bytes long, got {len(text)}.")
    context = decoder.config.context
    stride = max(1, context // 2)
    tokens = torch.tensor(list(text), dtype=torch.int64)
    device = decoder.embedding.weight.device
    was_training = decoder.training
    decoder.eval()
    total, scored = 0.0, 1
    while scored < len(tokens):
        # The window predicts bytes start+1 .. stop-1 and counts those not yet scored.
        stop = min(len(tokens), context + 1 if scored == 1 else scored + stride)
        start = max(0, stop - 1 - context)
        window = tokens[start:stop].to(device)
        losses = F.cross_entropy(decoder(window[:-1]).float(), window[1:], reduction="none")
        total += float(losses[scored - start - 1 :].double().sum())
        scored = stop
    decoder.train(was_training)
    return total / (len(tokens) - 1)


def known_words(sample: str, corpus: str) -> float:
    """The share of the words of `sample` (letters only, three or more) that occur in `corpus`."""
    words = re.findall(r"[A-Za-z]{3,}", sample)
    known = set(re.findall(r"[A-Za-z]{3,}", corpus))
    return sum(word in known for word in words) / len(words) if words else 0.0
