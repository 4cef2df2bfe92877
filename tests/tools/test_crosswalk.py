"""Three sides, one page: a label that one side lacks is a gap with its name."""

from __future__ import annotations

import nbformat
import pytest
from crosswalk import collect, gaps, page


@pytest.fixture
def project(tmp_path):
    for folder in ("t2lib", "book", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nversion = "0.1.0"\n[project.urls]\nRepository = "https://github.com/a/b"\n'
        '[tool.t2book]\nbranch = "main"\n'
    )
    text = "# One\n\nWords.\n\n$$\ny = x\n$$ (eq-one)\n\nMore.\n\n$$\nz = y\n$$ (eq-two)\n\n$$\nplain\n$$"
    cells = [nbformat.v4.new_markdown_cell(text)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "book" / "ch01-one.ipynb")
    (tmp_path / "t2lib" / "sums.py").write_text(
        'def read(x):\n    """Read.\n\n    Book: eq-one, eq-two\n    """\n\n'
        'def _private(x):\n    """Book: eq-three"""\n'
    )
    (tmp_path / "tests" / "test_sums.py").write_text(
        'import pytest\n\n@pytest.mark.equation("eq-one")\n@pytest.mark.equation("eq-two")\n'
        "def test_read():\n    pass\n"
    )
    return tmp_path


def test_no_gap_and_one_row_an_equation(project):
    found = collect(project)
    assert gaps(found) == []
    text = page(found, project)
    assert text.count("* - Equation {eq}`") == 2
    assert "    y = x" in text
    assert "https://github.com/a/b/blob/main/t2lib/sums.py" in text
    assert "https://github.com/a/b/blob/main/tests/test_sums.py" in text
    assert "(ch01-one.ipynb)" in text


def test_private_functions_do_not_count(project):
    assert "eq-three" not in collect(project).functions


@pytest.mark.parametrize(
    ("file", "old", "new", "gap"),
    [
        ("t2lib/sums.py", "eq-one, eq-two", "eq-one", "eq-two (ch01-one.ipynb): no public function"),
        ("tests/test_sums.py", '"eq-two"', '"eq-one"', "eq-two (ch01-one.ipynb): no test is marked"),
        ("t2lib/sums.py", "eq-two", "eq-two, eq-old", "eq-old: a docstring names it (t2lib.sums.read)"),
        ("tests/test_sums.py", '"eq-two"', '"eq-two", "eq-old"', "eq-old: a test names it (test_read)"),
    ],
)
def test_each_side_that_lacks_a_label_is_named(project, file, old, new, gap):
    path = project / file
    path.write_text(path.read_text().replace(old, new))
    found = gaps(collect(project))
    assert len(found) == 1
    assert found[0].startswith(gap)
