"""FLOPs and bytes of depth_mix in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._checks import check_flag, check_integer

__all__ = ["forward_bytes", "forward_flops"]


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
