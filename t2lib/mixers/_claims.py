"""What `python -m t2lib.verify mixers` checks: a row a mixer and stream, a column a way of reading a text.

    prefill   the whole text in one call with a cache, and what `sizes()` says of it
    decode    a prompt, then token by token
    chunked   pieces of any length, shorter than a kernel or a window too
    padded    padded on the left, in one call and in pieces, against the text alone
    packed    two texts in one row, in one call and in pieces, against each alone

In every cell: the largest difference of a logit to the single pass without a cache, in float64. Local caches
must not grow with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from t2lib.cache import Cache
from t2lib.decoder import Decoder
from t2lib.mixers._variants import STREAMS, VARIANTS, decoder, text

__all__ = ["COLUMNS", "Check", "checks", "columns"]

# A tolerance, and what measures an error; or why it is left out.
Check = tuple[float, Callable[[], float] | str]
LENGTH, OTHER = 9, 5


def columns(section: str) -> list[tuple[str, bool, str]]:
    """The columns of the table, all of which run wherever there is torch."""
    return [(column, True, "") for column in COLUMNS]


def checks(section: str, column: str) -> dict[str, Check]:
    """One column: "mixer, stream" -> its check."""
    measure = COLUMNS[column]
    return {f"{m}, {s}": (1e-12, partial(measure, m, s)) for m in VARIANTS for s in STREAMS}


@cache
def case(mixer: str, stream: str) -> tuple[Decoder, Tensor, Tensor, Tensor, Tensor]:
    """A decoder, two texts (2, T), and the logits of each in a single pass."""
    model = decoder(mixer, stream)
    texts = text(2, LENGTH), text(2, OTHER, seed=2)
    with torch.no_grad():
        return model, *texts, model(texts[0]), model(texts[1])


def difference(got: Tensor, want: Tensor) -> float:
    if got.shape != want.shape:
        raise ValueError(f"got has shape {tuple(got.shape)}, wanted is {tuple(want.shape)}")
    return float((got - want).abs().max())


@torch.no_grad()
def read(model: Decoder, tokens: Tensor, parts: Sequence[int], **labels: Tensor) -> tuple[Tensor, Cache]:
    """The logits of a text in parts, with the cache that they leave."""
    kept, logits = model.cache(), []
    pieces = {name: torch.split(x, list(parts), 1) for name, x in labels.items()}
    for number, piece in enumerate(torch.split(tokens, list(parts), 1)):
        logits.append(model(piece, cache=kept, **{name: x[number] for name, x in pieces.items()}))
    return torch.cat(logits, 1), kept


def prefill(mixer: str, stream: str) -> float:
    model, tokens, _, want, _ = case(mixer, stream)
    got, kept = read(model, tokens, (LENGTH,))
    longer = read(model, text(2, 3 * LENGTH, seed=3), (3 * LENGTH,))[1].sizes()
    for kind, size in kept.sizes().items():
        times = 3 if kind == "global" else 1
        if longer[kind] != times * size:
            raise AssertionError(f"{kind}: {size} bytes, and {longer[kind]} for a text three times as long")
    return difference(got, want)


def decode(mixer: str, stream: str) -> float:
    """After a prompt that is shorter than a kernel and than most windows."""
    model, tokens, _, want, _ = case(mixer, stream)
    return difference(read(model, tokens, (2, *(1,) * (LENGTH - 2)))[0], want)


def chunked(mixer: str, stream: str) -> float:
    model, tokens, _, want, _ = case(mixer, stream)
    cuts = ((3, 4, 2), (1, 6, 2))
    return max(difference(read(model, tokens, parts)[0], want) for parts in cuts)


def padded(mixer: str, stream: str) -> float:
    """A long text, and a short one behind padding, as one batch."""
    model, long, short, *alone = case(mixer, stream)
    missing = LENGTH - OTHER
    tokens = torch.cat([long[:1], torch.cat([torch.full((1, missing), 7), short[:1]], 1)])
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[1, :missing] = False
    errors = []
    for parts in ((LENGTH,), (2, 4, 1, 2)):
        got, _ = read(model, tokens, parts, valid=valid)
        errors += [difference(got[0], alone[0][0]), difference(got[1, missing:], alone[1][0])]
    return max(errors)


def packed(mixer: str, stream: str) -> float:
    """Two texts one after the other, as two documents."""
    model, first, second, *alone = case(mixer, stream)
    tokens, want = torch.cat([first, second], 1), torch.cat(alone, 1)
    documents = torch.tensor([[3] * LENGTH + [4] * OTHER] * 2)
    ways = ((LENGTH + OTHER,), (4, 7, 1, 2))
    return max(difference(read(model, tokens, parts, documents=documents)[0], want) for parts in ways)


COLUMNS: dict[str, Callable[[str, str], float]] = {
    "prefill": prefill,
    "decode": decode,
    "chunked": chunked,
    "padded": padded,
    "packed": packed,
}
