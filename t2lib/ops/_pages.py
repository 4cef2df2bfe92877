"""Memory for large results, in large pages where the system has them.

A result beyond the reuse of the allocator is fresh memory, which the system hands out page by page at the
first touch. With pages of 4 KB that takes several times as long as to write them. NumPy asks Linux for pages
of 2 MB by itself; torch does not, unless THP_MEM_ALLOC_ENABLE=1 is set before it starts.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Bytes from which it pays; NumPy has the same limit.
LARGE = 1 << 22


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Uninitialised memory as `like.new_empty` gives it."""
    return _in_large_pages(like.new_empty(shape, dtype=dtype))


def empty_like(like: Tensor) -> Tensor:
    """Uninitialised memory in the layout of `like`, if that has no gaps."""
    return _in_large_pages(torch.empty_like(like, requires_grad=False))


def _in_large_pages(x: Tensor) -> Tensor:
    advise = _advise()
    if advise is not None and x.device.type == "cpu" and x.nbytes >= LARGE:
        # From the first whole page of it on. A refusal changes nothing.
        start = -(-x.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, x.data_ptr() + x.nbytes - start, _HUGEPAGE)
    return x


_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)


@cache
def _advise() -> Callable[..., Any] | None:
    if not sys.platform.startswith("linux"):
        return None
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
