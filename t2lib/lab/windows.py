"""What a windowed read looks at: its weights, and how far a stack of reads reaches.

weights = reading_weights(states, states, window=8, axis=1)      # who read whom, and how much
receptive_field(window=4, reads=3)                               # 10 positions
"""

from __future__ import annotations

from typing import Any

import numpy as np

from t2lib.ops import short_swa

__all__ = ["reached", "reading_weights", "receptive_field"]


def reading_weights(q: Any, k: Any, *, window: int, axis: int, **options: Any) -> Any:
    """The weights a_ij of a windowed read instead of the reading.

    With the rows of the identity as values, v_j = e_j, the reading of row i is the list of its weights.
    Shapes: q and k (..., N, ..., D), the ordered axis in the place `axis` -> (..., N, ..., N); its last axis
    is the position that is read, and each row sums to 1. ``options`` go to `t2lib.ops.short_swa`, which names
    what is wrong with them. Needs N numbers a row: for looking, not for long texts.
    """
    length = k.shape[axis]
    v: Any
    shape = [1] * k.ndim
    shape[axis], shape[-1] = length, length
    if isinstance(k, np.ndarray):
        v = np.broadcast_to(np.eye(length, dtype=k.dtype).reshape(shape), (*k.shape[:-1], length))
    else:
        import torch

        identity = torch.eye(length, dtype=k.dtype, device=k.device)
        v = identity.reshape(shape).expand(*k.shape[:-1], length)
    return short_swa(q, k, v, window=window, axis=axis, **options)


def receptive_field(window: int, reads: int) -> int:
    """How many positions one row depends on after ``reads`` strict windowed reads on top of each other.

    Equation: R = (window - 1) * reads + 1, because each read moves the oldest visible position back by
    window - 1. It counts the row itself, and assumes that so many positions exist.

    Book: eq-receptive-field
    Errors: ValueError for a window below 1 or fewer than 0 reads.
    """
    if window < 1 or reads < 0:
        raise ValueError(f"window must be at least 1 and reads at least 0, got {window} and {reads}")
    return (window - 1) * reads + 1


def reached(length: int, window: int, reads: int, **options: Any) -> list[int]:
    """The positions on which the last row depends after ``reads`` reads, measured by its gradient.

    The states are random (seed 0), every read takes q = k = v = the states before it, and a position is
    reached if the gradient of the last row's sum with respect to it has an entry that is not zero.
    ``options`` go to `t2lib.ops.short_swa`, such as window_type="chunk". Needs torch; cost: ``reads`` eager
    reads of width 8.
    """
    import torch

    states = torch.from_numpy(np.random.default_rng(0).standard_normal((length, 8))).requires_grad_()
    z = states
    for _ in range(reads):
        z = short_swa(z, z, z, window=window, axis=0, rung="eager", **options)
    (gradient,) = torch.autograd.grad(z[-1].sum(), states)
    positions: list[int] = gradient.abs().amax(dim=1).nonzero().flatten().tolist()
    return positions
