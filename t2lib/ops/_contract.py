"""What all contracts share: checks that end in one sentence, and the bridge between arrays and tensors."""

from __future__ import annotations

import math
import numbers
import operator
import sys
import warnings
from typing import Any

import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")


def kind(x: Any) -> str:
    """What x is, in words."""
    if isinstance(x, np.ndarray):
        return "a NumPy array"
    # Whoever passes a tensor has imported torch; nobody else has to.
    torch = sys.modules.get("torch")
    return "a torch tensor" if torch is not None and isinstance(x, torch.Tensor) else f"a {type(x).__name__}"


def dtype(x: Any) -> str:
    """The name of the dtype of an array or tensor."""
    return str(x.dtype).removeprefix("torch.")


def check_arrays(**arrays: Any) -> None:
    """All NumPy arrays or all tensors, one floating dtype, one device, equally many axes (two or more)."""
    names = ", ".join(arrays)
    kinds = [kind(x) for x in arrays.values()]
    if kinds[0] not in ("a NumPy array", "a torch tensor") or len(set(kinds)) > 1:
        raise TypeError(f"{names} must be all NumPy arrays or all torch tensors; got {', '.join(kinds)}.")
    dtypes = [dtype(x) for x in arrays.values()]
    if dtypes[0] not in FLOATS or len(set(dtypes)) > 1:
        raise TypeError(f"{names} must share one dtype of {', '.join(FLOATS)}; got {', '.join(dtypes)}.")
    if kinds[0] == "a torch tensor":
        devices = [str(x.device) for x in arrays.values()]
        if len(set(devices)) > 1:
            raise ValueError(f"{names} must be on one device; got {', '.join(devices)}.")
    axes = [x.ndim for x in arrays.values()]
    if axes[0] < 2 or len(set(axes)) > 1:
        got = ", ".join(map(str, axes))
        raise ValueError(f"{names} must have equally many axes, two or more; got {got}.")


def check_integer(name: str, value: Any, least: int) -> int:
    """An integer that is at least `least`; True and 2.0 are none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer of at least {least}; got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value}.")
    return operator.index(value)


def check_axis(name: str, axis: Any, ndim: int, of: str = "q") -> int:
    """One of the axes of the array `of` before the last, as an index that is not negative."""
    if isinstance(axis, bool) or not isinstance(axis, numbers.Integral):
        raise TypeError(f"{name} must be an integer; got {axis!r}.")
    place = operator.index(axis)
    if not -ndim <= place < ndim or place % ndim == ndim - 1:
        takes = f"one of the {ndim} axes of {of} other than the last, the width"
        raise ValueError(f"{name} must name {takes}; got {axis}.")
    return place % ndim


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def check_number(name: str, value: Any) -> float:
    """A finite real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a finite real number; got {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        got = "one beyond the largest float"
        raise ValueError(f"{name} must be a finite real number; got {got}.") from None
    # Not math.isfinite: where torch.compile takes a number as a symbol, it can follow comparisons only.
    if not -math.inf < number < math.inf:
        raise ValueError(f"{name} must be a finite real number; got {value!r}.")
    return number


def to_numpy(name: str, x: Any, rung: str) -> Any:
    """A tensor as an array for a NumPy rung: shared memory, no gradient, CPU only."""
    if x is None:
        return None
    if x.requires_grad:
        takes = "takes x.detach(), or a torch rung such as 'eager'"
        raise ValueError(f"rung={rung!r} has no gradients; got {name} that requires grad, {takes}.")
    if x.device.type != "cpu":
        raise ValueError(f"rung={rung!r} computes on the CPU; got {name} on {x.device}, takes {name}.cpu().")
    # NumPy has no bfloat16. Every bfloat16 is a float32, and the sums are float32 anyway.
    return (x.float() if dtype(x) == "bfloat16" else x).numpy()


def to_torch(x: Any) -> Any:
    """An array as a tensor for a torch rung: shared memory wherever torch can."""
    import torch

    if x is None:
        return None
    if any(stride < 0 or stride % x.itemsize for stride in x.strides):
        x = x.copy()
    with warnings.catch_warnings():
        # No rung writes to its inputs, so memory that is read-only is fine.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(x)
