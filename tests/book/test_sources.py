"""What the sources of the book must satisfy before anything is built from them."""

from __future__ import annotations

import json
import subprocess
import sys

import nbformat
import pytest
from built_book import ROOT, source, toc_files
from check import check_book, check_notebook, check_page
from crosswalk import PAGE, collect, gaps, page
from identity import drifted
from notebooks import BOOK, chapters, fingerprint, pages
from rules_code import output_complaints

CHAPTERS = 6
SLOWEST_CHAPTER = 60.0


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_every_chapter_satisfies_the_guards(path):
    assert [str(complaint) for complaint in check_notebook(path)] == []


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT / "book").as_posix())
def test_every_page_satisfies_the_guards(path):
    assert [str(complaint) for complaint in check_page(path)] == []


def test_labels_are_unique_over_the_book():
    assert [str(complaint) for complaint in check_book()] == []


def test_the_table_of_contents_lists_every_page_once():
    listed = [source(name) for name in toc_files()]
    assert len(chapters()) == CHAPTERS
    assert sorted(listed) == sorted([*chapters(), *pages()])


def test_every_equation_has_its_function_and_its_test():
    found = collect()
    assert gaps(found) == []
    assert (ROOT / PAGE).read_text() == page(found), "run python tools/crosswalk.py"


def test_owner_branch_and_version_are_the_same_everywhere():
    assert drifted() == [], "run python tools/identity.py --write"


def test_what_made_the_outputs_is_recorded_and_took_less_than_a_minute_each():
    provenance = json.loads((BOOK / "_provenance.json").read_text())
    assert {"python", "platform", "cpu", "numpy", "torch", "triton"} <= set(provenance["machine"])
    seconds = {name: entry["seconds"] for name, entry in provenance["notebooks"].items()}
    assert set(seconds) == {path.stem for path in chapters()}
    assert {name: value for name, value in seconds.items() if value > SLOWEST_CHAPTER} == {}


@pytest.fixture
def small(tmp_path):
    """A notebook with its outputs, as refreshing would leave it."""
    cell = nbformat.v4.new_code_cell("print(1 + 1)", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", text="2\n")]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["t2book"] = {"fingerprint": fingerprint(notebook)}
    path = tmp_path / "small.ipynb"
    nbformat.write(notebook, path)
    return path


def nbval(path) -> int:
    """Exit status of the strict comparison of one notebook: 0 means that everything agreed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["--nbval", "--nbval-current-env", str(path)]
    return subprocess.run(command, cwd=path.parent, capture_output=True, timeout=120).returncode


def test_a_stripped_notebook_passes_nbval_but_not_the_guard(small):
    notebook = nbformat.read(small, 4)
    assert list(output_complaints(notebook, small)) == []

    # The code no longer does what the stored output said ...
    notebook.cells[0].source = "print(1 + 2)"
    nbformat.write(notebook, small)
    assert nbval(small) != 0

    # ... and once count and output are stripped, the comparison has nothing to compare.
    notebook.cells[0].execution_count, notebook.cells[0].outputs = None, []
    nbformat.write(notebook, small)
    assert nbval(small) == 0
    rules = {complaint.rule for complaint in output_complaints(notebook, small)}
    assert {"count", "output", "fingerprint"} <= rules


def test_outputs_older_than_the_code_are_caught(small):
    notebook = nbformat.read(small, 4)
    notebook.cells[0].source = "print(2)"
    assert "fingerprint" in {complaint.rule for complaint in output_complaints(notebook, small)}
