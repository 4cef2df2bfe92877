"""Run the code cells of a notebook from top to bottom, without Jupyter: python tools/plain_notebook.py FILE

Prints what the cells print. A cell that needs a package which is not installed is left out with everything
that builds on it; any other error ends the run with status 1.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any


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
    left_out = 0
    started = time.monotonic()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, (source, tags) in enumerate(cells, start=1):
                name = f"<{path.stem}, cell {number}>"
                try:
                    _execute(source, name, module.__dict__)
                except ImportError as error:
                    absent.add((error.name or str(error)).partition(".")[0])
                    left_out += 1
                except Exception as error:
                    # After a cell that was left out, names may be missing.
                    if absent and isinstance(error, NameError):
                        left_out += 1
                    elif "raises-exception" not in tags:
                        traceback.print_exc()
                        print(f"{path.name}: cell {number} of {len(cells)} failed.", flush=True)
                        return 1
        finally:
            os.chdir(before)
    why = f", {left_out} left out for want of {', '.join(sorted(absent))}" if absent else ""
    print(f"{path.name}: {len(cells) - left_out} cells ran{why}, {time.monotonic() - started:.1f} s")
    return 0


def _execute(source: str, name: str, namespace: dict[str, Any]) -> None:
    # Where inspect, and through it Triton, looks for the source of a function.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


if __name__ == "__main__":
    raise SystemExit(max(run(Path(argument).resolve()) for argument in sys.argv[1:]))
