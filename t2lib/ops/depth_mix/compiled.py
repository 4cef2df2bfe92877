"""torch.compile of the sum as one expression: one loop over the elements that reads every state once.

A compilation is for one number of states and one form of weights, and serves all lengths. The backward pass
is compiled as well. First order only.
"""

from __future__ import annotations

from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.depth_mix.eager import plain


def depth_mix(
    states: tuple[Tensor, ...], weights: Tensor | None, token_weights: Tensor | None, *, outputs: int
) -> Tensor:
    """The same sums as in `loops`, compiled on first use; arguments as the contract passes them."""
    mixed: Tensor = run(_mix, states, weights, token_weights, outputs)
    return mixed


def _mix(
    states: tuple[Tensor, ...], weights: Tensor | None, token_weights: Tensor | None, outputs: int
) -> Tensor:
    return plain(states, weights, token_weights, outputs=outputs)
