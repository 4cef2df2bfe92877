"""How much memory there is and a bench takes, which errors say it was too little; and how to keep it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from t2lib.bench._case import Operator, Setting

# What torch says on a CPU, where it has no class of its own for it.
SAYINGS = ("out of memory", "not enough memory", "can't allocate memory")
# Of glibc's mallopt: how many blocks may be maps of their own, and how much may lie free at the end.
M_MMAP_MAX, M_TRIM_THRESHOLD = -4, -1


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


def keep_freed() -> bool:
    """Let malloc keep what is freed, for the rest of the process; False where it cannot be told to.

    By default glibc gives every block above 32 MiB back to the system, and fetches fresh pages for the next
    one: at the first touch of each the system clears it, which takes longer than to write it once.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def is_too_little(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    return isinstance(error, MemoryError) or any(saying in str(error) for saying in SAYINGS)
