"""FLOPs, bytes and state of short_conv in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._contract import check_choice, check_integer

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
    gradients: tuple[str, ...] = ("x", "weight", "bias", "state"),
) -> tuple[int, int]:
    """Bytes that the kernels touch, forward and backward; what comes again from the cache counts once.

    Forward x and y, 2 d elements an entry, and the taps; an initial `state` and the one kept behind (`keep`),
    K − 1 entries a sequence; and `labels` documents, a byte each, whose bits say which entries before are of
    the same.

    Backward the `gradients` of some of x, weight, bias and state, as far as they are there. All of them:
    x, the gradient of y and that of x, 3 d elements an entry; the same beside them, and a float32 sum for
    each tap and the bias from each of the `blocks` programs that share a channel. Without SiLU, x and state
    are read for the gradient of weight alone, and the taps for those of x and state alone. For nothing but
    the gradient of the state, K − 1 entries a sequence are read.

    Not counted is what PyTorch does beside the kernels: it makes the bits, about 24 K bytes a document number
    of 64 bits in each pass, and adds up the sums of the blocks.
    """
    d, taps = check_integer("d", d, 1), check_integer("taps", taps, 2)
    length, sequences = check_integer("length", length, 1), check_integer("sequences", sequences, 1)
    for name in gradients:
        check_choice("gradients", name, ("x", "weight", "bias", "state"))
    one = d * sequences * check_integer("itemsize", itemsize, 1)
    before = taps - 1 if state else 0
    forward = forward_bytes(d, taps, itemsize=itemsize, entries=length * sequences, bias=bias)
    forward += (before + (taps - 1 if keep else 0)) * one + labels

    of_x, of_weight = "x" in gradients, "weight" in gradients
    of_bias, of_state = bias and "bias" in gradients, state and "state" in gradients
    first = min(taps - 1, length)
    # Entries whose gradient arrives, whose own is written, whose documents are looked up.
    arrives = length if of_x or of_weight or of_bias else first if of_state else 0
    leaves = (length if of_x else 0) + (before if of_state else 0)
    if silu or of_weight:
        looked_up = arrives
    elif of_x:
        # Without SiLU, the first entry counts only as a reader of the state and as the last one.
        looked_up = length if of_state else max(length - 1, int(keep))
    else:
        looked_up = first if of_state else 0
    backward = (arrives + leaves) * one + labels * looked_up // length
    if arrives and (silu or of_weight):
        backward += (arrives + before) * one
    if keep:
        backward += one * (min(taps - 1, leaves) if of_x else max(0, taps - 1 - length) if of_state else 0)
    if leaves or (arrives and silu):
        backward += parameters(d, taps, bias=bias and silu) * itemsize
    backward += 4 * d * blocks * (taps * of_weight + of_bias)
    return forward, backward


def parameters(d: int, taps: int, *, bias: bool = False) -> int:
    """K d taps, and d more with a bias."""
    return check_integer("d", d, 1) * (check_integer("taps", taps, 2) + bias)


def state_bytes(d: int, taps: int, *, itemsize: int, sequences: int = 1) -> int:
    """(K − 1) d elements a sequence, whatever its length."""
    d, taps = check_integer("d", d, 1), check_integer("taps", taps, 2)
    return (taps - 1) * d * check_integer("sequences", sequences, 1) * check_integer("itemsize", itemsize, 1)
