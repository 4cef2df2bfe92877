"""Execute the notebooks in fresh kernels and write them in one normal form.

    python tools/refresh.py                     all chapters
    python tools/refresh.py book/ch03-*.ipynb   these

A second refresh of an unchanged notebook changes no byte, except in cells tagged
``nbval-ignore-output`` (timings). What made the outputs is recorded in ``book/_provenance.json``.
"""

# nbformat carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
from identity import identity, put_setup_cell
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from notebooks import BOOK, ROOT, chapters, fingerprint, read

CELL_TIMEOUT = 120
KEPT_CELL_METADATA = ("mystnb", "tags")
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}


class RefreshError(Exception):
    """A notebook that must not be stored, and why."""


def execute(notebook: NotebookNode) -> None:
    """Run the notebook from top to bottom in a fresh kernel, in an empty folder, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        environment |= {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(Path(folder, ".ipython"))}
        # The notebooks' own folder is no part of a reader's path: only the installed library is.
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources=resources)
        client.extra_arguments = ["--IPKernelApp.log_level=40"]
        client.execute(env=environment)


def merged_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of one stream: where a kernel cuts them is chance."""
    merged: list[NotebookNode] = []
    for output in outputs:
        previous = merged[-1] if merged else None
        if (
            previous is not None
            and output.output_type == previous.output_type == "stream"
            and output.name == previous.name
        ):
            previous.text += output.text
        else:
            merged.append(output)
    return merged


def normalise_output(output: NotebookNode, count: int) -> None:
    if output.output_type == "error":
        # The frames carry paths of this machine; name and message are what the reader needs.
        output.traceback = [f"{output.ename}: {output.evalue}"]
    if output.output_type == "execute_result":
        output.execution_count = count
    if "metadata" in output:
        output.metadata = NotebookNode()
    if any("widget" in kind for kind in output.get("data", {})):
        raise RefreshError("a widget's output cannot be stored")


def prepare(notebook: NotebookNode, root: Path = ROOT) -> str:
    """Bring the cells into their final form; the fingerprint of the code that is about to run."""
    put_setup_cell(notebook, identity(root))
    for cell in notebook.cells:
        cell.source = cell.source.strip("\n")
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return fingerprint(notebook, root)


def normalise(notebook: NotebookNode, stamp: str) -> None:
    """One form for every notebook: ids, counts, metadata and outputs depend on its content alone."""
    count = 0
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:02d}"
        cell.metadata = NotebookNode(
            {k: cell.metadata[k] for k in KEPT_CELL_METADATA if cell.metadata.get(k)}
        )
        if cell.cell_type != "code":
            cell.pop("attachments", None)
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = merged_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                raise RefreshError(f"cell {number} writes to stderr: {output.text.strip()}")
            normalise_output(output, count)
    notebook.metadata = NotebookNode(
        kernelspec=KERNELSPEC,
        language_info={"name": "python", "pygments_lexer": "python3"},
        t2book={"fingerprint": stamp},
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5


def refresh(path: Path, root: Path = ROOT) -> float:
    """Renew one notebook in place; the seconds it took to execute."""
    notebook = read(path)
    stamp = prepare(notebook, root)
    start = time.perf_counter()
    try:
        execute(notebook)
    except CellExecutionError as error:
        raise RefreshError(str(error)) from error
    seconds = time.perf_counter() - start
    normalise(notebook, stamp)
    text = nbformat.writes(notebook) + "\n"
    if text != path.read_text():
        path.write_text(text)
    return seconds


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def machine() -> dict[str, str]:
    packages = {}
    for name in ("numpy", "torch", "triton", "matplotlib"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "absent"
    system = f"{platform.system()} {platform.machine()}"
    return {"python": platform.python_version(), "platform": system, "cpu": cpu_name(), **packages}


def record(seconds: dict[str, float], path: Path = BOOK / "_provenance.json") -> None:
    """Write down what made the outputs, and how long each notebook took."""
    stored: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    here = machine()
    notebooks = stored.get("notebooks", {})
    if stored.get("machine", here) != here and set(notebooks) - set(seconds):
        print("The other notebooks were made with other versions: refresh all of them.")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    notebooks |= {name: {"seconds": round(value, 1), "date": date} for name, value in seconds.items()}
    known = {chapter.stem for chapter in chapters(path.parent)}
    kept = {name: notebooks[name] for name in sorted(notebooks) if name in known}
    content = {"machine": here, "notebooks": kept}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute notebooks in fresh kernels and normalise them.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebooks; default: every chapter")
    options = parser.parse_args()
    # The first import of matplotlib on a machine lists its fonts, and says so on stderr: not in a chapter.
    importlib.import_module("matplotlib.font_manager")
    seconds: dict[str, float] = {}
    failed = False
    for path in options.notebooks or chapters():
        try:
            seconds[path.stem] = refresh(path)
        except RefreshError as error:
            failed = True
            print(f"{path.name}: not stored. {error}")
        else:
            print(f"{path.name}: {seconds[path.stem]:.1f} s")
    if stored := {name: value for name, value in seconds.items() if (BOOK / f"{name}.ipynb").is_file()}:
        record(stored)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
