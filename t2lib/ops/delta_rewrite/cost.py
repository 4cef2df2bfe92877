"""FLOPs, bytes and kept numbers of delta_rewrite in closed form, from shapes alone.

One multiply-add is 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Collection

from t2lib.ops._contract import check_integer

__all__ = ["backward_bytes", "forward_bytes", "forward_flops", "kept_numbers", "kernel_bytes"]

NEEDS = ("X", "k", "v", "beta", "compress")


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
    needs: Collection[str] = NEEDS,
) -> tuple[int, int]:
    """Bytes that the kernel of the rung "kernels" touches forward, and those backward.

    Forward it is `forward_bytes`, and float32 for the reading, if there is one, and the correction.
    `compress` adds what is read of the new state, d a token, and its weights.

    Backward, elements a token, for the gradients in `needs`, out of NEEDS, with nothing of a part that only
    another would ask for:

    all       the direction, d; and for all but the compressor the gradient of the new state, d d_v, with
              `compress` that of what was read, d, and the weights, and with `parts` float32 for what arrives
              at reading and correction
    X         the gate, and the gradient of the state out, d d_v; without an erase, parts and compressor it
              is the one that arrives, and nothing is moved
    k         the state, d d_v (not without an erase and parts), reading and correction in float32, the gate;
              d out
    v, beta   for v the gate, for beta target and reading; d_v and 1 out
    compress  a third kernel passes over state, direction, correction, the gradient of what was read and the
              length, which the other one writes, and leaves a float32 state a chunk of tokens, for PyTorch
              to add up behind it: that is not counted

    A state too large for registers (kernels.HELD_NUMBERS) is asked for twice in a launch, and counted once.
    """
    d, d_v, tokens = _sizes(d, d_v, tokens)
    itemsize = check_integer("itemsize", itemsize, 1)
    reads, wanted = erase or parts, set(needs)
    forward = forward_bytes(d, d_v, itemsize=itemsize, tokens=tokens) + tokens * 4 * d_v * (1 + reads)
    weights = d * d_v * itemsize if compress and tokens else 0
    forward += tokens * d * itemsize * compress + weights
    wanted -= set() if compress else {"compress"}
    wanted -= set() if reads or compress else {"X"}
    closed, state = bool(wanted - {"compress"}), bool(wanted & {"X", "k"})
    small = bool(wanted & {"v", "beta"})
    numbers = d * bool(wanted) + (d_v * d + d * compress) * closed
    numbers += ("v" in wanted or (erase and state)) + d_v * ("beta" in wanted)
    numbers += d_v * d * (("k" in wanted and reads) + ("X" in wanted))
    numbers += d * ("k" in wanted) + d_v * ("v" in wanted) + ("beta" in wanted)
    wide = d_v * (("k" in wanted) + (("k" in wanted and reads) or ("beta" in wanted and erase)))
    wide += d_v * parts * (state + (small or (erase and state)))
    backward = tokens * (numbers * itemsize + 4 * wide) + weights * closed
    if "compress" in wanted:
        again = (d_v + 2) * d * itemsize + 4 * d_v + 4
        backward += tokens * (4 + again) + -(-tokens // chunk) * 4 * d * d_v
    return forward, backward


def _sizes(d: int, d_v: int, tokens: int) -> tuple[int, int, int]:
    return check_integer("d", d, 1), check_integer("d_v", d_v, 1), check_integer("tokens", tokens, 0)
