"""How much memory there is, how much a bench takes at least, and which errors say that it was too little."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from t2lib.bench._case import Operator, Setting

# What torch says on a CPU, where it has no class of its own for it.
SAYINGS = ("out of memory", "not enough memory", "can't allocate memory")


def free_bytes(device: str) -> int | None:
    """The bytes that are free on the device; None where the system does not tell."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    limits = []
    info = Path("/proc/meminfo")
    if info.exists():
        rows = dict(line.split(":", 1) for line in info.read_text(encoding="utf-8").splitlines())
        if "MemAvailable" in rows:
            limits.append(1024 * int(rows["MemAvailable"].split()[0]))
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # A container may have less than its machine.
    group = Path("/sys/fs/cgroup/memory.max")
    if group.exists() and (limit := group.read_text(encoding="utf-8").strip()).isdigit():
        limits.append(int(limit))
    return min(limits, default=None)


def bytes_held(operator: Operator, shape: Any, setting: Setting, *, growth: bool) -> int:
    """What a bench of one operator holds at least at one time.

    Side by side: the inputs, on a CPU as arrays and as tensors, a result, and what the two copies read and
    write. Growth: the inputs at half the size, the size and twice the size.
    """
    cpu = setting.device == "cpu"
    once = operator.bytes_moved(shape, setting.itemsize, False)
    arrays = operator.bytes_moved(shape, 4, False) if cpu else 0
    beside = 2 * once + arrays + operator.bytes_moved(shape, setting.itemsize, True)
    grown = 7 * (once + arrays) // 2
    return max(beside, grown) if growth else beside


def is_too_little(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    return isinstance(error, MemoryError) or any(saying in str(error) for saying in SAYINGS)
