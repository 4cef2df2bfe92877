"""Count the bytes that kernels really touch, in Triton's interpreter: every load and store, by tensor.

    with touched() as launches:
        short_conv(x, weight, axis=1, rung="kernels")
    launches.distinct, launches.total          # bytes, over all launches
    launches[0].kernel, launches[0].loaded["x"].distinct

What is masked off is not touched. `distinct` counts an element once a launch, as if the rest came from a
cache; `total` counts it as often as it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton.language
from torch import Tensor
from triton.runtime import interpreter

__all__ = ["Bytes", "Launch", "Touched", "quicken", "touched"]

Addresses = npt.NDArray[np.uint64]


class Bytes(NamedTuple):
    distinct: int
    total: int


class Launch(NamedTuple):
    """What one launch of a kernel read and wrote, by the names of its arguments (of a tuple: `name[0]`)."""

    kernel: str
    loaded: dict[str, Bytes]
    stored: dict[str, Bytes]


class Touched(list[Launch]):
    """All launches, in order."""

    @property
    def distinct(self) -> int:
        return sum(count.distinct for count in self._counts())

    @property
    def total(self) -> int:
        return sum(count.total for count in self._counts())

    def _counts(self) -> Iterator[Bytes]:
        for one in self:
            yield from one.loaded.values()
            yield from one.stored.values()


@contextlib.contextmanager
def touched() -> Iterator[Touched]:
    """Record every launch inside; a kernel that touches what is in none of its tensors raises."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store, run = builder.create_masked_load, builder.create_masked_store, executor.__call__
    launches = Touched()
    loads: list[Addresses] = []
    stores: list[Addresses] = []

    def counting_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        loads.append(pointers.data[mask.data.astype(bool)].ravel())
        return load(self, pointers, mask, *rest)

    def counting_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        stores.append(pointers.data[mask.data.astype(bool)].ravel())
        return store(self, pointers, value, mask, *rest)

    def counting_run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        loads.clear()
        stores.clear()
        result = run(self, *arguments, **keywords)
        named = dict(zip(self.arg_names, arguments, strict=False)) | keywords
        tensors = dict(_tensors(named))
        name = self.fn.__name__
        launches.append(Launch(name, _count(name, loads, tensors), _count(name, stores, tensors)))
        return result

    try:
        builder.create_masked_load, builder.create_masked_store = counting_load, counting_store
        executor.__call__ = counting_run
        yield launches
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
        executor.__call__ = run


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, tuple):
            yield from _tensors({f"{name}[{place}]": part for place, part in enumerate(value)})


def _count(kernel: str, touches: list[Addresses], tensors: dict[str, Tensor]) -> dict[str, Bytes]:
    """Bytes by tensor. One that is passed twice counts under its first name."""
    if not touches:
        return {}
    addresses, times = np.unique(np.concatenate(touches), return_counts=True)
    counts: dict[str, Bytes] = {}
    left = np.ones(len(addresses), bool)
    for name, tensor in tensors.items():
        mine = left & np.isin(addresses, _elements(tensor))
        left &= ~mine
        if mine.any():
            size = tensor.element_size()
            counts[name] = Bytes(int(mine.sum()) * size, int(times[mine].sum()) * size)
    if left.any():
        raise RuntimeError(f"{kernel} touched {int(left.sum())} addresses that are in none of its tensors.")
    return counts


def _elements(x: Tensor) -> Addresses:
    """The address of every element, in whatever layout."""
    places = torch.zeros(x.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        places += (torch.arange(size) * stride).view(-1, *[1] * (x.ndim - 1 - axis))
    return x.data_ptr() + places.numpy().ravel().astype(np.uint64) * np.uint64(x.element_size())


_patch_lang = interpreter._patch_lang
_patched: set[int] = set()


def _call_patched_once(self: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call a device function without patching the language anew, which is half of the interpreter's time.

    The launch has patched `tl`; the module that Triton's own library uses stays patched once it is.
    """
    namespace = self.fn.__globals__
    if namespace.get("tl") is not triton.language and id(namespace) not in _patched:
        _patch_lang(self.fn)
        _patched.add(id(namespace))
    return self.rewrite()(*arguments, **keywords)


def quicken() -> None:
    """Make the interpreter of this process about twice as fast; for checks, which own their process."""
    interpreter.InterpretedFunction.__call__ = _call_patched_once
