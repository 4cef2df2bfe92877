"""A chapter as Colab would run it: alone in an empty folder, t2lib installed from the wheel by cell one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from built_book import ROOT
from notebooks import chapters, read

KEPT = ("torch", "numpy", "triton")

# Runs inside the fresh environment: the chapter, then one cell that asks where everything came from.
RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
notebook.cells.append(nbformat.v4.new_code_cell(sys.argv[2]))
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
# One print may arrive as several stream outputs.
print("".join(output.text for output in notebook.cells[-1].outputs))
"""
ASK = f"""
import json, t2lib
from importlib import metadata
print(json.dumps([t2lib.__file__, {{name: metadata.version(name) for name in {KEPT}}}]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources, so that no earlier build leaks into it."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "t2lib", sources / "t2lib", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text"):
        shutil.copy(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(sources)], check=True, timeout=300)
    return next(folder.glob("t2lib-*.whl"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with everything this one has, except t2lib; the path of its Python."""
    folder = tmp_path_factory.mktemp("colab")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    outer = folder / "preinstalled"
    outer.mkdir()
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(site).iterdir():
            # What starts other packages' import hooks would bring the editable t2lib back.
            if not entry.name.lower().startswith(("t2lib", "__editable__")) and entry.suffix != ".pth":
                (outer / entry.name).symlink_to(entry)
    inner = next((folder / "env" / "lib").glob("python*/site-packages"))
    (inner / "preinstalled.pth").write_text(f"{outer}\n")
    return python


def environment(**added: str) -> dict[str, str]:
    unwanted = ("PYTHONPATH", "PYTHONHOME", "MPLBACKEND", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", **added}


def test_the_wheel_holds_the_whole_library(wheel):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("t2lib/")}
    tree = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "t2lib").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == tree


def test_a_chapter_runs_alone_with_the_wheel_and_nothing_else_changes(wheel, machine, tmp_path):
    chapter = next(path for path in chapters() if path.name.startswith("ch05"))
    shutil.copy(chapter, tmp_path)
    script = machine.parent / "run_chapter.py"
    script.write_text(RUN)

    # Before the first cell, the fresh environment has no t2lib.
    before = subprocess.run(
        [machine, "-c", "import t2lib"], cwd=tmp_path, env=environment(), capture_output=True
    )
    assert before.returncode != 0

    ran = subprocess.run(
        [machine, script, chapter.name, ASK],
        cwd=tmp_path,
        env=environment(COLAB_RELEASE_TAG="release-colab", T2LIB_WHEEL=str(wheel)),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    origin, versions = json.loads(ran.stdout.strip().splitlines()[-1])
    environment_folder = machine.parent.parent
    assert Path(origin).is_relative_to(environment_folder)
    assert versions == {name: metadata.version(name) for name in KEPT}
    site = next((environment_folder / "lib").glob("python*/site-packages"))
    added = {path.name for path in site.iterdir()} - {"preinstalled.pth", "__pycache__"}
    assert {name.split("-")[0] for name in added} == {"t2lib"}
    # The copy is all the chapter needs: it left nothing beside itself.
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [chapter.name]


def test_the_setup_cell_stops_with_one_sentence_when_the_wheel_cannot_be_had(machine, tmp_path):
    source = next(cell.source for cell in read(chapters()[0]).cells if cell.cell_type == "code")
    ran = subprocess.run(
        [machine, "-c", source],
        cwd=tmp_path,
        env=environment(
            COLAB_RELEASE_TAG="release-colab", T2LIB_WHEEL=str(tmp_path / "t2lib-0-py3-none-any.whl")
        ),
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    assert "RuntimeError: t2lib could not be installed from" in ran.stderr
