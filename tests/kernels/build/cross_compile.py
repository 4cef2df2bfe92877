"""Compile a kernel for a chip that is not here, and read off what a launch there would meet."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
# Shared memory a block may use: CUDA C++ Programming Guide, "Technical Specifications".
SHARED_LIMIT = {75: 64 << 10, 80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


class Build(NamedTuple):
    """Registers a thread, bytes spilled to the stack, shared memory, machine code, CPU seconds."""

    registers: int
    spilled: int
    shared: int
    code: str
    seconds: float


def build(
    kernel: Any, arch: int, arguments: dict[str, Any], *, aligned: bool, warps: int, stages: int
) -> Build:
    """Compile `kernel` for sm_<arch> as a launch with these arguments would; meta tensors will do."""
    signature, constants, attributes = specialise(kernel, arguments, aligned=aligned)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    begin = _cpu_seconds()
    compiled = triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages}
    )
    seconds = _cpu_seconds() - begin
    path = os.path.join(os.environ["TRITON_CACHE_DIR"], "last.cubin")
    with open(path, "wb") as file:
        file.write(compiled.asm["cubin"])
    usage = _run("cuobjdump", "-res-usage", path)
    return Build(
        registers=int(re.search(r"REG:(\d+)", usage).group(1)),
        spilled=int(re.search(r"STACK:(\d+)", usage).group(1)),
        shared=compiled.metadata.shared,
        code=_run("cuobjdump", "-sass", path),
        seconds=seconds,
    )


def specialise(kernel: Any, arguments: dict[str, Any], *, aligned: bool) -> tuple[dict[str, Any], Any, Any]:
    """The types of the arguments, and what Triton's launcher compiles in: constants, divisibility."""
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, (name, value) in enumerate(arguments.items()):
        parameter = kernel.params[place]
        plain = parameter.do_not_specialize
        signature[name] = _specialise(
            value, (place,), parameter.is_constexpr, plain, constants, attributes, aligned
        )
    return signature, constants, attributes


def _specialise(
    value: Any,
    place: tuple[int, ...],
    constant: bool,
    plain: bool,
    constants: Any,
    attributes: Any,
    aligned: bool,
) -> Any:
    """One argument: its type is the result, a constant or a divisibility is added to its table."""
    if isinstance(value, tuple):
        return tuple(
            _specialise(item, (*place, index), constant, False, constants, attributes, aligned)
            for index, item in enumerate(value)
        )
    if constant or value is None or (isinstance(value, int) and value == 1 and not plain):
        constants[place] = value
        return "constexpr"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        if value % 16 == 0 and not plain:
            attributes[place] = [["tt.divisibility", 16]]
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if aligned:
        attributes[place] = [["tt.divisibility", 16]]
    return POINTERS[value.dtype]


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run(
        [os.path.join(TOOLS, tool), *arguments], capture_output=True, text=True, check=True
    ).stdout


def _cpu_seconds() -> float:
    """Seconds of CPU of this process and its children: the assembler is one."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system
