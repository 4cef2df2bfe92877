"""Where the chapters lie, how they are read, and the fingerprint that ties their outputs to the code."""

# nbformat carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import hashlib
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"


def chapters(book: Path = BOOK) -> list[Path]:
    """Every notebook of the book, in order."""
    return sorted(book.glob("*.ipynb"))


def pages(book: Path = BOOK) -> list[Path]:
    """Every Markdown page of the book, in order."""
    return sorted(book.rglob("*.md"))


def read(path: Path) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def library_digest(root: Path = ROOT) -> str:
    """One hash over the library: every module and data file under ``t2lib``, by name and content."""
    digest = hashlib.sha256()
    for path in sorted((root / "t2lib").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def fingerprint(notebook: NotebookNode, root: Path = ROOT) -> str:
    """Hash of the code cells and of the library that made the outputs.

    The library's version stands in ``t2lib/__init__.py``, so the library's digest covers it.
    """
    digest = hashlib.sha256(library_digest(root).encode())
    for cell in notebook.cells:
        if cell.cell_type == "code":
            digest.update(cell.source.encode() + b"\0")
    return digest.hexdigest()
