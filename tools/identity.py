"""One place for the repository's name, branch and version: ``pyproject.toml``. This tool renews the copies.

    python tools/identity.py --check    fails and names every place that drifted
    python tools/identity.py --write    renews all of them

The places: the book's configuration, the citation file, the links of the README and of the pages, the
library's ``__version__`` and the set-up cell of every notebook.
"""

# nbformat carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode
from notebooks import ROOT, chapters, pages, read, tags


class Identity(NamedTuple):
    owner: str
    name: str
    branch: str
    version: str

    @property
    def repository(self) -> str:
        return f"https://github.com/{self.owner}/{self.name}"

    @property
    def release(self) -> str:
        """Address of the folder that holds the files of this version's release."""
        return f"{self.repository}/releases/download/v{self.version}/"

    @property
    def wheel(self) -> str:
        return f"t2lib-{self.version}-py3-none-any.whl"


def identity(root: Path = ROOT) -> Identity:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    owner, name = settings["project"]["urls"]["Repository"].rstrip("/").split("/")[-2:]
    return Identity(owner, name, settings["tool"]["t2book"]["branch"], settings["project"]["version"])


SETUP_CELL = """\
# The same first cell in every chapter. Outside Colab it installs nothing.
import importlib
import os
import subprocess
import sys
from importlib import metadata

if "COLAB_RELEASE_TAG" in os.environ:
    def versions():
        return {d.name: d.version for d in metadata.distributions() if d.name in ("torch", "numpy", "triton")}

    before = versions()
    release = "{release}"
    wheel = os.environ.get("T2LIB_WHEEL", release + "{file}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", wheel]
    if subprocess.run(command).returncode:
        raise RuntimeError(f"t2lib could not be installed from {wheel}: see the lines above.")
    if versions() != before:
        raise RuntimeError("The installation changed torch, numpy or triton: restart the runtime.")
    importlib.invalidate_caches()

from t2lib.environment import describe_machine

machine = describe_machine()"""


def setup_source(which: Identity) -> str:
    """The source of the set-up cell, the same bytes in every notebook."""
    return SETUP_CELL.replace("{release}", which.release).replace("{file}", which.wheel)


def put_setup_cell(notebook: NotebookNode, which: Identity) -> None:
    """Make the set-up cell the first code cell of the notebook, with the source and tags it must have."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code or "setup" not in tags(code[0]):
        code = [nbformat.v4.new_code_cell()]
        # After the title, before everything else.
        notebook.cells.insert(1, code[0])
    cell = code[0]
    cell.source = setup_source(which)
    cell.metadata["tags"] = ["setup", "hide-input", "nbval-ignore-output"]


def renew_config(text: str, which: Identity) -> str:
    text = re.sub(r"(?m)^(\s+url:\s*)https://github\.com/\S+", rf"\g<1>{which.repository}", text)
    return re.sub(r"(?m)^(\s+branch:\s*)\S+", rf"\g<1>{which.branch}", text)


def renew_citation(text: str, which: Identity) -> str:
    text = re.sub(r"(?m)^(repository-code:\s*).*$", rf'\g<1>"{which.repository}"', text)
    return re.sub(r"(?m)^(version:\s*).*$", rf"\g<1>{which.version}", text)


def renew_version(text: str, which: Identity) -> str:
    return re.sub(r'(?m)^__version__ = ".*"$', f'__version__ = "{which.version}"', text)


def renew_launch_links(text: str, which: Identity) -> str:
    """Colab links and wheel addresses, which are always this project's own."""
    colab = r"(colab\.research\.google\.com/github/)[\w.-]+/[\w.-]+/blob/[\w.-]+"
    text = re.sub(colab, rf"\g<1>{which.owner}/{which.name}/blob/{which.branch}", text)
    return re.sub(
        r"https://github\.com/\S+?/t2lib-[\w.]+-py3-none-any\.whl", which.release + which.wheel, text
    )


def renew_readme(text: str, which: Identity) -> str:
    """In the README every GitHub link is this project's own."""
    text = re.sub(r"(//github\.com/)[\w.-]+/[\w.-]*\w", rf"\g<1>{which.owner}/{which.name}", text)
    text = re.sub(r"(/(?:blob|tree|edit)/)[\w.-]+(?=/)", rf"\g<1>{which.branch}", text)
    text = re.sub(r"[\w-]+\.github\.io/[\w.-]*\w", f"{which.owner}.github.io/{which.name}", text)
    return renew_launch_links(text, which)


def text_places(root: Path) -> dict[Path, Callable[[str, Identity], str]]:
    places: dict[Path, Callable[[str, Identity], str]] = {
        root / "_config.yml": renew_config,
        root / "CITATION.cff": renew_citation,
        root / "README.md": renew_readme,
        root / "t2lib" / "__init__.py": renew_version,
    }
    return places | dict.fromkeys(pages(root / "book"), renew_launch_links)


def drifted(root: Path = ROOT, *, write: bool = False) -> list[str]:
    """The places that do not say what ``pyproject.toml`` says; with ``write`` they are renewed."""
    which = identity(root)
    found = []
    for path, renew in text_places(root).items():
        if not path.is_file():
            found.append(f"{path.relative_to(root)}: missing")
            continue
        text = path.read_text()
        if (renewed := renew(text, which)) != text:
            lines = zip(text.splitlines(), renewed.splitlines(), strict=False)
            line = next((old.strip() for old, new in lines if old != new), "")
            found.append(f"{path.relative_to(root)}: {line}")
            if write:
                path.write_text(renewed)
    for path in chapters(root / "book"):
        notebook = read(path)
        before = nbformat.writes(notebook)
        put_setup_cell(notebook, which)
        if nbformat.writes(notebook) != before:
            found.append(f"{path.relative_to(root)}: set-up cell")
            if write:
                nbformat.write(notebook, path)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Keep the repository's name, branch and version in step.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail if a place drifted")
    action.add_argument("--write", action="store_true", help="renew all places")
    options = parser.parse_args()
    found = drifted(write=options.write)
    for place in found:
        print(("renewed " if options.write else "drifted ") + place)
    return int(bool(found) and options.check)


if __name__ == "__main__":
    sys.exit(main())
