"""What `python -m t2lib.verify delta` checks of Deep Delta Learning: a row a variant, a column a claim.

outputs, gradients   golden vectors
rewrite              every sublayer moves the state along its direction alone, by the stated amount
bound                |X'| <= |X| + β |v|, and 0 < β < 2
matrix               what each sublayer read, as a product of the rewrites before it
cut                  a text in pieces through the cache, against the whole
packed               two texts in one row, and one with padding on the left, against each alone
12 x 768, 24 x 1024  parameters of the published models
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from t2lib.cache import Cache
from t2lib.ops._checks import check_choice
from t2lib.streams import _claims
from t2lib.streams._golden import error
from t2lib.streams._variants import DELTA, built, embedding, toy
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass

__all__ = ["COLUMNS", "Check", "checks", "columns"]

Check = tuple[float, Callable[[], float] | str]
# Blocks and width of the published models -> the parameters that each variant adds to the plain decoder.
PUBLISHED = {
    (12, 768): {
        "ddl": 36_912,
        "ddl tc": 252_076,
        "ddl tc + ec": 264_364,
        "ddl cc": 132_268,
        "ddl cc + ec": 144_556,
    },
    (24, 1024): {
        "ddl": 98_400,
        "ddl tc": 655_700,
        "ddl tc + ec": 672_084,
        "ddl cc": 348_500,
        "ddl cc + ec": 364_884,
    },
}
SCALES = {f"{blocks} x {width}": (blocks, width) for blocks, width in PUBLISHED}
COLUMNS = ("outputs", "gradients", "rewrite", "bound", "matrix", "cut", "packed", *SCALES)


def columns(section: str) -> list[tuple[str, bool, str]]:
    return [(column, True, "") for column in COLUMNS]


def checks(section: str, column: str) -> dict[str, Check]:
    """One column: variant -> its check."""
    check_choice("column", column, COLUMNS)
    return {variant: _check(variant, column) for variant in DELTA}


def _check(variant: str, column: str) -> Check:
    if column in ("outputs", "gradients"):
        return _claims.golden_check(variant, gradients=column == "gradients")
    if column == "matrix":
        return _claims.mixing_check(variant)
    if column in SCALES:
        published = variant in PUBLISHED[SCALES[column]]
        return 0.0, partial(parameters, variant, SCALES[column]) if published else "not a published model"
    law = {"rewrite": rewrite, "bound": bound, "cut": cut, "packed": packed}[column]
    return 1e-12, partial(law, variant)


def steps(variant: str) -> Iterator[tuple[Stream, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """A walk, sublayer by sublayer: the stream, the state before and after, direction, target and gate."""
    stream: Any = built(variant)
    floor = stream.eps**2 * (stream.width if stream.guard == "kernel" else 1)
    state = stream.start(embedding(stream))
    with torch.no_grad():
        for i, (branch, norm) in enumerate(zip(*toy(stream), strict=True)):
            read = stream.read(state, i)
            normed = norm(read)
            y, heads = branch(normed), stream.heads[i]
            before = state.content.X.clone()
            state = stream.write(state, i, y, normed)
            k = y / (y.square().sum(-1, keepdim=True) + floor).sqrt()
            v = heads.target(read if stream.value_input == "read" else normed)
            yield stream, before, state.content.X, k, v, heads.beta(normed)


def rewrite(variant: str) -> float:
    """Along k the reading goes to the target by β|k|², or the target is added; across k nothing changes."""
    worst = 0.0
    for stream, before, after, k, v, beta in steps(variant):
        size = k.square().sum(-1, keepdim=True)
        share = beta[..., None] * size
        old, new = (torch.einsum("...d,...dv->...v", k, X) for X in (before, after))
        want = old + share * (v - old if stream.erase else v)
        across = [X - k[..., None] * (r / size)[..., None, :] for X, r in ((before, old), (after, new))]
        worst = max(worst, error(new, want), error(across[1], across[0]))
    return worst


def bound(variant: str) -> float:
    """The largest excess of a state's norm over its bound."""
    worst = 0.0
    for _, before, after, _, v, beta in steps(variant):
        if not bool(((beta > 0) & (beta < 2)).all()):
            raise AssertionError("a gate left (0, 2)")
        norms = [X.flatten(-2).norm(dim=-1) for X in (after, before)]
        worst = max(worst, float((norms[0] - norms[1] - beta * v.norm(dim=-1)).max()))
    return worst


def _walk(stream: Stream, x: Tensor, tokens: Pass | None = None) -> Tensor:
    """The output of one pass, which is then entered into its cache."""
    with torch.no_grad():
        state = stream.start(x, tokens)
        for i, (branch, norm) in enumerate(zip(*toy(stream), strict=True)):
            normed = norm(stream.read(state, i))
            state = stream.write(state, i, branch(normed), normed)
        if tokens is not None:
            tokens.finish(x)
        return stream.finish(state)


def cut(variant: str) -> float:
    """Pieces of any length, shorter than a kernel too; the cache holds what the closed form says."""
    stream = built(variant, blocks=2)
    x = embedding(stream, leading=(2, 8))
    whole, worst = _walk(stream, x), 0.0
    for cuts in ((1,), (2, 3), (3, 4, 5, 6, 7)):
        cache, parts = Cache(stream), []
        for piece in x.tensor_split(cuts, 1):
            parts.append(_walk(stream, piece, Pass(cache, (2,), piece.shape[1])))
        worst = max(worst, error(torch.cat(parts, 1), whole))
    numbers = sum(cache.sizes().values()) / x.element_size() / 2
    return max(worst, abs(numbers - stream.cost().cache))


def packed(variant: str) -> float:
    stream = built(variant, blocks=2)
    first, second = embedding(stream, leading=(2, 1, 5)).unbind(0)
    second = second[:, :3]
    alone = torch.cat([_walk(stream, first), _walk(stream, second)], 1)
    documents = torch.tensor([[0] * 5 + [1] * 3])
    row = torch.cat([first, second], 1)
    together = _walk(stream, row, Pass(None, (1,), 8, documents=documents))
    padding = torch.full((1, 2, stream.width), 7.0, dtype=row.dtype)
    valid = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    rows = torch.cat([first, torch.cat([padding, second], 1)])
    padded = _walk(stream, rows, Pass(None, (2,), 5, valid=valid))
    return max(error(together, alone), error(padded[1:, 2:], alone[:, 5:]))


def parameters(variant: str, scale: tuple[int, int]) -> float:
    """How far module and closed form are from the published count."""
    blocks, width = scale
    with torch.device("meta"):
        stream = DELTA[variant].build(width, blocks)
    counted = sum(p.numel() for p in stream.parameters())
    return max(abs(count - PUBLISHED[scale][variant]) for count in (counted, stream.cost().parameters))
