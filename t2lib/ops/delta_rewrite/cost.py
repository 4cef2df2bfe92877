"""FLOPs, bytes and kept numbers of delta_rewrite in closed form, from shapes alone.

One multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from t2lib.ops._contract import check_integer

__all__ = ["backward_bytes", "forward_bytes", "forward_flops", "kept_numbers", "kernel_bytes"]


def forward_flops(d: int, d_v: int, *, tokens: int = 1, erase: bool = True) -> int:
    """(4 d_v + 3) d a token: reading 2 d d_v, update 2 d d_v, length and division 3 d.

    The write-only control has no reading.
    """
    d, d_v, tokens = _sizes(d, d_v, tokens)
    return tokens * ((4 if erase else 2) * d_v + 3) * d


def forward_bytes(d: int, d_v: int, *, itemsize: int, tokens: int = 1) -> int:
    """(2 d_v + 1) d + d_v + 1 elements a token: the state in and out, the direction, the target, the gate."""
    d, d_v, tokens = _sizes(d, d_v, tokens)
    return tokens * ((2 * d_v + 1) * d + d_v + 1) * check_integer("itemsize", itemsize, 1)


def backward_bytes(d: int, d_v: int, *, itemsize: int, tokens: int = 1, tape: bool = False) -> int:
    """(3 d_v + 2) d elements a token and 4 d_v + 2 small ones.

    The state and the gradient of the new state in, the gradient of the state out; the direction in, its
    gradient out.

    With a tape the state is not loaded but rebuilt: the one after it is loaded, and the rebuilt one written.
    """
    d, d_v, tokens = _sizes(d, d_v, tokens)
    # v, r and ρ in, ∂v out; β in, ∂β out.
    small = 4 * d_v + 2
    return tokens * (((4 if tape else 3) * d_v + 2) * d + small) * check_integer("itemsize", itemsize, 1)


def kept_numbers(d: int, d_v: int, *, tokens: int = 1, tape: bool = False) -> int:
    """Numbers kept for the backward pass: k, v, β, r and ρ, and without a tape the state."""
    d, d_v, tokens = _sizes(d, d_v, tokens)
    return tokens * (d + 3 * d_v + 1 + (0 if tape else d * d_v))


def kernel_bytes(
    d: int,
    d_v: int,
    *,
    itemsize: int,
    tokens: int = 1,
    erase: bool = True,
    parts: bool = False,
    compress: bool = False,
    chunk: int = 64,
) -> tuple[int, int]:
    """Bytes that the kernel of the rung "kernels" touches forward, and those backward.

    Forward it is `forward_bytes`, and float32 for the reading, if there is one, and the correction. Backward,
    elements a token: the gradients of the new state in and of the state out, and the state, 3 d d_v; the
    direction and its gradient, 2 d; target and gate and their gradients, 2 d_v + 2; and float32 for reading,
    correction and, with `parts`, what arrives at them. Without an erase and without parts the gradient of the
    state is the one that arrives, so 2 d d_v less are moved.

    `compress` adds what is read of the new state, d a token, and its weights. Backward, a third kernel passes
    over state, direction, correction, that gradient and the length again, and leaves a float32 state a chunk
    of tokens.
    """
    d, d_v, tokens = _sizes(d, d_v, tokens)
    itemsize = check_integer("itemsize", itemsize, 1)
    reads = erase or parts
    wide = 4 * d_v * (1 + reads)
    forward = forward_bytes(d, d_v, itemsize=itemsize, tokens=tokens) + tokens * wide
    states = 3 if reads else 2 if compress else 1
    numbers = (states * d_v + 2) * d + 2 * d_v + 2
    backward = tokens * (numbers * itemsize + wide + 8 * d_v * parts)
    if compress and tokens:
        weights = d * d_v * itemsize
        forward += tokens * d * itemsize + weights
        again = (d_v + 2) * d * itemsize + 4 * d_v + 4
        backward += tokens * (d * itemsize + 4 + again) + weights + -(-tokens // chunk) * 4 * d * d_v
    return forward, backward


def _sizes(d: int, d_v: int, tokens: int) -> tuple[int, int, int]:
    return check_integer("d", d, 1), check_integer("d_v", d_v, 1), check_integer("tokens", tokens, 0)
