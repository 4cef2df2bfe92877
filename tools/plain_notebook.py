"""Run the code cells of a notebook from top to bottom, without Jupyter: python tools/plain_notebook.py FILE

Prints what the cells print. A cell that needs a package or a C++ compiler which is not installed is left out
with everything that builds on it; any other error ends the run with status 1, and so does a notebook of which
no cell ran. t2lib, torch and numpy have to be there.
"""

from __future__ import annotations

import json
import linecache
import os
import symtable
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any

# Without these a notebook shows nothing of the library.
NEEDED = {"t2lib", "torch", "numpy"}


def code_cells(path: Path) -> list[tuple[str, list[str]]]:
    """Source and tags of every code cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        ("".join(cell["source"]), cell.get("metadata", {}).get("tags", []))
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def run(path: Path) -> int:
    """Run the cells in one namespace, in an empty folder; returns the exit status."""
    cells = code_cells(path)
    # As in a kernel, the cells are the main module: what they define can be found there.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__["display"] = print
    absent: set[str] = set()
    # What the cells that were left out would have defined.
    lost: set[str] = set()
    left_out = 0
    started = time.monotonic()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, (source, tags) in enumerate(cells, start=1):
                name = f"<{path.stem}, cell {number}>"
                here = dict(module.__dict__)
                try:
                    _execute(source, name, module.__dict__)
                except Exception as error:
                    package = _absent(error)
                    if package or (isinstance(error, NameError) and error.name in lost):
                        absent |= {package} - {""}
                        lost |= _defined(source, name)
                        _forget(module.__dict__, here, _assigned(source, name))
                        left_out += 1
                    elif "raises-exception" not in tags:
                        traceback.print_exc()
                        print(f"{path.name}: cell {number} of {len(cells)} failed.", flush=True)
                        return 1
        finally:
            os.chdir(before)
    count, missing = len(cells), ", ".join(sorted(absent))
    print(f"{path.name}: {time.monotonic() - started:.1f} s")
    # Last, so that it is said beside how the run ended.
    left = f"{left_out} of {count} cells left out ({missing})" if left_out else f"all {count} cells ran"
    print(f"remark: {left}", flush=True)
    return 0 if left_out < count else 1


def _absent(error: Exception) -> str:
    """What is not installed, if it is a thing that a notebook can do without, or ""."""
    # Images with torch and a GPU often come with the C compiler that Triton needs, and no other.
    if type(error).__name__ == "RungUnavailable" and "C++ compiler" in str(error):
        return "a C++ compiler"
    if not isinstance(error, ModuleNotFoundError):
        return ""
    package = (error.name or "").partition(".")[0]
    return "" if package in NEEDED else package


def _defined(source: str, name: str) -> set[str]:
    """The names that a cell assigns, defines or imports."""
    symbols = symtable.symtable(source, name, "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def _assigned(source: str, name: str) -> set[str]:
    """Those of the names that are not imports, which would bring the same again."""
    symbols = symtable.symtable(source, name, "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() and not symbol.is_imported()}


def _forget(namespace: dict[str, Any], before: dict[str, Any], names: set[str]) -> None:
    """Drop what a cell was to assign anew and did not: later cells would take it for the new."""
    for name in names & before.keys():
        if namespace.get(name) is before[name]:
            del namespace[name]


def _execute(source: str, name: str, namespace: dict[str, Any]) -> None:
    # Where inspect, and through it Triton, looks for the source of a function.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


if __name__ == "__main__":
    raise SystemExit(max(run(Path(argument).resolve()) for argument in sys.argv[1:]))
