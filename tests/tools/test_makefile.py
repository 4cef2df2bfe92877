"""Where the virtual environment goes: beside the code, or where the folder has spaces, out of their way."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def planned(folder: Path, cache: Path) -> str:
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    # The tests themselves may run inside a make, whose variables this one must not inherit.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    environment |= {"PWD": str(folder), "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        ["make", "-n", "book"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("name", ["plain", "with two spaces"])
def test_no_path_of_the_environment_has_a_space(tmp_path, name):
    run = planned(tmp_path / name, tmp_path / "cache").splitlines()[-1]
    python = run.removesuffix(" tools/build_book.py")
    assert " " not in python
    assert python.startswith(".venv/" if name == "plain" else str(tmp_path / "cache/t2book/"))
