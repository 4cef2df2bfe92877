"""What a recorded stack of states tells: how large, how parallel, who reaches whom, who wrote a logit.

Every function takes what `Decoder` returns, a stack of levels (levels, ..., T, d) or branches
(2L, ..., T, d), or a decoder and its tokens, and computes one thing. Nothing here needs gradients.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib.decoder import Decoder

__all__ = [
    "branch_gram",
    "branch_ratios",
    "change_per_cell",
    "consecutive_cosines",
    "depth_mixing",
    "expected_rms",
    "lens_ranks",
    "logit_parts",
    "random_stream",
    "rms",
    "unroll",
]


def rms(states: Tensor) -> Tensor:
    """Root mean square of each state, (..., d) -> (...): its norm divided by sqrt(d)."""
    return states.square().mean(-1).sqrt()


def consecutive_cosines(stack: Tensor) -> Tensor:
    """Cosine of each level with the level below it, (levels, ..., d) -> (levels - 1, ...)."""
    return F.cosine_similarity(stack[:-1], stack[1:], dim=-1)


def branch_ratios(stack: Tensor, branches: Tensor) -> Tensor:
    """Size of what a sublayer wrote over the size of the stream after the writing.

    `stack` (2L+1, ..., d) in sublayer units and `branches` (2L, ..., d) give (2L, ...).
    """
    if len(stack) != len(branches) + 1:
        raise ValueError(
            f"stack must have one level more than there are branches ({len(branches)}), got {len(stack)}; "
            'take hidden_states(tokens, unit="sublayer").'
        )
    return rms(branches) / rms(stack[1:])


def depth_mixing(sublayers: int) -> Tensor:
    """How a plain residual stream mixes over depth: a triangle of ones, (2L+1, 2L+1) for 2L sublayers.

    One row a reader, the sublayers in order and then the final norm; one column a term, the embedding and
    then the branches. No parameters, and the same for every token and every text.
    """
    return torch.ones(sublayers + 1, sublayers + 1, dtype=torch.float64).tril()


def unroll(embedding: Tensor, branches: Tensor) -> Tensor:
    """All levels of the stream from what was written: level k is the embedding plus branches 1 to k.

    `embedding` (..., d) and `branches` (2L, ..., d) give (2L+1, ..., d), equal up to rounding to
    `decoder.hidden_states(tokens, unit="sublayer")`.

    Book: eq-unrolled
    """
    sources = torch.cat([embedding[None], branches])
    mixed: Tensor = torch.tensordot(depth_mixing(len(branches)).to(sources), sources, dims=1)
    return mixed


def expected_rms(additions: float, size: float = 1.0, correlation: float = 0.0) -> float:
    """The size of a stream that started at 1 after k additions of RMS `size`.

    sqrt(1 + k size^2 + k (k - 1) correlation size^2), where `correlation` is that of any two branches; the
    start is taken to be uncorrelated with all of them. Growth like sqrt(k) at correlation 0, like k above.

    Book: eq-sqrt-growth
    """
    return math.sqrt(1 + size**2 * additions * (1 + (additions - 1) * correlation))


def random_stream(
    depth: int,
    *,
    scale: float = 1.0,
    shared: float = 0.0,
    width: int = 256,
    tokens: int = 64,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """A residual stream of untrained MLP branches, float64: levels (depth+1, T, d), branches (depth, T, d).

    Branch k is `scale` times a fresh random two-matrix ReLU network of the RMS-normalised stream, scaled to
    unit variance. `shared` in [0, 1] mixes into every branch one vector a token that all branches have in
    common, so that any two branches correlate by `shared`. Drawn from NumPy's generator for `seed`.
    """
    if not 0 <= shared <= 1:
        raise ValueError(f"shared must lie in [0, 1], got {shared!r}.")
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal
    h = draw((tokens, width))
    common = draw((tokens, width))
    levels, branches = [h], []
    for _ in range(depth):
        x = h / np.sqrt(np.mean(h**2, axis=-1, keepdims=True))
        # Half of the ReLU's units are silent, hence the factor 2 in the variance of the second matrix.
        hidden = np.maximum(x @ draw((width, width)) / math.sqrt(width), 0)
        own = hidden @ draw((width, width)) * math.sqrt(2 / width)
        branches.append(scale * (math.sqrt(shared) * common + math.sqrt(1 - shared) * own))
        h = h + branches[-1]
        levels.append(h)
    return torch.from_numpy(np.stack(levels)), torch.from_numpy(np.stack(branches))


def branch_gram(embedding: Tensor, branches: Tensor) -> Tensor:
    """Mean product per channel of any two terms, (2L+1, 2L+1): sizes on the diagonal, overlaps off it.

    `embedding` (T, d) and `branches` (2L, T, d). All entries together sum to the mean square of the last
    level, so whatever the sizes do not explain of its growth, the overlaps do.
    """
    sources = torch.cat([embedding[None], branches]).flatten(1)
    return sources @ sources.T / sources.shape[1]


@torch.no_grad()
def change_per_cell(decoder: Decoder, tokens: Tensor, position: int, byte: int) -> Tensor:
    """Replace one token and say how far each cell of the grid moves, relative to its size: (L+1, T).

    A cell that the token cannot influence is exactly 0. `tokens` has shape (T,).
    """
    replaced = tokens.clone()
    replaced[position] = byte
    before, after = decoder.hidden_states(tokens), decoder.hidden_states(replaced)
    return rms(after - before) / rms(before)


@torch.no_grad()
def lens_ranks(decoder: Decoder, stack: Tensor, following: Tensor) -> Tensor:
    """The logit lens: at each level, how many bytes score above the one that follows. 0 means right.

    `stack` (levels, T, d) and `following` (T,), the byte after each position, give (levels, T).
    """
    logits = decoder.unembed(stack)
    right = logits.gather(-1, following.expand(stack.shape[:-1])[..., None])
    return (logits > right).sum(-1)


@torch.no_grad()
def logit_parts(decoder: Decoder, tokens: Tensor) -> Tensor:
    """What each contribution adds to each logit, the final norm's divisor held fixed.

    Tokens (..., T) give (2L+1, ..., T, vocabulary): first the embedding, then the sublayers in order. They
    sum over the first axis to `decoder(tokens)`, up to rounding.

    Book: eq-logit-parts
    """
    embedding, branches = decoder.embed(tokens), decoder.branches(tokens)
    sources = torch.cat([embedding[None], branches])
    norm = decoder.final_norm
    divisor = (sources.sum(0).square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return F.linear(sources * norm.gain / divisor, decoder.embedding.weight)
