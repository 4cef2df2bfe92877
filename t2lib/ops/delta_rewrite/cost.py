"""FLOPs, bytes and kept numbers of delta_rewrite in closed form, from shapes alone.

One multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from t2lib.ops._contract import check_integer

__all__ = ["backward_bytes", "forward_bytes", "forward_flops", "kept_numbers"]


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


def _sizes(d: int, d_v: int, tokens: int) -> tuple[int, int, int]:
    return check_integer("d", d, 1), check_integer("d_v", d_v, 1), check_integer("tokens", tokens, 0)
