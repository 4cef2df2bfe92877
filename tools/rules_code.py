"""Rules for code cells and for the outputs stored with them."""

# nbformat carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from complaints import Complaint
from identity import identity, setup_source
from nbformat import NotebookNode
from notebooks import fingerprint, tags

LARGEST_NOTEBOOK = 1_500_000
LONGEST_CELL = 30
SHORTEST_ALT = 20
SHOWING = {"print", "show", "check"}
MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:tmp|home|root|work|Users|usr|opt|mnt|content)/\w")
ADDRESS = re.compile(r"\b0x[0-9a-f]{8,}\b")


def code_cells(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code":
            yield f"cell {number}", cell


def source_complaints(notebook: NotebookNode) -> Iterator[Complaint]:
    """Rules that the source of the code cells must satisfy, whether it has been run or not."""
    cells = list(code_cells(notebook))
    if not cells:
        yield Complaint("cell 1", "setup", "there is no code cell; the first must be the set-up cell")
        return
    place, first = cells[0]
    if "setup" not in tags(first) or first.source != setup_source(identity()):
        yield Complaint(place, "setup", "the first code cell must be the set-up cell: run tools/refresh.py")
    for place, cell in cells:
        length = len(cell.source.splitlines())
        if length > LONGEST_CELL and "setup" not in tags(cell):
            yield Complaint(place, "length", f"{length} lines; one idea a cell, at most {LONGEST_CELL}")
        if re.search(r"\bis_bf16_supported\(\s*\)", cell.source):
            sentence = "is_bf16_supported() says yes on cards that only emulate it: use machine.dtype"
            yield Complaint(place, "bf16", sentence)
        if found := MACHINE_PATH.search(cell.source):
            yield Complaint(place, "path", f"names a path of one machine: {found[0]}")


def output_complaints(notebook: NotebookNode, path: Path) -> Iterator[Complaint]:
    """Rules that the stored outputs must satisfy: they came from this code, in order, and say something."""
    size = path.stat().st_size
    if size > LARGEST_NOTEBOOK:
        yield Complaint("notebook", "size", f"{size} bytes; at most {LARGEST_NOTEBOOK}")
    if notebook.metadata.get("t2book", {}).get("fingerprint") != fingerprint(notebook):
        sentence = "the outputs are older than the code cells or t2lib: run make refresh"
        yield Complaint("notebook", "fingerprint", sentence)
    for expected, (place, cell) in enumerate(code_cells(notebook), start=1):
        if cell.execution_count != expected:
            sentence = f"execution count {cell.execution_count}, where {expected} is due: run make refresh"
            yield Complaint(place, "count", sentence)
        yield from cell_outputs(place, cell)


def cell_outputs(place: str, cell: NotebookNode) -> Iterator[Complaint]:
    if not cell.outputs and shows(cell.source):
        yield Complaint(
            place, "output", "the cell shows something, but no output is stored: run make refresh"
        )
    for output in cell.outputs:
        if output.get("name") == "stderr":
            yield Complaint(place, "stderr", f"output on stderr: {output.text.strip()[:80]!r}")
        if output.output_type == "error" and "raises-exception" not in tags(cell):
            yield Complaint(place, "error", f"stored error {output.ename}, but no tag raises-exception")
        text = str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
        if (found := MACHINE_PATH.search(text)) or (found := ADDRESS.search(text)):
            yield Complaint(place, "path", f"the output names something of one machine: {found[0]}")
        if any(kind.startswith("image/") for kind in output.get("data", {})):
            yield from image(place, cell)


def image(place: str, cell: NotebookNode) -> Iterator[Complaint]:
    described = cell.metadata.get("mystnb", {})
    alt = described.get("image", {}).get("alt", "")
    if len(alt) < SHORTEST_ALT:
        sentence = f"a figure needs alt text of {SHORTEST_ALT} characters in mystnb.image.alt, got {alt!r}"
        yield Complaint(place, "alt", sentence)
    figure = described.get("figure", {})
    if not figure.get("caption") or not str(figure.get("name", "")).startswith("fig-"):
        sentence = "a figure needs mystnb.figure.caption, and mystnb.figure.name of the form fig-..."
        yield Complaint(place, "caption", sentence)


def shows(source: str) -> bool:
    """Whether running the cell surely calls print, show or check."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    return any(_shows(node) for node in tree.body)


def _shows(node: ast.AST) -> bool:
    # A branch may not be taken, and what is only defined is not run.
    if isinstance(
        node, ast.If | ast.While | ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.AsyncFunctionDef
    ):
        return False
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if name in SHOWING:
            return True
    return any(_shows(child) for child in ast.iter_child_nodes(node))
