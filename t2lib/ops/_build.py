"""Compile a kernel for a chip that is not here, and read off what a launch there would meet.

Needs Triton, which brings the assembler, and neither a GPU nor a CUDA toolkit; and a process without
TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
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
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


# The Triton whose builds must have no fault. Others run the same kernels, and may spill a few bytes more.
PROVED = triton.__version__.startswith("3.7.")


class Build(NamedTuple):
    """Registers a thread, bytes spilled to the stack, shared memory, the assembly, CPU seconds."""

    registers: int
    spilled: int
    shared: int
    ptx: str
    cubin: bytes
    seconds: float

    @property
    def code(self) -> str:
        """The machine code in words. Taking it apart is as long as compiling, so ask only if you need it."""
        return _inspect(self.cubin, "-sass")


def build(
    kernel: Any, arch: int, arguments: dict[str, Any], *, aligned: bool, warps: int, stages: int,
    registers: int | None = None,
) -> Build:  # fmt: skip
    """Compile `kernel` for sm_<arch> as a launch with these arguments would; meta tensors will do."""
    signature, constants, attributes = specialise(kernel, arguments, aligned=aligned)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    begin = _cpu_seconds()
    options = {"num_warps": warps, "num_stages": stages, "maxnreg": registers}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    seconds = _cpu_seconds() - begin
    usage = _inspect(compiled.asm["cubin"], "-res-usage")
    return Build(
        registers=_number(r"REG:(\d+)", usage),
        spilled=_number(r"STACK:(\d+)", usage),
        shared=compiled.metadata.shared,
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
        seconds=seconds,
    )


class Case(NamedTuple):
    """One kernel as a launch on one chip would build it; `what` says with which inputs.

    `matrix` says whether a matrix instruction is due (a dot of half precision from 8.0 on).
    """

    kernel: Any
    what: str
    arch: int
    arguments: dict[str, Any]
    aligned: bool
    warps: int
    stages: int = 1
    matrix: bool = False
    registers: int | None = None

    def __str__(self) -> str:
        return f"{self.kernel.__name__} sm_{self.arch} {self.what}, {'' if self.aligned else 'un'}aligned"

    def build(self) -> Build:
        """Compile it; `arguments` may hold more than the kernel takes."""
        names = self.kernel.arg_names
        arguments = {name: self.arguments[name] for name in names}
        return build(
            self.kernel, self.arch, arguments, aligned=self.aligned, warps=self.warps, stages=self.stages,
            registers=self.registers,
        )  # fmt: skip


def faults(case: Case, built: Build) -> list[str]:
    """What is wrong with a build: a spill, too much shared memory, a wrong instruction, 5 s and more."""
    found = []
    what = f"{case} with {case.warps} warps: {built.registers} registers"
    if built.spilled:
        found.append(f"{what}, {built.spilled} bytes spilled")
    if built.shared > SHARED_LIMIT[case.arch]:
        limit = SHARED_LIMIT[case.arch]
        found.append(f"{what}, {built.shared} bytes of shared memory where the chip has {limit}")
    # The matrix instruction is mma up to 8.9 and for low tiles, wgmma on 9.0, tcgen05.mma on 10.0.
    if (re.search(r"\bw?g?mma\.|\btcgen05\.mma\.", built.ptx) is not None) != case.matrix:
        found.append(f"{what}, {'no' if case.matrix else 'a'} matrix instruction")
    if built.seconds >= 5:
        found.append(f"{what}, {built.seconds:.1f} s to compile")
    return found


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


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found.group(1))


def _inspect(cubin: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [os.path.join(TOOLS, "cuobjdump"), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _cpu_seconds() -> float:
    """Seconds of CPU of this process and its children: the assembler is one."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system
