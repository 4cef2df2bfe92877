"""Text from a decoder, one token after the other, each read once: the cache holds what came before."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from t2lib.ops._checks import check_integer, check_number

if TYPE_CHECKING:
    from t2lib.decoder import Decoder

# From this many tokens on, a terminal shows a progress bar.
LONG = 200


@torch.no_grad()
def generate(
    decoder: Decoder,
    prompts: Any,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | Sequence[int] = 0,
    progress: bool | None = None,
) -> Any:
    """Continue every prompt by `length` tokens.

    prompts      int64 (..., T), which gives (..., T + length); or a list of prompts (T_b,) of any lengths,
                 tensors or NumPy arrays, which gives a list of tensors (T_b + length,). A list is padded on
                 the left to one batch; no token reads the padding, so each prompt goes on as it would alone
    temperature  0 takes the most likely token; otherwise tokens are drawn from softmax(logits / temperature)
    top_k        draw from the k most likely only
    seed         of one generator for the whole batch; or a list of seeds, one a row, so that what is drawn
                 for a row does not depend on the others
    progress     whether to show a bar; None shows one on a terminal for 200 tokens or more

    Every token is read once, through a cache, until the text fills the context. From then on the last
    `context` tokens are read anew for each token: as the window moves, the position of each one changes.
    """
    length = check_integer("length", length, 0)
    written, real = (prompts, None)
    if isinstance(prompts, (list, tuple)):
        written, real = padded(prompts, decoder.embedding.weight.device)
    decoder.check(written, any_length=True)
    pick = Pick(temperature, top_k, seed, written, decoder.config.vocabulary)
    context, cache, unread = decoder.config.context, decoder.cache(), written
    with evaluating(decoder), steps(length, progress) as counted:
        for _ in counted:
            if cache.length + unread.shape[-1] > context:
                cache, unread = decoder.cache(), written[..., -context:]
            # Only a first call of a cache holds padding; later tokens go on in the document of the last.
            valid = None if real is None or cache.length else real[..., -unread.shape[-1] :]
            unread = pick(decoder(unread, valid=valid, cache=cache)[..., -1, :])
            written = torch.cat([written, unread], -1)
            if real is not None:
                real = torch.cat([real, torch.ones_like(unread, dtype=torch.bool)], -1)
    if real is None:
        return written
    return [row[-(len(prompt) + length) :] for row, prompt in zip(written, prompts, strict=True)]


def padded(given: Sequence[Tensor | np.ndarray], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Prompts (T_b,) of any lengths as one batch (B, T), with where it holds a token of a prompt (B, T).

    Padding stands on the left, as token 0. Arrays go to `device`.
    """
    if not given:
        raise ValueError("prompts must hold at least one prompt; got none.")
    prompts: list[Any] = [
        torch.as_tensor(x, device=device) if isinstance(x, np.ndarray) and x.dtype == np.int64 else x
        for x in given
    ]
    for place, prompt in enumerate(prompts):
        if (
            not isinstance(prompt, Tensor)
            or prompt.ndim != 1
            or prompt.dtype != torch.int64
            or not len(prompt)
        ):
            arrays = (Tensor, np.ndarray)
            got = (prompt.dtype, tuple(prompt.shape)) if isinstance(prompt, arrays) else type(prompt).__name__
            raise TypeError(f"prompts[{place}] must be int64 of shape (T,), not empty; got {got}.")
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.stack([torch.nn.functional.pad(p, (longest - len(p), 0)) for p in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=tokens.device)
    places = torch.arange(longest, device=tokens.device)
    return tokens, places >= longest - lengths[:, None]


class Pick:
    """One token from logits (..., vocabulary) -> (..., 1), by temperature, top_k and seed."""

    def __init__(
        self,
        temperature: float,
        top_k: int | None,
        seed: int | Sequence[int],
        tokens: Tensor,
        vocabulary: int,
    ) -> None:
        if check_number("temperature", temperature) < 0:
            raise ValueError(f"temperature must be at least 0; got {temperature!r}.")
        if top_k is not None and check_integer("top_k", top_k, 1) > vocabulary:
            raise ValueError(f"top_k must lie in 1..{vocabulary} or be None; got {top_k!r}.")
        self.temperature, self.top_k = float(temperature), top_k
        self.each = isinstance(seed, (list, tuple))
        seeds: list[Any] = list(seed) if isinstance(seed, (list, tuple)) else [seed]
        rows = math.prod(tokens.shape[:-1])
        if self.each and len(seeds) != rows:
            raise ValueError(
                f"seed must be an integer or a list of {rows}, one a row; got {len(seeds)} seeds."
            )
        for one in seeds:
            if check_integer("seed", one, 0) >= 2**63:
                raise ValueError(f"seed must lie below 2^63; got {one}.")
        self.generators = [torch.Generator(device=tokens.device).manual_seed(int(one)) for one in seeds]

    def __call__(self, logits: Tensor) -> Tensor:
        # Wide enough for any temperature: what is divided by it is at most 0.
        logits = logits.double()
        if bool(logits.isnan().any()):
            raise ValueError("logits must be numbers to go on from; the decoder put out NaN.")
        if self.temperature == 0:
            return logits.argmax(-1, keepdim=True)
        kept = torch.zeros_like(logits)
        if self.top_k is not None:
            # By place, not by value: with equal logits there would be more than k.
            places = logits.topk(self.top_k, dim=-1).indices
            kept = torch.full_like(logits, -math.inf).scatter(-1, places, 0.0)
        below = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        weights = torch.softmax(below + kept, dim=-1)
        rows = weights.reshape(-1, weights.shape[-1])
        batches = torch.split(rows, 1) if self.each else [rows]
        drawn = [torch.multinomial(b, 1, generator=g) for b, g in zip(batches, self.generators, strict=True)]
        return torch.cat(drawn).reshape(*weights.shape[:-1], 1)


@contextmanager
def evaluating(decoder: Decoder) -> Iterator[None]:
    """Inside, without dropout; afterwards as before."""
    training = {module: module.training for module in decoder.modules()}
    decoder.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def steps(length: int, progress: bool | None) -> Iterator[Any]:
    """The numbers up to `length`, with a bar if asked for, or if it is long and somebody looks."""
    from tqdm import tqdm

    shown = length >= LONG and sys.stderr.isatty() if progress is None else progress
    with tqdm(range(length), unit="token", disable=not shown) as bar:
        yield bar
