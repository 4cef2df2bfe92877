"""Vectorised NumPy: a block of tokens stays in the cache while all the states pass over it.

Stacking the states would copy every one of them before the first product. Here each is read where it lies,
once, and the only temporaries have the size of a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from t2lib.ops._rows import row_blocks

Array = npt.NDArray[Any]

# Bytes of a block in the dtype of the sums, measured.
BLOCK = 1 << 18


def depth_mix(
    states: tuple[Array, ...], weights: Array | None, token_weights: Array | None, *, outputs: int
) -> Array:
    """The same sums as in `loops`, a block of tokens at a time; arguments as the contract passes them."""
    shape, dtype = states[0].shape, states[0].dtype
    wide = np.promote_types(dtype, np.float32)
    static = None if weights is None else weights.astype(wide, copy=False)
    z = np.empty((outputs, *shape), dtype)
    for where in row_blocks(shape, wide.itemsize, BLOCK):
        mine = None if token_weights is None else token_weights[where].astype(wide, copy=False)
        z[(slice(None), *where)] = mix_block([state[where] for state in states], static, mine, outputs)
    return z


def mix_block(states: list[Array], static: Array | None, mine: Array | None, outputs: int) -> Array:
    """The sums of one block of tokens, (C, ..., d) in the dtype of the sums."""
    wide = np.promote_types(states[0].dtype, np.float32)
    total = np.zeros((outputs, *states[0].shape), wide)
    product = np.empty(states[0].shape, wide)
    for j, state in enumerate(states):
        block = state.astype(wide, copy=False)
        for output in range(outputs):
            total[output] += np.multiply(_weight(static, mine, output, j), block, out=product)
    return total


def _weight(static: Array | None, mine: Array | None, output: int, j: int) -> Any:
    """The weight of one state in one output, in a shape that spreads over (..., d)."""
    parts = [] if static is None else [static[output, j]]
    if mine is not None:
        parts.append(mine[..., output, j, None])
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]
