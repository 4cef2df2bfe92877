"""FLOPs and bytes of depth_mix in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from collections.abc import Collection

from t2lib.ops._checks import check_choice, check_flag, check_integer

__all__ = ["forward_bytes", "forward_flops", "kernel_bytes"]

NEEDS = ("states", "weights", "token_weights")


def forward_flops(
    states: int, width: int, *, tokens: int = 1, outputs: int = 1, channel_and_token: bool = False
) -> int:
    """FLOPs of the sums: 2 · N · d a token and output, 3 · N · d if weights a channel and a token are added.

    Adding a weight a state to a weight a token costs N operations a token and output, and is left out.
    """
    states, width = check_integer("states", states, 1), check_integer("width", width, 1)
    tokens, outputs = check_integer("tokens", tokens, 0), check_integer("outputs", outputs, 1)
    return (
        (3 if check_flag("channel_and_token", channel_and_token) else 2) * states * width * tokens * outputs
    )


def forward_bytes(
    states: int,
    width: int,
    *,
    itemsize: int,
    tokens: int = 1,
    outputs: int = 1,
    token_weights: bool = False,
) -> int:
    """Bytes that have to move: every state once, every output once, and the weights a token if there are any.

    Weights that all tokens share are left out. Stacking the states first would add 2 · N · d elements.
    """
    states, width = check_integer("states", states, 1), check_integer("width", width, 1)
    tokens, outputs = check_integer("tokens", tokens, 0), check_integer("outputs", outputs, 1)
    own = states * outputs if check_flag("token_weights", token_weights) else 0
    return ((states + outputs) * width + own) * tokens * check_integer("itemsize", itemsize, 1)


def kernel_bytes(
    states: int,
    width: int,
    *,
    itemsize: int,
    tokens: int = 1,
    outputs: int = 1,
    weights: str = "none",
    token_weights: bool = False,
    weight_itemsize: int | None = None,
    backward: bool = False,
    needs: Collection[str] = NEEDS,
    launches: int = 1,
    runs: int = 1,
    blocks: int = 1,
    most_outputs: int = 8,
) -> int:
    """Bytes that the kernels touch, each element once a launch. Weights are "none", "state" or "channel".

    A launch computes at most eight outputs (`kernels.MOST_OUTPUTS`), so states are read G = ⌈C / 8⌉ times.
    Forward (G · N + C) · T · d elements and the weights.

    Backward, `needs` says the gradients of what are needed, out of NEEDS; what only another would ask for is
    not touched. The gradients of the outputs are read, C · T · d. For those of the states, weights are read
    and N · T · d written; with G > 1 their sums so far move 2 · (G - 1) times in float32. For those of the
    weights, the states are read G times, and sums are written in float32: `runs` parts of C · N · d for
    weights a channel, `runs` · `blocks` of C · N for weights a state, `blocks` of T · C · N for weights a
    token. A run is the tokens, a block the channels a program owns (`kernels.pick_config`). PyTorch reads
    these parts once more behind the kernels, and writes the gradients: not counted.

    With more states than a launch visits, `launches` a group of outputs: forward, the sums so far move twice
    more a further launch, in float32; backward, the gradients of the outputs are read once more.
    """
    check_choice("weights", weights, ("none", "state", "channel"))
    groups, tile = -(-outputs // most_outputs), tokens * width
    own = states * outputs * tokens if check_flag("token_weights", token_weights) else 0
    shared = 0 if weights == "none" else states * outputs * (width if weights == "channel" else 1)
    read = own * itemsize + shared * (itemsize if weight_itemsize is None else weight_itemsize)
    if not check_flag("backward", backward):
        sums = 2 * (launches - 1) * outputs * tile * 4
        return (states * groups + outputs) * tile * itemsize + read + sums
    moved = outputs * launches * tile * itemsize
    if "states" in needs:
        moved += states * tile * (itemsize + 2 * (groups - 1) * 4) + read
    parts = shared * runs * (1 if weights == "channel" else blocks) if "weights" in needs else 0
    parts += own * blocks if "token_weights" in needs else 0
    return moved + (states * groups * tile * itemsize if parts else 0) + 4 * parts
