"""Checks of arguments, each with one sentence that names the argument, what it takes and what it got."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An integer from `least` to `most`, of Python or NumPy, as one of Python, which cannot overflow."""
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is None or number < least or (most is not None and number > most):
        takes = f"of at least {least}" if most is None else f"from {least} to {most}"
        got = repr(value) if number is None else number
        raise ValueError(f"{name} must be an integer {takes}, got {got}.")
    return number


def generator(rng: Any) -> None:
    """A NumPy generator, so that whoever holds the seed decides what is drawn."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"rng must be a numpy.random.Generator, such as numpy.random.default_rng(0); "
            f"got {type(rng).__name__}."
        )


def integers(name: str, values: Any) -> list[int]:
    """A list of integers from a list or a one-dimensional array of them."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise TypeError(f"{name} must be one-dimensional and hold integers, got uneven rows.") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(
            f"{name} must be one-dimensional and hold integers, got shape {array.shape} of {array.dtype}."
        )
    return [int(value) for value in array.tolist()]
