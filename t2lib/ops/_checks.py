"""What the contracts of all operators share: checks on arrays and lists of states, and the bridge to a rung.

The checks of `_contract` are offered here as well, so that an operator has one place to import from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from t2lib.ops import _registry
from t2lib.ops._contract import (
    FLOATS,
    check_arrays,
    check_axis,
    check_choice,
    check_integer,
    check_number,
    dtype,
    kind,
    to_numpy,
    to_torch,
)

__all__ = [
    "FLOATS",
    "bridge",
    "check_array",
    "check_arrays",
    "check_axis",
    "check_choice",
    "check_eps",
    "check_flag",
    "check_integer",
    "check_like",
    "check_like_or_wide",
    "check_number",
    "check_shape",
    "check_states",
    "dtype",
    "kind",
    "pick",
    "to_numpy",
    "to_torch",
]

KINDS = ("a NumPy array", "a torch tensor")


def check_array(name: str, x: Any) -> None:
    """A NumPy array or a torch tensor of a floating dtype."""
    if kind(x) not in KINDS:
        raise TypeError(f"{name} must be a NumPy array or a torch tensor; got {kind(x)}.")
    if dtype(x) not in FLOATS:
        raise TypeError(f"{name} must have one dtype of {', '.join(FLOATS)}; got {dtype(x)}.")


def check_like(name: str, x: Any, like_name: str, like: Any) -> None:
    """Of the kind, dtype and device of another array, which has been checked before."""
    if kind(x) != kind(like):
        raise TypeError(f"{name} must be {kind(like)} like {like_name}; got {kind(x)}.")
    if dtype(x) != dtype(like):
        raise TypeError(f"{name} must have the dtype of {like_name}, {dtype(like)}; got {dtype(x)}.")
    if not isinstance(x, np.ndarray) and x.device != like.device:
        raise ValueError(f"{name} must be on the device of {like_name}, {like.device}; got {x.device}.")


def check_like_or_wide(name: str, x: Any, like_name: str, like: Any) -> None:
    """As `check_like`, but beside half-precision states a coefficient may be float32, the dtype of sums."""
    if kind(x) == kind(like) and dtype(x) != dtype(like) and dtype(like) in ("float16", "bfloat16"):
        if dtype(x) != "float32":
            takes = f"{dtype(like)} like {like_name}, or float32"
            raise TypeError(f"{name} must have dtype {takes}; got {dtype(x)}.")
        if not isinstance(x, np.ndarray) and x.device != like.device:
            takes = f"on the device of {like_name}, {like.device}"
            raise ValueError(f"{name} must be {takes}; got {x.device}.")
        return
    check_like(name, x, like_name, like)


def check_shape(name: str, x: Any, *shapes: tuple[int, ...]) -> None:
    """Exactly one of a few shapes: nothing is broadcast."""
    if tuple(x.shape) not in shapes:
        takes = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ValueError(f"{name} must have shape {takes}; got {tuple(x.shape)}.")


def check_states(name: str, states: Any) -> tuple[Any, ...]:
    """A list or tuple of one or more states (..., d) of one kind, dtype, device and shape."""
    if not isinstance(states, (list, tuple)):
        raise TypeError(
            f"{name} must be a list or tuple of arrays (..., d), never stacked; got {kind(states)}."
        )
    if not states:
        raise ValueError(f"{name} must hold at least one array; got none.")
    first = states[0]
    check_array(f"{name}[0]", first)
    if first.ndim < 1 or first.shape[-1] < 1:
        got = tuple(first.shape)
        raise ValueError(f"{name}[0] must have a width, its last axis, of at least 1; got shape {got}.")
    kind_of_first, facts = type(first), _facts(first)
    for place, state in enumerate(states[1:], 1):
        # The usual case, in one step: the checks below cost microseconds a state.
        if type(state) is kind_of_first and _facts(state) == facts:
            continue
        check_like(f"{name}[{place}]", state, f"{name}[0]", first)
        check_shape(f"{name}[{place}]", state, tuple(first.shape))
    return tuple(states)


def _facts(x: Any) -> tuple[Any, ...]:
    return x.shape, x.dtype, None if isinstance(x, np.ndarray) else x.device


def check_flag(name: str, value: Any) -> bool:
    """True or False; 0 and 1 are none."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {value!r}.")
    return value


def check_eps(name: str, value: Any) -> float:
    """A finite number of at least 0, to be added to a mean square."""
    if check_number(name, value) < 0:
        raise ValueError(f"{name} must be a number of at least 0; got {value!r}.")
    return float(value)


def pick(operator: str, rung: Any, like: Any) -> tuple[str, ModuleType]:
    """The rung asked for, or the one that "auto" takes for an input like `like`, with its module."""
    check_choice("rung", rung, ("auto", *_registry.RUNGS))
    if rung == "auto":
        rung = _registry.choose(operator, like)
    return rung, _registry.load(operator, rung)


def bridge(
    rung: str, compute: Callable[..., Any], arrays: Mapping[str, Any], *, wide: tuple[int, ...] = ()
) -> Any:
    """Call `compute(**arrays)` on the kind of array that the rung takes; results have the kind of the inputs.

    `arrays` holds arrays, tuples of arrays and None; the first one says which kind the inputs are. The result
    is an array or a tuple of arrays, each in the dtype of the first input, except those at the places `wide`,
    which stay in the dtype of the sums (a log-sum-exp, say).
    """
    first = next(iter(arrays.values()))
    like = first[0] if isinstance(first, tuple) else first
    numpy_in, numpy_rung = isinstance(like, np.ndarray), rung in _registry.NUMPY_RUNGS
    if numpy_in and numpy_rung:
        return compute(**arrays)
    if not numpy_in and not numpy_rung:
        return _as_given(compute, arrays, like.device.type)
    if numpy_in:
        result = _as_given(compute, {name: _each(to_torch, x) for name, x in arrays.items()}, "cpu")
        return _each(lambda x: x.numpy(), result)
    result = compute(**{name: _named(name, x, rung) for name, x in arrays.items()})
    if not isinstance(result, tuple):
        return to_torch(result).to(like.dtype)
    tensors = [to_torch(x) for x in result]
    return tuple(x if place in wide else x.to(like.dtype) for place, x in enumerate(tensors))


def _as_given(compute: Callable[..., Any], arrays: Mapping[str, Any], device: str) -> Any:
    """In the dtypes of the contract: autocast would round float32 inside of an operator to half precision."""
    import torch

    if not torch.is_autocast_enabled(device):
        return compute(**arrays)
    with torch.autocast(device, enabled=False):
        return compute(**arrays)


def _each(convert: Callable[[Any], Any], x: Any) -> Any:
    return tuple(convert(part) for part in x) if isinstance(x, tuple) else convert(x)


def _named(name: str, x: Any, rung: str) -> Any:
    if isinstance(x, tuple):
        return tuple(to_numpy(f"{name}[{place}]", part, rung) for place, part in enumerate(x))
    return to_numpy(name, x, rung)
