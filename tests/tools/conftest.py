"""The tools are scripts, not a package: their folder joins the path, as it does when one is run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture
def write_notebook(tmp_path: Path) -> Callable[..., Path]:
    """Writes a notebook from its cells: a string that begins with ``#md `` is Markdown, any other is code."""

    def write(*sources: str, name: str = "ch03-small.ipynb") -> Path:
        cells = [
            nbformat.v4.new_markdown_cell(source.removeprefix("#md "))
            if source.startswith("#md ")
            else nbformat.v4.new_code_cell(source)
            for source in sources
        ]
        path = tmp_path / name
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
        return path

    return write
