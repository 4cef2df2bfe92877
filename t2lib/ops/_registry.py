"""The ladder: which rungs an operator has, which of them run on this machine, and which one "auto" takes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

# In reading order: each rung computes the same thing as the one before it, faster.
RUNGS = ("loops", "arrays", "eager", "compiled", "kernels")
NUMPY_RUNGS = ("loops", "arrays")
ON_CUDA = "Triton, on a CUDA device"

# Operator -> the rungs it does not have, each with the reason.
OPERATORS: dict[str, dict[str, str]] = {
    "short_swa": {},
    "depth_mix": {},
    "depth_attention": {},
    "stream_mix": {},
    "delta_rewrite": {},
    "short_conv": {},
}


class RungUnavailable(RuntimeError):
    """The rung asked for cannot run here; the message says why and what would."""


class Row(NamedTuple):
    rung: str
    runs_here: bool
    reason: str


class Ladder(list[Row]):
    """The rungs of one operator; prints as a table."""

    def __str__(self) -> str:
        return "\n".join(f"{row.rung:<9} {'yes' if row.runs_here else 'no ':<4} {row.reason}" for row in self)

    __repr__ = __str__


class Ladders(dict[str, Ladder]):
    """The ladders of all operators by name; prints as one table."""

    def __str__(self) -> str:
        return "\n\n".join(f"{name}\n{rows}" for name, rows in self.items())

    __repr__ = __str__


def ladder(operator: str) -> Ladder:
    """The rows (rung, runs_here, reason) of one operator."""
    if operator not in OPERATORS:
        raise ValueError(f"operator must be one of {', '.join(OPERATORS)}; got {operator!r}.")
    missing = OPERATORS[operator]
    rows = Ladder()
    for rung in RUNGS:
        if rung in missing:
            rows.append(Row(rung, False, missing[rung]))
        else:
            runs_here, reason = _CHECKS[rung]()
            rows.append(Row(rung, runs_here, _on_this_device() if reason == ON_CUDA else reason))
    return rows


def ladders() -> Ladders:
    """The ladders of all operators."""
    return Ladders({name: ladder(name) for name in OPERATORS})


def load(operator: str, rung: str) -> ModuleType:
    """Import the module of one rung, or raise RungUnavailable with the reason."""
    missing = OPERATORS[operator]
    runs_here, reason = (False, missing[rung]) if rung in missing else _CHECKS[rung]()
    if not runs_here:
        raise RungUnavailable(f"rung={rung!r} of {operator} cannot run here: {reason}.")
    # What "auto" takes for tensors, in a form that torch.compile can follow; a module comes with its imports.
    if rung == "eager":
        from t2lib.ops._eager import MODULES as EAGER

        return EAGER[operator]
    if rung == "kernels":
        from t2lib.ops._kernels import MODULES as KERNELS

        return KERNELS[operator]
    return importlib.import_module(f"t2lib.ops.{operator}.{rung}")


def choose(operator: str, q: Any) -> str:
    """The rung "auto" takes for an input like `q`.

    NumPy arrays take "arrays". Tensors take "kernels" on a CUDA device that has Triton, otherwise "eager".
    "compiled" is never taken unasked: its first call compiles for seconds.
    """
    if type(q).__module__.partition(".")[0] == "numpy":
        return "arrays"
    if q.device.type == "cuda" and "kernels" not in OPERATORS[operator] and _kernels()[0]:
        try:
            kernels = load(operator, "kernels")
        except ImportError:
            return "eager"
        refuses: Callable[[Any], str | None] | None = getattr(kernels, "refuses", None)
        return "kernels" if refuses is None or refuses(q) is None else "eager"
    return "eager"


def installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


@cache
def _on_path(program: str, path: str | None) -> bool:
    # Looking through the folders of the path takes longer than a small operator does.
    return shutil.which(program, path=path) is not None


def _numpy() -> tuple[bool, str]:
    return True, "NumPy, on the CPU"


def _eager() -> tuple[bool, str]:
    if not installed("torch"):
        return False, "torch is not installed; `pip install torch` brings it"
    return True, "torch, on any device"


def _compiled() -> tuple[bool, str]:
    if not installed("torch"):
        return _eager()
    if os.environ.get("TORCHDYNAMO_DISABLE", "0") not in ("", "0"):
        return False, "TORCHDYNAMO_DISABLE is set, so torch.compile would do nothing; unset it"
    compilers = (os.environ.get("CXX", ""), "g++", "clang++", "cl")
    if not any(_on_path(name, os.environ.get("PATH")) for name in compilers if name):
        return False, "torch.compile needs a C++ compiler on the PATH; install g++ or clang++"
    return True, "torch.compile; the first call takes seconds"


def _kernels() -> tuple[bool, str]:
    if not installed("torch"):
        return _eager()
    if not installed("triton"):
        return False, "triton is not installed; on Linux `pip install triton` brings it"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True, "Triton's interpreter (TRITON_INTERPRET=1), on the CPU: slow, for checks"
    import torch

    if not torch.cuda.is_available():
        return (
            False,
            "no CUDA device; set TRITON_INTERPRET=1 before the first import to interpret the kernels",
        )
    # Without the device's name: torch.compile, which follows this, cannot follow a function that returns it.
    return True, ON_CUDA


def _on_this_device() -> str:
    import torch

    return f"Triton, on {torch.cuda.get_device_name()}"


_CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "loops": _numpy,
    "arrays": _numpy,
    "eager": _eager,
    "compiled": _compiled,
    "kernels": _kernels,
}
