"""What this machine offers: versions, device and the dtype that suits it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import NamedTuple


class Machine(NamedTuple):
    """Where a chapter computes: ``device`` and ``dtype`` by their torch names."""

    device: str
    dtype: str


def installed(package: str) -> str:
    """Version of an installed package, or ``"absent"``. Imports nothing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def dtype_for(capability: tuple[int, int] | None) -> str:
    """The dtype for a CUDA compute capability; ``None`` stands for a CPU.

    bfloat16 has units of its own from capability 8.0 on. A T4 (7.5) only emulates it, so it gets float16.
    """
    if capability is None:
        return "float32"
    return "bfloat16" if capability >= (8, 0) else "float16"


def describe_machine() -> Machine:
    """Print the versions and the device in use; return the device and the dtype chosen for it.

    Works without torch (device ``"cpu"``). Cost: one import of torch where there is one.
    """
    names = ("t2lib", "numpy", "torch", "triton")
    versions = [f"Python {platform.python_version()}", *(f"{name} {installed(name)}" for name in names)]
    print(" · ".join(versions))

    capability, device, label = None, "cpu", "CPU"
    if installed("torch") != "absent":
        import torch

        if torch.cuda.is_available():
            capability, device = torch.cuda.get_device_capability(), "cuda"
            label = torch.cuda.get_device_name()
    machine = Machine(device, dtype_for(capability))
    print(f"device {label} · dtype {machine.dtype}")
    return machine
