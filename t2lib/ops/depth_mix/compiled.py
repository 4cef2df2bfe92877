"""torch.compile of the sum, two dozen states at a time, in loops that read each state once.

Every number of states is a compilation of its own; groups of GROUP bound how many there are, for one more
pass over the running sum a group. The backward pass is compiled as well. First order only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.depth_mix.eager import plain

GROUP = 24


def depth_mix(
    states: tuple[Tensor, ...], weights: Tensor | None, token_weights: Tensor | None, *, outputs: int
) -> Tensor:
    """The same sums as in `loops`, compiled on first use; arguments as the contract passes them."""
    given = (*states, *(x for x in (weights, token_weights) if x is not None))
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    narrow = _narrow(outputs) if states[0].device.type == "cpu" else {}
    total: Any = None
    for start in range(0, len(states), GROUP):
        part = slice(start, start + GROUP)
        some = None if weights is None else weights[:, part]
        own = None if token_weights is None else token_weights[..., part]
        # The running sum stays in the dtype of the sums up to the last group.
        dtype = states[0].dtype if part.stop >= len(states) else None
        if total is None or tracked or dtype not in (None, total.dtype):
            total = run(_add, total, states[part], some, own, outputs, dtype, **narrow)
        else:
            run(_add_in_place, total, states[part], some, own, outputs, **narrow)
    mixed: Tensor = total
    return mixed


def _narrow(outputs: int) -> dict[str, Any]:
    """Loops over a few states each, on a CPU: arrays of the same size lie at the same places of its caches,
    which keep 8 of them apart.

    Measured with 24 states, one loop over all of them takes 2.0 times as long as a matrix-vector product
    over their stack, and these loops 1.0 times; backward, 0.8 times as long as loops over everything.
    """
    # Backward, a loop makes the gradient of one state and of its weight; more outputs share their states.
    return {"max_fusion_size": max(2, outputs)}


def _add(
    total: Tensor | None,
    states: tuple[Tensor, ...],
    weights: Tensor | None,
    token_weights: Tensor | None,
    outputs: int,
    dtype: torch.dtype | None,
) -> Tensor:
    part = plain(states, weights, token_weights, outputs=outputs)
    result = part if total is None else total + part
    return result if dtype is None else result.to(dtype)


def _add_in_place(
    total: Tensor,
    states: tuple[Tensor, ...],
    weights: Tensor | None,
    token_weights: Tensor | None,
    outputs: int,
) -> None:
    total += plain(states, weights, token_weights, outputs=outputs)
