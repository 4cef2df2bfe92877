"""The table of the kernels: interpreted in one process, compiled for other chips in another.

    python -m t2lib.ops._kernel_table interpret [operator ...]
    python -m t2lib.ops._kernel_table build [operator ...]

Each prints one JSON object a cell, as soon as it is known. Triton either interprets or compiles, as the
environment says when it is imported, so that one process cannot do both; `rows` runs the two and joins what
they print. Imports neither torch nor Triton before that.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from t2lib.ops import _registry

CHIPS = (75, 80, 89, 90, 100)
PARTS = ("interpret", "build")
BUILT = "kernels, compiled: registers/bytes spilled/shared memory"
NOTE = (
    "-: not built. bfloat16 takes sm_80; what is less common is built for one chip or two, to save time. "
    "Builds for tensors that lie unaligned are left to tests/kernels/build."
)
Row = dict[str, Any]


def rows(operators: list[str] | None = None) -> Iterator[Row]:
    """The cells of both parts as keyword arguments of `verify.Cell`."""
    names = list(_registry.OPERATORS) if operators is None else operators
    missing = {name: _missing(name) for name in names}
    for name, reason in missing.items():
        if reason:
            yield _row("kernels", name, "all", reason=reason)
    present = [name for name in names if not missing[name]]
    if not present:
        return
    with tempfile.TemporaryDirectory(prefix="t2lib-triton-") as cache:
        # A cache of its own: an old build in a shared one would be shown for a new one.
        shared = os.environ | {"TRITON_CACHE_DIR": cache}
        shared.pop("TRITON_INTERPRET", None)
        environments = {"interpret": shared | {"TRITON_INTERPRET": "1"}, "build": shared}
        said = {part: Path(cache, f"{part}.txt") for part in PARTS}
        started: dict[str, subprocess.Popen[str]] = {}
        try:
            for part in PARTS:
                with said[part].open("w", encoding="utf-8") as complaints:
                    started[part] = subprocess.Popen(
                        [sys.executable, "-m", "t2lib.ops._kernel_table", part, *present],
                        env=environments[part], stdout=subprocess.PIPE, stderr=complaints, text=True,
                    )  # fmt: skip
            # Both are read from the start, so that neither waits for the other.
            printed = {part: _lines(process) for part, process in started.items()}
            for part, process in started.items():
                yield from (json.loads(line) for line in printed[part] if line.startswith("{"))
                if process.wait():
                    lines = said[part].read_text(encoding="utf-8").strip().splitlines()
                    last = (lines or ["nothing was said"])[-1]
                    yield _row("kernels", f"{part}, all of it", "all", error=float("inf"), detail=last)
        finally:
            for process in started.values():
                process.kill()


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What a process prints, line by line, read by a thread of its own."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    Thread(target=read, daemon=True).start()
    return iter(lines.get, None)


def _missing(operator: str) -> str:
    """Why there is nothing to run for an operator; "" if there is."""
    if "kernels" in _registry.OPERATORS[operator]:
        return _registry.OPERATORS[operator]["kernels"]
    for package in ("torch", "triton"):
        if not _registry.installed(package):
            return f"{package} is not installed; `pip install {package}` brings it (triton on Linux alone)"
    return ""


def _row(table: str, check: str, column: str, **rest: Any) -> Row:
    return {"operator": table, "check": check, "rung": column, "error": None, **rest}


def _guarded(table: str, check: str, column: str, measure: Callable[[], Row]) -> Row:
    try:
        return _row(table, check, column, **measure())
    except Exception as raised:
        detail = f"{type(raised).__name__}: {raised}"
        return _row(table, check, column, error=float("inf"), detail=detail)


def interpret(operator: str) -> Iterator[Row]:
    """Results and gradients against `eager` in float64, and bytes touched against bytes stated."""
    import torch

    from t2lib.ops import _kernel_cases, _touched

    _touched.quicken()
    cases = importlib.import_module(f"t2lib.ops._cases_{operator}")
    for example in cases.examples():
        for dtype in (torch.float32, torch.float16):
            column, what = str(dtype).removeprefix("torch."), f"{operator}, {example.what}"
            try:
                errors, forward, backward = _kernel_cases.measure(example, dtype)
            except Exception as raised:
                detail = f"{type(raised).__name__}: {raised}"
                yield _row("kernels, interpreted", what, column, error=float("inf"), detail=detail)
                continue
            for name, error in errors.items():
                tolerance = _kernel_cases.TOLERANCE[dtype]
                check = f"{what}: {name}"
                yield _row("kernels, interpreted", check, column, error=error, tolerance=tolerance)
            if example.stated is not None:
                stated = example.stated(dtype.itemsize)
                for name, told, found in zip(
                    ("forward", "backward"), stated, (forward, backward), strict=True
                ):
                    yield _row(
                        "kernels, bytes stated = bytes touched", f"{what}: {name}", column,
                        error=float(abs(told - found)), shown=f"{found:,}",
                        detail=f"{told:,} stated, {found:,} touched",
                    )  # fmt: skip


def build(operator: str) -> Iterator[Row]:
    """Every kernel for every chip: the most registers and shared memory of its builds, all that spills."""
    from t2lib.ops import _build

    cases = importlib.import_module(f"t2lib.ops._cases_{operator}")
    for arch in CHIPS:
        groups: dict[str, list[Any]] = {}
        # What lies unaligned is left to tests/kernels/build: it would double the time.
        for case in filter(lambda case: case.aligned, cases.builds(arch)):
            groups.setdefault(f"{operator}.{case.kernel.__name__}, {_what(case)}", []).append(case)
        for check, group in groups.items():

            def measure(group: list[Any] = group) -> Row:
                built = [case.build() for case in group]
                found = [
                    fault for case, b in zip(group, built, strict=True) for fault in _build.faults(case, b)
                ]
                registers, shared = max(b.registers for b in built), max(b.shared for b in built)
                shown = f"{registers}/{sum(b.spilled for b in built)}/{-(-shared // 1024)}K"
                return {"error": float(len(found)), "shown": shown, "detail": "; ".join(found), "note": NOTE}

            yield _guarded(BUILT, check, f"sm_{arch}", measure)


def _what(case: Any) -> str:
    """What a build is of, with the dtype of its states: the narrowest of what it takes."""
    import torch

    given = [x for x in case.arguments.values() for x in (x if isinstance(x, tuple) else (x,))]
    dtypes = {x.dtype for x in given if isinstance(x, torch.Tensor) and x.dtype.is_floating_point}
    name = str(min(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")
    return case.what if name in case.what else f"{case.what}, {name}"


def main(arguments: list[str]) -> None:
    part, *operators = arguments
    operators = operators or list(_registry.OPERATORS)
    try:
        importlib.import_module("triton")
    except Exception as raised:
        # Installed by its name alone: as good as not installed.
        reason = f"triton cannot be imported: {type(raised).__name__}: {raised}"
        for operator in operators:
            print(json.dumps(_row("kernels", f"{operator}, {part}", "all", reason=reason)), flush=True)
        return
    for operator in operators:
        for row in {"interpret": interpret, "build": build}[part](operator):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
