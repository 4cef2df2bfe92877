"""Refreshing a notebook gives one normal form, and refuses what must not be stored."""

from __future__ import annotations

import nbformat
import pytest
from identity import identity, setup_source
from notebooks import fingerprint
from refresh import RefreshError, normalise, refresh

TITLE = "#md # Title"


def test_refresh_executes_from_top_to_bottom_and_twice_changes_no_byte(write_notebook, monkeypatch):
    # The library may be edited while this runs; here it stands still.
    monkeypatch.setattr("notebooks.library_digest", lambda root: "unchanged")
    path = write_notebook(TITLE, "x = 2\nprint(x)\nprint(x + 1)", "x * 3")
    refresh(path)
    once = path.read_bytes()
    refresh(path)
    assert path.read_bytes() == once
    assert once.endswith(b"}\n")

    notebook = nbformat.read(path, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3]
    assert [cell.id for cell in notebook.cells] == ["cell-01", "cell-02", "cell-03", "cell-04"]
    assert code[0].source == setup_source(identity())
    assert [output.text for output in code[1].outputs] == ["2\n3\n"]
    assert code[2].outputs[0].data["text/plain"] == "6"
    assert code[2].outputs[0].execution_count == 3
    assert notebook.metadata.t2book.fingerprint == fingerprint(notebook)
    assert "version" not in notebook.metadata.language_info


@pytest.fixture
def without_setup(monkeypatch):
    """Leaves the set-up cell out: it imports torch, which these tests need not wait for."""
    monkeypatch.setattr("refresh.put_setup_cell", lambda notebook, which: None)


@pytest.mark.usefixtures("without_setup")
def test_the_kernel_starts_in_an_empty_folder_on_one_thread(write_notebook):
    listing = "import os\nfound = [name for name in os.listdir() if not name.startswith('.')]\nprint(found)"
    path = write_notebook(TITLE, listing + "\nprint(os.environ['OMP_NUM_THREADS'])")
    refresh(path)
    assert nbformat.read(path, 4).cells[1].outputs[0].text == "[]\n1\n"


@pytest.mark.usefixtures("without_setup")
def test_stderr_is_refused_by_cell_and_the_file_stays(write_notebook):
    path = write_notebook(TITLE, "import sys\nprint('careful', file=sys.stderr)")
    before = path.read_bytes()
    with pytest.raises(RefreshError, match="cell 2 writes to stderr: careful"):
        refresh(path)
    assert path.read_bytes() == before


@pytest.mark.usefixtures("without_setup")
def test_an_error_is_refused_unless_the_cell_says_so(write_notebook):
    path = write_notebook(TITLE, "1 / 0")
    with pytest.raises(RefreshError, match="ZeroDivisionError"):
        refresh(path)
    notebook = nbformat.read(path, 4)
    notebook.cells[1].metadata["tags"] = ["raises-exception"]
    nbformat.write(notebook, path)
    refresh(path)
    stored = nbformat.read(path, 4).cells[1].outputs[0]
    assert stored.traceback == ["ZeroDivisionError: division by zero"]


def test_normal_form_drops_what_other_programs_leave_behind():
    cell = nbformat.v4.new_code_cell(
        "1", metadata={"colab": {"height": 3}, "tags": ["keep"], "execution": {}}
    )
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="a"),
        nbformat.v4.new_output("stream", name="stdout", text="b"),
        nbformat.v4.new_output(
            "display_data", data={"text/plain": "c"}, metadata={"needs_background": "light"}
        ),
    ]
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"colab": {}, "widgets": {}})
    normalise(notebook, "stamp")
    assert cell.metadata == {"tags": ["keep"]}
    assert [output.get("text") for output in cell.outputs] == ["ab", None]
    assert cell.outputs[1].metadata == {}
    assert set(notebook.metadata) == {"kernelspec", "language_info", "t2book"}
    assert notebook.metadata["t2book"] == {"fingerprint": "stamp"}


def test_widgets_are_refused():
    cell = nbformat.v4.new_code_cell("w")
    data = {"application/vnd.jupyter.widget-view+json": {}}
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
    with pytest.raises(RefreshError, match="widget"):
        normalise(nbformat.v4.new_notebook(cells=[cell]), "stamp")


def test_the_fingerprint_sees_code_and_library_but_not_prose(tmp_path):
    library = tmp_path / "t2lib"
    library.mkdir()
    (library / "__init__.py").write_text("one = 1\n")
    cells = [nbformat.v4.new_markdown_cell("words"), nbformat.v4.new_code_cell("1")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    first = fingerprint(notebook, tmp_path)

    cells[0].source = "other words"
    assert fingerprint(notebook, tmp_path) == first
    (library / "weights.bin").write_bytes(b"\0")
    with_data = fingerprint(notebook, tmp_path)
    (library / "__init__.py").write_text("one = 2\n")
    with_edit = fingerprint(notebook, tmp_path)
    cells[1].source = "2"
    assert len({first, with_data, with_edit, fingerprint(notebook, tmp_path)}) == 4
