"""Check the kernels of one operator where they run: python tools/gpu_checks.py depth_mix --device cuda

Examples are those of the library's table of kernels, and one call at a size that the interpreter would take
too long for. Each result and gradient is compared with `eager` in float64; then torch.library.opcheck of all
operators that were called, and one full-graph torch.compile. In place of an operator, `sizes` checks them all
at the sizes of the bench; see `gpu_sizes`. The file gets the machine and then every check, a line of JSON
each, written at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_sizes
import torch
from gpu_process import REMARK
from torch.utils._python_dispatch import TorchDispatchMode

from t2lib.bench._measure import machine
from t2lib.ops import _kernel_cases, _registry

# In place of an operator.
SIZES = "sizes"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Sizes with a ragged tail, for each bench that knows them.
LARGE = {"tokens": 1037, "width": 1536, "heads": 24, "window": 100, "states": 24}
SMALL = {"tokens": 21, "width": 32, "heads": 2, "window": 6, "states": 5}
Check = Callable[[], float]
# What, dtype, tolerance, and the function that gives the errors by name.
Row = tuple[str, str, float, Callable[[], dict[str, float]]]


def dtypes(device: str) -> list[torch.dtype]:
    """Those that the kernels take there: bfloat16 from capability 8.0 on, and not in the interpreter."""
    found = [torch.float32, torch.float16]
    if device == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
        found.append(torch.bfloat16)
    return found


def examples(operator: str, device: str) -> list[_kernel_cases.Example]:
    """The examples of the table of kernels on the device, and one at the sizes of a bench."""
    name = f"t2lib.ops._cases_{operator}"
    found: list[_kernel_cases.Example] = []
    if importlib.util.find_spec(name) is not None:
        cases = importlib.import_module(name)
        # Numbers are drawn on the CPU, so that they are the same everywhere; all else is made on the device.
        with mock.patch.object(cases, "normal", _normal_on(device)), torch.device(device):
            found += cases.examples()
    bench = importlib.import_module(f"t2lib.bench.{operator}")
    sizes = LARGE if device == "cuda" else SMALL
    shape = bench.Shape(**{key: size for key, size in sizes.items() if hasattr(bench.Shape(), key)})
    inputs = {str(i): torch.from_numpy(x).to(device).double() for i, x in enumerate(bench.inputs(shape))}

    def call(rung: str, given: dict[str, Any]) -> Any:
        return bench.call(shape, rung)(*given.values())

    return [*found, _kernel_cases.Example(f"{shape}", inputs, call)]


def _normal_on(device: str) -> Callable[..., torch.Tensor]:
    draw = _kernel_cases.normal

    def normal(*shape: int, **options: Any) -> torch.Tensor:
        with torch.device("cpu"):
            return draw(*shape, **options).to(device)

    return normal


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The first call of each custom operator of the library, with its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function.namespace == "t2lib":
            self.found.setdefault(function, (arguments, keywords or {}))
        return function(*arguments, **(keywords or {}))


def compared(
    example: _kernel_cases.Example, dtype: torch.dtype, device: str, calls: Calls | None
) -> dict[str, float]:
    """The errors of the kernels against `eager` in float64, by result and gradient."""
    with mock.patch.object(_kernel_cases, "normal", _normal_on(device)), calls or nullcontext():
        return _kernel_cases.errors(example, dtype)


def opchecks(calls: Calls) -> Iterator[tuple[str, Check]]:
    """torch.library.opcheck of every custom operator that was called, forward and backward."""
    for function, (arguments, keywords) in calls.found.items():
        # The backward operators are of first order.
        tracked = "backward" not in function.name()

        def check(
            function: Any = function, given: Any = (arguments, keywords), tracked: bool = tracked
        ) -> float:
            arguments, keywords = torch.utils._pytree.tree_map(lambda x: _fresh(x, tracked), given)
            torch.library.opcheck(function, arguments, keywords)
            return 0.0

        yield f"opcheck of {function.name()}", check


def _fresh(x: Any, tracked: bool) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone().requires_grad_(tracked and x.is_floating_point())


def compiled(example: _kernel_cases.Example, device: str) -> float:
    """The largest difference that a full-graph torch.compile makes to results and gradients."""

    def call(rung: str, given: dict[str, Any]) -> Any:
        return torch.compile(example.call, fullgraph=True)(rung, given)

    with mock.patch.object(_kernel_cases, "normal", _normal_on(device)):
        plain = _kernel_cases.run(example, "kernels", torch.float32).arrays
        found = _kernel_cases.run(example._replace(call=call), "kernels", torch.float32).arrays
    return max(_kernel_cases.error(found[name], x.double()) for name, x in plain.items())


def checks(operator: str, device: str) -> Iterator[Row]:
    """All checks of an operator, or of all of them at the sizes of the bench."""
    if operator == SIZES:
        dtype = gpu_sizes.dtype_of_the_bench(device)
        for sized in gpu_sizes.all_sized(device, dtype):
            errors = partial(gpu_sizes.errors, sized, device, dtype)
            yield sized.what, str(dtype).removeprefix("torch."), TOLERANCE[dtype], errors
        return
    calls, first = Calls(), dict[Any, _kernel_cases.Example]()
    for example in examples(operator, device):
        for dtype in dtypes(device):
            yield (
                example.what,
                str(dtype).removeprefix("torch."),
                TOLERANCE[dtype],
                partial(compared, example, dtype, device, calls if dtype == torch.float32 else None),
            )
        for function in calls.found:
            first.setdefault(function, example)
    for what, check in opchecks(calls):
        yield what, "float32", 0.0, lambda check=check: {"": check()}  # type: ignore[misc]
    # One example a forward operator.
    for function, example in first.items():
        if "backward" not in function.name():
            what = f"full-graph torch.compile of {function.name()}"
            yield what, "float32", 1e-6, lambda example=example: {"": compiled(example, device)}  # type: ignore[misc]


def run(operator: str, device: str, out: Path) -> int:
    """Run all checks, write a line each; returns how many failed, 1 if none could be run."""
    count = failed = 0
    reason = next(
        (
            why
            for rung, runs, why in _registry.ladder("short_swa" if operator == SIZES else operator)
            if rung == "kernels" and not runs
        ),
        "",
    )
    with out.open("w", encoding="utf-8") as file:

        def write(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        write({"machine": machine(device if torch.cuda.is_available() else "cpu")})
        for what, dtype, tolerance, errors in [] if reason else checks(operator, device):
            started = time.monotonic()
            row: dict[str, Any] = {"operator": operator, "check": what, "dtype": dtype}
            try:
                row |= {"errors": errors(), "tolerance": tolerance}
                row["ok"] = all(error <= tolerance for error in row["errors"].values())
            # A refusal is a failure too: every dtype asked for here is one that the kernels take.
            except Exception as raised:
                row |= {"ok": False, "reason": f"{type(raised).__name__}: {raised}"[:2000]}
            row["seconds"] = round(time.monotonic() - started, 2)
            count, failed = count + 1, failed + (not row["ok"])
            write(row)
            largest = max(row.get("errors", {}).values(), default=0.0)
            verdict = "ok" if row["ok"] else "FAILED"
            print(f"{verdict:<8}{largest:>9.1e}  {dtype:<9} {what} {row.get('reason', '')}", flush=True)
        if reason:
            # Nothing was checked, so nothing has passed.
            failed += 1
            write({"operator": operator, "ok": False, "reason": reason})
    print(f"{REMARK}not run: {reason}" if reason else f"{REMARK}{count - failed} of {count} checks")
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operator", choices=[*_registry.OPERATORS, SIZES])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="file for the lines of JSON")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        from t2lib.ops import _touched

        _touched.quicken()
    # Whatever the environment says of the products of `eager`, they are what kernels are compared with.
    torch.set_float32_matmul_precision("highest")
    return 1 if run(options.operator, options.device, options.out) else 0


if __name__ == "__main__":
    sys.exit(main())
