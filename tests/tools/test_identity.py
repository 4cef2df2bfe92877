"""What pyproject.toml says about the repository is found, renewed and missed in every copy."""

from __future__ import annotations

import subprocess
from importlib import metadata
from types import SimpleNamespace

import nbformat
import pytest
from identity import drifted, identity, setup_source

from t2lib import environment


@pytest.fixture
def project(tmp_path):
    """A small project whose copies all say what its pyproject.toml says."""
    (tmp_path / "t2lib").mkdir()
    (tmp_path / "book").mkdir()
    say_in_pyproject(tmp_path, "someone", "abook", "main", "0.1.0")
    (tmp_path / "_config.yml").write_text(
        "repository:\n  url: https://github.com/someone/abook\n  branch: main\n"
    )
    (tmp_path / "CITATION.cff").write_text(
        'cff-version: 1.2.0\nversion: 0.1.0\nrepository-code: "https://github.com/someone/abook"\n'
    )
    (tmp_path / "README.md").write_text(
        "[code](https://github.com/someone/abook/blob/main/README.md) [read](https://someone.github.io/abook)\n"
        "pip install https://github.com/someone/abook/releases/download/v0.1.0/t2lib-0.1.0-py3-none-any.whl\n"
    )
    (tmp_path / "t2lib" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "book" / "run.md").write_text(
        "[Colab](https://colab.research.google.com/github/someone/abook/blob/main/book/a.ipynb)"
        " and [another project](https://github.com/elsewhere/thing)\n"
    )
    cells = [nbformat.v4.new_markdown_cell("# Title", id="a"), nbformat.v4.new_code_cell(id="b")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "book" / "ch01-a.ipynb")
    drifted(tmp_path, write=True)
    return tmp_path


def say_in_pyproject(root, owner, name, branch, version):
    (root / "pyproject.toml").write_text(
        f'[project]\nname = "t2lib"\nversion = "{version}"\n'
        f'[project.urls]\nRepository = "https://github.com/{owner}/{name}"\n'
        f'[tool.t2book]\nbranch = "{branch}"\n'
    )


def test_a_project_in_step_has_nothing_to_report(project):
    assert drifted(project) == []


def test_a_change_in_one_place_is_missed_everywhere_else_and_then_renewed(project):
    say_in_pyproject(project, "other", "tome", "stable", "0.2.0")
    names = {place.split(":")[0] for place in drifted(project)}
    assert names == {
        "_config.yml",
        "CITATION.cff",
        "README.md",
        "t2lib/__init__.py",
        "book/run.md",
        "book/ch01-a.ipynb",
    }
    drifted(project, write=True)
    assert drifted(project) == []
    readme = (project / "README.md").read_text()
    assert "https://github.com/other/tome/blob/stable/README.md" in readme
    assert "https://other.github.io/tome" in readme
    assert "/other/tome/releases/download/v0.2.0/t2lib-0.2.0-py3-none-any.whl" in readme
    assert "github.com/elsewhere/thing" in (project / "book" / "run.md").read_text()


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        ("_config.yml", "branch: main", "branch: master"),
        ("CITATION.cff", "version: 0.1.0", "version: 0.0.9"),
        ("README.md", "v0.1.0", "v0.0.9"),
        ("t2lib/__init__.py", "0.1.0", "0.0.9"),
        ("book/run.md", "someone/abook", "someone/another"),
        ("book/ch01-a.ipynb", "describe_machine()", "describe_machine( )"),
    ],
)
def test_one_drifting_place_is_named(project, place, old, new):
    path = project / place
    text = path.read_text()
    assert old in text
    path.write_text(
        text.replace(old, new, 1) if place != "CITATION.cff" else text.replace("\n" + old, "\n" + new)
    )
    found = drifted(project)
    assert len(found) == 1
    assert found[0].startswith(place)


def test_a_missing_place_is_named(project):
    (project / "CITATION.cff").unlink()
    assert drifted(project) == ["CITATION.cff: missing"]


def test_the_setup_cell_installs_the_released_wheel_and_is_short(project):
    source = setup_source(identity(project))
    assert "https://github.com/someone/abook/releases/download/v0.1.0/" in source
    assert '"t2lib-0.1.0-py3-none-any.whl"' in source
    assert "--no-deps" in source
    assert len(source.splitlines()) <= 25
    compile(source, "setup", "exec")


def run_setup(monkeypatch, versions):
    """Runs the set-up cell where pip is replaced; ``versions`` are those of numpy before and after it."""
    commands = []
    found = iter([SimpleNamespace(name="numpy", version=version)] for version in versions)
    monkeypatch.setattr(metadata, "distributions", lambda: next(found))
    monkeypatch.setattr(
        subprocess, "run", lambda command: commands.append(command) or SimpleNamespace(returncode=0)
    )
    # Describing the machine imports torch, which asks for the real ones.
    monkeypatch.setattr(environment, "describe_machine", lambda: None)
    exec(setup_source(identity()), {})
    return commands


def test_outside_colab_the_setup_cell_installs_nothing(monkeypatch):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    assert run_setup(monkeypatch, []) == []


def test_on_colab_the_setup_cell_installs_t2lib_alone(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.delenv("T2LIB_WHEEL", raising=False)
    (command,) = run_setup(monkeypatch, ["2.0.2", "2.0.2"])
    which = identity()
    assert command[1:] == ["-m", "pip", "install", "--quiet", "--no-deps", which.release + which.wheel]


def test_a_changed_numpy_stops_the_setup_cell(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    with pytest.raises(RuntimeError, match="changed torch, numpy or triton: restart the runtime"):
        run_setup(monkeypatch, ["2.0.2", "2.4.6"])
