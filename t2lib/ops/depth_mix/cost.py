"""FLOPs and bytes of depth_mix in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._checks import check_choice, check_flag, check_integer

__all__ = ["forward_bytes", "forward_flops", "kernel_bytes"]


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
    launches: int = 1,
    runs: int = 1,
    blocks: int = 1,
) -> int:
    """Bytes that the kernels touch, each element once a launch, with gradients of all inputs.

    Forward (N + C) · T · d elements and the weights: every state and every output once. Backward
    (2 · N + C) · T · d, the weights, and sums in float32 that one more step adds up: `runs` parts of
    C · N · d for weights a channel, `runs` · `blocks` of C · N for weights a state, `blocks` of T · C · N for
    weights a token. A run is the tokens, a block the channels a program owns (`kernels.pick_config`).

    With more states than a launch visits, the sums so far move twice more a further launch, in float32;
    backward, the gradients of the outputs are read once more. Weights are "none", "state" or "channel".
    """
    check_choice("weights", weights, ("none", "state", "channel"))
    own = states * outputs * tokens if check_flag("token_weights", token_weights) else 0
    shared = 0 if weights == "none" else states * outputs * (width if weights == "channel" else 1)
    read = own * itemsize + shared * (itemsize if weight_itemsize is None else weight_itemsize)
    if not check_flag("backward", backward):
        sums = 2 * (launches - 1) * outputs * tokens * width * 4
        return (states + outputs) * tokens * width * itemsize + read + sums
    parts = shared * runs * (1 if weights == "channel" else blocks) + own * blocks
    return (2 * states + outputs * launches) * tokens * width * itemsize + read + 4 * parts
