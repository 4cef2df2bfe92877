"""Notebooks run by the plain runner, where there is no Jupyter."""

import json
import sys

import plain_notebook
import pytest


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def write(*cells):
        content = [{"cell_type": "markdown", "source": ["# Title"]}]
        for source, *tags in cells:
            content.append({"cell_type": "code", "source": source, "metadata": {"tags": tags}})
        path = tmp_path / "pages.ipynb"
        path.write_text(json.dumps({"cells": content}))
        return path

    return write


def test_cells_run_in_one_namespace_and_keep_their_source(notebook, capsys):
    path = notebook(
        (["def f(x):\n", "    return 2 * x"],),
        ("import inspect\nprint(inspect.getsource(f))\nprint(f(21), __name__)",),
        ("1 / 0", "raises-exception"),
    )
    assert plain_notebook.run(path) == 0
    shown = capsys.readouterr().out
    assert "return 2 * x" in shown
    assert "42 __main__" in shown
    assert "remark: all 3 cells ran" in shown


def test_a_missing_package_leaves_out_what_builds_on_it(notebook, capsys):
    path = notebook(("import a_package_that_is_not\ny = 1",), ("print(y)",), ("print('still here')",))
    assert plain_notebook.run(path) == 0
    shown = capsys.readouterr().out
    assert "still here" in shown
    assert "remark: 2 of 3 cells left out (a_package_that_is_not)" in shown


def test_only_what_a_left_out_cell_defines_is_left_out_with_it(notebook, capsys):
    assert (
        plain_notebook.run(notebook(("import a_package_that_is_not",), ("x = 1",), ("print(mistyped)",))) == 1
    )
    assert "cell 3 of 3 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "cell", ["from t2lib.ops import depth_mixx", "import t2lib.not_there", "import torch.not_there"]
)
def test_the_library_and_torch_are_never_left_out(notebook, capsys, cell):
    assert plain_notebook.run(notebook(("x = 1",), (cell,), ("y = 2",))) == 1
    assert "cell 2 of 3 failed" in capsys.readouterr().out


def test_a_notebook_of_which_no_cell_ran_has_failed(notebook, capsys):
    assert plain_notebook.run(notebook(("import a_package_that_is_not",))) == 1
    assert "remark: 1 of 1 cells left out" in capsys.readouterr().out


def test_a_cell_that_fails_is_named(notebook, capsys):
    assert plain_notebook.run(notebook(("x = 1",), ("assert x == 2",))) == 1
    shown = capsys.readouterr()
    assert "cell 2 of 2 failed" in shown.out
    assert "<pages, cell 2>" in shown.err


def test_without_matplotlib_figures_are_left_out(notebook, capsys, monkeypatch):
    # As where it is not installed: its import fails.
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    path = notebook(
        ("from t2lib import figures\nfig, axes = figures.figure()",), ("axes.plot([1])",), ("x = 1",)
    )
    assert plain_notebook.run(path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "remark: 2 of 3 cells left out (matplotlib)"


def test_without_a_cpp_compiler_the_compiled_rung_is_left_out(notebook, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    call = "import torch\nfrom t2lib.ops import short_conv\nx = torch.ones(3, 2)\n"
    call += "y = short_conv(x, torch.ones(2, 2), axis=0, rung='compiled')"
    assert plain_notebook.run(notebook((call,), ("print(x)",), ("print(y)",))) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "remark: 2 of 3 cells left out (a C++ compiler)"
    # Nothing but that: kernels that fail have failed.
    fails = "from t2lib.ops import RungUnavailable\nraise RungUnavailable('failed to launch 9 programs')"
    assert plain_notebook.run(notebook((fails,), ("x = 1",))) == 1


def test_what_a_left_out_cell_was_to_renew_is_not_taken_for_the_new(notebook, capsys):
    first = "import json\nkept, renewed, stale = 1, 1, 1"
    second = "import json\nrenewed = 2\nimport a_package_that_is_not\nstale = 2"
    path = notebook((first,), (second,), ("assert stale == 2",), ("assert renewed + kept == 3\njson.dumps",))
    assert plain_notebook.run(path) == 0
    assert "remark: 2 of 4 cells left out" in capsys.readouterr().out
