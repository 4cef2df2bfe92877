# Triton has no types for the functions it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What the kernels of all operators share: where they run, what they refuse, strides, the launch."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from t2lib.ops._registry import RungUnavailable


def unfit(triton_version: str, numpy_version: str) -> str | None:
    """Why the interpreter of this Triton does not work with this NumPy; None if it does."""
    release, numpy_release = (
        tuple(int(part) for part in version.split(".")[:2]) for version in (triton_version, numpy_version)
    )
    if release < (3, 7) and numpy_release >= (2, 4):
        # triton-lang/triton#9171
        return f"takes Triton 3.7 or NumPy before 2.4, got {triton_version} and {numpy_version}"
    return None


# Both are fixed when Triton is imported, so they are chosen once.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED and (_reason := unfit(triton.__version__, numpy.__version__)):
    raise RungUnavailable(f"rung='kernels' cannot run here: Triton's interpreter {_reason}.")
DEVICES = ("cuda", "cpu") if INTERPRETED else ("cuda",)
# Programs along the first axis of a grid: CUDA C++ Programming Guide, "Technical Specifications". The other
# axes end at 65,535, which a count of tokens soon exceeds, so every grid here has one axis.
MOST_PROGRAMS = 2**31 - 1


def refuses(x: Tensor, name: str = "q") -> str | None:
    """Why no kernel takes a tensor like x, as the end of a sentence; None if they do.

    float64 has no kernel; bfloat16 needs compute capability 8.0, and a chip that can.
    """
    if x.dtype == torch.float64:
        return "it computes in float32 and takes no float64, takes rung='eager'"
    if not x.is_cuda and not INTERPRETED:
        return (
            f"{name} is on {x.device}, takes a CUDA device, or TRITON_INTERPRET=1 set before the first import"
        )
    # Triton's interpreter multiplies bfloat16 wrongly; a chip before 8.0 emulates it, whatever torch reports.
    if x.dtype == torch.bfloat16 and INTERPRETED:
        return "Triton's interpreter has no right product of bfloat16, takes float32 or float16"
    if x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device) < (8, 0):
        return "bfloat16 needs compute capability 8.0, takes float16 or float32"
    return None


def check(operator: str, reason: str | None) -> None:
    """Raise RungUnavailable in one sentence if there is a reason."""
    if reason is not None:
        raise RungUnavailable(f"rung='kernels' of {operator} cannot run here: {reason}.")


def capability(x: Tensor) -> tuple[int, int]:
    """The compute capability of the chip of x; (0, 0) in the interpreter."""
    return torch.cuda.get_device_capability(x.device) if x.is_cuda and not INTERPRETED else (0, 0)


def aligned(x: Tensor, axis: int | None = None) -> bool:
    """Whether every row (last axis) of x starts at a multiple of 16 numbers and lies in one piece.

    Strides of axes of length 1 do not count, but that of `axis` always does.
    """
    steps = [x.stride(place) for place in range(x.ndim - 1) if x.shape[place] > 1 or place == axis]
    return x.data_ptr() % 16 == 0 and x.stride(-1) == 1 and all(step % 16 == 0 for step in steps)


def levels(
    tensors: list[Tensor], places: list[int], apart: int | None = None
) -> list[tuple[int, tuple[int, ...]]]:
    """The axes at `places` in as few levels as the strides of all tensors allow: (size, stride in each).

    Neighbours are one level if a step of the outer is a full run of the inner, in every tensor. The axis
    `apart` stays a level of its own. Sizes are those of the first tensor; there is at least one level.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for place in places:
        size, strides = tensors[0].shape[place], tuple(x.stride(place) for x in tensors)
        if size == 1 and place != apart:
            continue
        mergeable = bool(found) and place != apart
        if mergeable and all(a == size * b for a, b in zip(found[-1][1], strides, strict=True)):
            found[-1] = (found[-1][0] * size, strides)
        else:
            found.append((size, strides))
    return found or [(1, (0,) * len(tensors))]


def most_registers(warps: int) -> int:
    """A limit a thread that leaves room for three blocks of four warps on a processor, or for one of eight.

    Left to itself, the assembler spills a few bytes in some kernels so that one block more fits; told that a
    thread may have this many, it does not.
    """
    return min(168 if warps <= 4 else 224, 65536 // (32 * warps))


def launch(
    operator: str,
    kernel: Any,
    programs: int,
    arguments: dict[str, Any],
    *,
    device: torch.device,
    warps: int,
    stages: int = 1,
    registers: int | None = None,
) -> None:
    """Run that many programs of a kernel; `arguments` may hold more than it takes.

    `registers` is the most a thread may have (`most_registers`); None leaves it to the assembler.

    A launch that needs more of the chip than there is becomes a sentence that says of what, and how much; any
    other that the driver refuses becomes one that says what the driver did.
    """
    if programs > MOST_PROGRAMS:
        raise RungUnavailable(
            f"rung='kernels' of {operator} needs {programs} programs for this many tokens, and a launch has "
            f"at most {MOST_PROGRAMS}; takes rung='eager'."
        )
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            kernel[(programs,)](
                **{name: arguments[name] for name in kernel.arg_names},
                num_warps=warps, num_stages=stages, maxnreg=registers,
            )  # fmt: skip
    except OutOfResources as error:
        raise RungUnavailable(
            f"rung='kernels' of {operator} needs {error.required} of {error.name} for these widths, "
            f"and {device} has {error.limit}; takes rung='eager'."
        ) from error
    except RuntimeError as error:
        # Triton raises what the driver answers as a plain RuntimeError that begins so; all others pass.
        if not str(error).startswith("Triton Error [CUDA]"):
            raise
        raise RungUnavailable(
            f"rung='kernels' of {operator} failed to launch {programs} programs of {warps} warps on "
            f"{device}, with {str(error)!r}; takes rung='eager'."
        ) from error


@triton.jit
def offset(group, sizes, strides, LEVELS: tl.constexpr, SKIP: tl.constexpr = 0):
    """Where a group starts: its number decoded level by level, the innermost first, in 64 bits.

    `sizes` and `strides` hold one number a level; the first SKIP strides are others (of the ordered axis,
    say). The size of the outermost level is not needed.
    """
    result = group.to(tl.int64) * 0
    for step in tl.static_range(LEVELS - 1):
        result += (group % sizes[LEVELS - 1 - step]).to(tl.int64) * strides[SKIP + LEVELS - 1 - step]
        group = group // sizes[LEVELS - 1 - step]
    return result + group.to(tl.int64) * strides[SKIP]


@triton.jit
def has_nan(x):
    return tl.max(tl.where(x == x, 0, 1)) > 0
