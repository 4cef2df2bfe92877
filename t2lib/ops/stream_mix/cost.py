"""FLOPs and bytes of stream_mix in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from collections.abc import Collection

from t2lib.ops._contract import check_integer

__all__ = ["forward_bytes", "forward_flops", "kernel_bytes", "sinkhorn_flops", "sinkhorn_kernel_bytes"]

NEEDS = ("streams", "mix", "write", "branch", "read")


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


def kernel_bytes(
    n: int,
    d: int,
    *,
    itemsize: int,
    mix: bool = True,
    write: bool = True,
    read: bool = True,
    per_token: bool = True,
    tokens: int = 1,
    needs: Collection[str] = NEEDS,
) -> tuple[int, int]:
    """Bytes that the kernel of the rung "kernels" touches forward, and the one backward.

    Forward it is `forward_bytes`, and once the coefficients that all tokens share. Backward, elements a
    token, for the gradients in `needs`, out of NEEDS:

    in   the gradients of the new streams, n d, and of the read, d; for that of the mix or the read, the
         streams, n d; for that of write or read, the branch output, d; the mix, n², for that of the streams
         or the read; write, n, for that of the branch or the read; and read, n, for all but its own
    out  each gradient; a shared coefficient gets a float32 a token

    PyTorch sums the float32 of shared coefficients behind the kernel: not counted.
    """
    itemsize, tokens = check_integer("itemsize", itemsize, 1), check_integer("tokens", tokens, 0)
    forward = forward_bytes(
        n, d, itemsize=itemsize, mix=mix, write=write, read=read, per_token=per_token, tokens=tokens
    )
    numbers = {"mix": n * n * mix, "write": n * write, "read": n * read}
    shared = 0 if per_token or not tokens else sum(numbers.values()) * itemsize
    present = {"streams": True, "mix": mix, "write": write, "branch": write, "read": read}
    wanted = {name for name in needs if present[name]}
    arriving = bool(wanted - {"read"})
    moved = n * d * ((mix or write) * arriving + ("streams" in wanted)) + d * read * bool(wanted)
    moved += n * d * bool(wanted & {"mix", "read"})
    moved += d * write * (bool(wanted & {"write", "read"}) + ("branch" in wanted))
    loaded = numbers["mix"] * bool(wanted & {"streams", "read"})
    loaded += numbers["write"] * bool(wanted & {"branch", "read"}) + numbers["read"] * arriving
    stored = sum(numbers[name] for name in wanted & numbers.keys())
    if per_token:
        return forward, tokens * (moved + loaded + stored) * itemsize
    return forward + shared, tokens * (moved * itemsize + 4 * stored) + (loaded * itemsize if tokens else 0)


def sinkhorn_kernel_bytes(
    n: int, iterations: int, *, itemsize: int, eps: float = 0.0, tokens: int = 1
) -> tuple[int, int]:
    """Bytes of the kernel of Sinkhorn forward, and of the one backward.

    2 n² elements a matrix, and 3 n². Backward also n float32 a step, written to memory and read again: what
    the step divided by. There are 2 · iterations steps, of which the first leaves nothing with eps, being a
    softmax.
    """
    n, iterations = check_integer("n", n, 1), check_integer("iterations", iterations, 1)
    tokens, itemsize = check_integer("tokens", tokens, 0), check_integer("itemsize", itemsize, 1)
    steps = 2 * iterations - (eps > 0)
    return tokens * 2 * n * n * itemsize, tokens * (3 * n * n * itemsize + 2 * steps * n * 4)
