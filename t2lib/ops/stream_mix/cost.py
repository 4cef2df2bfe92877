"""FLOPs and bytes of stream_mix in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._contract import check_integer

__all__ = ["forward_bytes", "forward_flops", "sinkhorn_flops"]


def forward_flops(
    n: int, d: int, *, mix: bool = True, write: bool = True, read: bool = True, tokens: int = 1
) -> int:
    """2 n² d a token to mix, 2 n d to write, 2 n d to read."""
    n, d, tokens = check_integer("n", n, 1), check_integer("d", d, 1), check_integer("tokens", tokens, 0)
    return tokens * 2 * d * (n * n * mix + n * write + n * read)


def forward_bytes(
    n: int,
    d: int,
    *,
    itemsize: int,
    mix: bool = True,
    write: bool = True,
    read: bool = True,
    per_token: bool = True,
    tokens: int = 1,
) -> int:
    """Bytes of one call.

    Elements a token: the streams in, n d; the branch output in, d; the new streams out, n d; the read out, d;
    and n² + 2 n coefficients if every token has its own.

    A read of its own before a sublayer, and mix and write behind it, come to (3 n + 2) d.
    """
    n, d, tokens = check_integer("n", n, 1), check_integer("d", d, 1), check_integer("tokens", tokens, 0)
    moved = n * d + d * write + n * d * (mix or write) + d * read
    coefficients = (n * n * mix + n * write + n * read) * per_token
    return (tokens * (moved + coefficients)) * check_integer("itemsize", itemsize, 1)


def sinkhorn_flops(n: int, iterations: int, *, tokens: int = 1) -> int:
    """4 n² an iteration and matrix: for columns and for rows, n² additions and n² divisions."""
    n, iterations = check_integer("n", n, 1), check_integer("iterations", iterations, 1)
    return check_integer("tokens", tokens, 0) * iterations * 4 * n * n
