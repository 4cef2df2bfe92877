"""FLOPs, bytes and state of short_conv in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._contract import check_integer

__all__ = ["forward_bytes", "forward_flops", "kernel_bytes", "parameters", "state_bytes"]


def forward_flops(d: int, taps: int, *, entries: int = 1) -> int:
    """2 K d an entry; bias and SiLU, a few operations a channel, are left out."""
    d, taps = check_integer("d", d, 1), check_integer("taps", taps, 2)
    return 2 * taps * d * check_integer("entries", entries, 0)


def forward_bytes(d: int, taps: int, *, itemsize: int, entries: int = 1, bias: bool = False) -> int:
    """2 d elements an entry, in and out, and the taps once: a shifted entry comes from the cache."""
    d, taps = check_integer("d", d, 1), check_integer("taps", taps, 2)
    elements = 2 * d * check_integer("entries", entries, 0) + parameters(d, taps, bias=bias)
    return elements * check_integer("itemsize", itemsize, 1)


def kernel_bytes(
    d: int,
    taps: int,
    length: int,
    *,
    itemsize: int,
    sequences: int = 1,
    bias: bool = False,
    silu: bool = False,
    state: bool = False,
    keep: bool = False,
    labels: int = 0,
    blocks: int = 1,
) -> tuple[int, int]:
    """Bytes that the kernels touch, forward and backward; what comes again from the cache counts once.

    Forward x and y, backward x, the gradient of y and that of x: 2 d and 3 d elements an entry. Beside them
    the taps; an initial `state` and the one kept behind (`keep`), K − 1 entries a sequence; `labels`
    documents, a byte each, whose bits say which entries before are of the same; and a float32 sum for each
    tap and the bias from each of the `blocks` programs that share a channel.
    """
    forward = forward_bytes(d, taps, itemsize=itemsize, entries=length * sequences, bias=bias)
    backward = forward_bytes(d, taps, itemsize=itemsize, entries=length * sequences, bias=bias and silu)
    backward += d * length * sequences * itemsize + 4 * (taps + 1) * d * blocks
    one = d * sequences * itemsize
    before = taps - 1 if state else 0
    forward += (before + (taps - 1 if keep else 0)) * one
    backward += (2 * before + (min(taps - 1, length + before) if keep else 0)) * one
    return forward + labels, backward + labels


def parameters(d: int, taps: int, *, bias: bool = False) -> int:
    """K d taps, and d more with a bias."""
    return check_integer("d", d, 1) * (check_integer("taps", taps, 2) + bias)


def state_bytes(d: int, taps: int, *, itemsize: int, sequences: int = 1) -> int:
    """(K − 1) d elements a sequence, whatever its length."""
    d, taps = check_integer("d", d, 1), check_integer("taps", taps, 2)
    return (taps - 1) * d * check_integer("sequences", sequences, 1) * check_integer("itemsize", itemsize, 1)
