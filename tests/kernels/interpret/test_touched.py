"""The counter of bytes: what is masked off is not touched, what comes again counts in the total alone."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from t2lib.ops._touched import Bytes, Launch, touched


@triton.jit
def add_first(x, out, parts, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    value = tl.load(x + 2 * place, mask=place < n, other=0.0) + tl.load(x) + tl.load(parts[1])
    tl.store(out + place, value, mask=place < n)


def test_bytes_by_tensor() -> None:
    x, out, parts = torch.ones(20)[::2], torch.zeros(6), (torch.ones(1), torch.ones(1, dtype=torch.float16))
    with touched() as launches:
        add_first[(2,)](x, out, parts, n=6, BLOCK=8)
    assert out.tolist() == [3.0] * 6
    loaded = {"x": Bytes(24, 2 * (24 + 4)), "parts[1]": Bytes(2, 4)}
    assert launches == [Launch("add_first", loaded, {"out": Bytes(24, 48)})]
    assert launches.distinct == 24 + 2 + 24
    assert launches.total == 56 + 4 + 48


def test_nothing_is_counted_afterwards_and_the_interpreter_is_as_before() -> None:
    with touched() as launches:
        pass
    add_first[(1,)](torch.ones(20), torch.zeros(6), (torch.ones(1),) * 2, n=6, BLOCK=8)
    assert launches == []


def test_a_kernel_that_leaves_its_tensors_is_caught() -> None:
    # Every second number of the memory belongs to x; the kernel steps by two, so one step of x is four.
    x, out = torch.ones(40)[::4][:3], torch.zeros(6)
    with pytest.raises(RuntimeError, match="in none of its tensors"), touched():
        add_first[(1,)](x, out, (torch.ones(1),) * 2, n=6, BLOCK=8)
