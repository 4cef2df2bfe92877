"""Comparisons that say in one sentence where an answer first differs."""

from __future__ import annotations

from typing import Any

import numpy as np


class Mistake(Exception):
    """A wrong answer; its text names the mistake in one sentence."""


def close(got: Any, want: Any, what: str = "the result", *, tolerance: float = 1e-6, hint: str = "") -> None:
    """Raise `Mistake` unless ``got`` has the shape and, within ``tolerance``, the values of ``want``.

    The tolerance is relative to the larger of 1 and the wanted size. NaN equals NaN. ``hint`` is added to the
    sentence about a wrong value. Arrays, tensors, lists and numbers are taken.
    """
    a, b = _array(got, what), _array(want, what)
    _same_shape(a, b, what)
    wrong = ~_within(a, b, tolerance)
    if wrong.any():
        raise Mistake(_first_difference(a, b, wrong, what) + (f": {hint}" if hint else ""))


def matches(got: Any, want: Any, *, tolerance: float = 1e-6) -> bool:
    """Whether `close` would accept: for recognising a known wrong answer by its values."""
    try:
        close(got, want, tolerance=tolerance)
    except Mistake:
        return False
    return True


def same(got: Any, want: Any, what: str = "the result", *, hint: str = "") -> None:
    """Raise `Mistake` unless ``got`` equals ``want`` exactly: for integers, names, lists, shapes."""
    if isinstance(want, list | tuple) and hasattr(got, "__len__") and not isinstance(got, str):
        got_items, want_items = [_plain(x) for x in got], [_plain(x) for x in want]
        if got_items == want_items:
            return
        sentence = _list_difference(got_items, want_items, what)
    else:
        if _plain(got) == _plain(want):
            return
        sentence = f"{what} is {_plain(got)!r}, expected {_plain(want)!r}"
    raise Mistake(sentence + (f": {hint}" if hint else ""))


def _array(value: Any, what: str) -> np.ndarray[Any, Any]:
    # A tensor may ask for gradients, live on a device, or have a dtype that NumPy lacks.
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise Mistake(f"{what} must be numbers, got {type(value).__name__}")
    return array


def _same_shape(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], what: str) -> None:
    if a.shape != b.shape:
        shape_a, shape_b = (str(x.shape) if x.shape else "() (one number)" for x in (a, b))
        raise Mistake(f"{what} has shape {shape_a}, expected {shape_b}")


def _within(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], tolerance: float) -> np.ndarray[Any, Any]:
    a, b = a.astype(np.complex128), b.astype(np.complex128)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= tolerance * np.maximum(1.0, np.abs(b))
    # An infinite value would make the tolerance infinite.
    return np.asarray((near & np.isfinite(a) & np.isfinite(b)) | (a == b) | (np.isnan(a) & np.isnan(b)))


def _first_difference(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any], what: str
) -> str:
    if a.ndim == 0:
        return f"{what} is {_number(a[()])}, expected {_number(b[()])}"
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = ", ".join(map(str, index))
    share = "" if a.size == 1 else f" ({int(wrong.sum())} of {a.size} entries differ)"
    return f"{what} at [{place}] is {_number(a[index])}, expected {_number(b[index])}{share}"


def _list_difference(got: list[Any], want: list[Any], what: str) -> str:
    for i, (a, b) in enumerate(zip(got, want, strict=False)):
        if a != b:
            return f"{what} at [{i}] is {a!r}, expected {b!r}"
    return f"{what} has {len(got)} entries, expected {len(want)}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if value.dtype.kind in "fc" else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value
