"""The definition, in plain loops: an output, a token, a channel, and the sum over the states.

Every other rung is checked against this one. It imports NumPy only, and is slow on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def depth_mix(
    states: tuple[Array, ...], weights: Array | None, token_weights: Array | None, *, outputs: int
) -> Array:
    """z_c = Σ_j (b_cj + s_cj) x_j; arguments as the contract passes them."""
    shape, dtype = states[0].shape, states[0].dtype
    wide = np.promote_types(dtype, np.float32)
    z = np.zeros((outputs, *shape), dtype)
    for output in range(outputs):
        for token in np.ndindex(shape[:-1]):
            for channel in range(shape[-1]):
                total = wide.type(0)
                for j, state in enumerate(states):
                    weight = wide.type(0)
                    if weights is not None:
                        # Weights of one number a state have a single channel, shared by all.
                        weight += wide.type(weights[output, j, channel % weights.shape[-1]])
                    if token_weights is not None:
                        weight += wide.type(token_weights[token][output, j])
                    total += weight * wide.type(state[token][channel])
                z[output][token][channel] = total
    return z
