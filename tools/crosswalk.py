"""Join each labelled equation of the book with the function that computes it and the test that proves it.

    python tools/crosswalk.py           writes book/crosswalk.md
    python tools/crosswalk.py --check   fails on a gap, or when the page is stale

The three sides: ``$$ ... $$ (eq-name)`` in the book, a line ``Book: eq-name`` in the docstring of a public
function or class of ``t2lib``, and ``@pytest.mark.equation("eq-name")`` on a test.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from identity import Identity, identity
from notebooks import ROOT, chapters, pages, read
from reader import parse

PAGE = Path("book") / "crosswalk.md"
BOOK_LINE = re.compile(r"(?m)^\s*Book:\s*(?P<labels>eq-[a-z0-9-]+(?:\s*,\s*eq-[a-z0-9-]+)*)\.?\s*$")

INTRODUCTION = """\
# From equation to code to test

Every numbered key equation of the book has a function that computes it and a test that proves it. This page
is made from the three: labels in the chapters, docstrings of the library, marks on the tests. The build
fails when one of them is missing.
"""


class Equation(NamedTuple):
    label: str
    formula: str
    page: Path
    title: str


class Place(NamedTuple):
    """A function or a test: its dotted name and the file it stands in."""

    name: str
    path: Path


class Crosswalk(NamedTuple):
    equations: list[Equation]
    functions: dict[str, list[Place]]
    tests: dict[str, list[Place]]


def equations(root: Path) -> Iterator[Equation]:
    """The labelled equations in the order of the book."""
    for path in [*chapters(root / "book"), *pages(root / "book")]:
        if path == root / PAGE:
            continue
        if path.suffix == ".ipynb":
            texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
        else:
            texts = [path.read_text()]
        parsed = [parse(text) for text in texts]
        title = next((title for page in parsed for _, level, title in page.headings if level == 1), path.stem)
        for page in parsed:
            yield from (Equation(label, formula, path, title) for _, label, formula in page.equations)


def definitions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Functions, classes and their methods, by dotted name; nothing is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}" if prefix else node.name
            yield name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, name)


def functions(root: Path) -> dict[str, list[Place]]:
    """Label -> public functions of the library whose docstring has it on a ``Book:`` line."""
    found: dict[str, list[Place]] = {}
    for path in sorted((root / "t2lib").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for name, node in definitions(ast.parse(path.read_text()), module):
            if any(part.startswith("_") for part in name.split(".")):
                continue
            for match in BOOK_LINE.finditer(ast.get_docstring(node) or ""):
                for label in re.split(r"\s*,\s*", match["labels"]):
                    found.setdefault(label, []).append(Place(name, path))
    return found


def tests(root: Path) -> dict[str, list[Place]]:
    """Label -> tests marked with it."""
    found: dict[str, list[Place]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for name, node in definitions(ast.parse(path.read_text()), ""):
            for label in marked(node):
                found.setdefault(label, []).append(Place(name, path))
    return found


def marked(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.equation":
            yield from (str(a.value) for a in decorator.args if isinstance(a, ast.Constant))


def collect(root: Path = ROOT) -> Crosswalk:
    return Crosswalk(list(equations(root)), functions(root), tests(root))


def gaps(found: Crosswalk) -> list[str]:
    """One sentence for each label that one of the three sides lacks."""
    labels = {equation.label for equation in found.equations}
    missing = []
    for equation in found.equations:
        where = f"{equation.label} ({equation.page.name})"
        if equation.label not in found.functions:
            missing.append(f"{where}: no public function of t2lib has it on a 'Book:' line")
        if equation.label not in found.tests:
            missing.append(f"{where}: no test is marked with it")
    for side, places in (("docstring", found.functions), ("test", found.tests)):
        for label in sorted(set(places) - labels):
            names = ", ".join(place.name for place in places[label])
            missing.append(
                f"{label}: a {side} names it ({names}), but no equation of the book has this label"
            )
    return missing


def source_link(place: Place, root: Path, which: Identity, text: str) -> str:
    address = f"{which.repository}/blob/{which.branch}/{place.path.relative_to(root).as_posix()}"
    return f"[`{text}`]({address})"


def row(equation: Equation, found: Crosswalk, root: Path, which: Identity) -> list[str]:
    formula = [f"    {line}".rstrip() for line in equation.formula.split("\n")]
    functions = [source_link(p, root, which, p.name) for p in found.functions.get(equation.label, [])]
    tests = [source_link(p, root, which, p.name) for p in found.tests.get(equation.label, [])]
    return [
        f"* - Equation {{eq}}`{equation.label}`",
        "",
        "    $$",
        *formula,
        "    $$",
        "",
        "  - " + ", ".join(functions or ["none"]),
        "  - " + ", ".join(tests or ["none"]),
    ]


def page(found: Crosswalk, root: Path = ROOT) -> str:
    """The page, as Markdown."""
    which = identity(root)
    lines = [INTRODUCTION]
    previous = None
    for equation in found.equations:
        if equation.page != previous:
            if previous is not None:
                lines += [":::", ""]
            link = equation.page.relative_to(root / "book").as_posix()
            lines += [f"## [{equation.title}]({link})", "", ":::{list-table}", ":header-rows: 1"]
            lines += [":widths: 50 25 25", ":class: crosswalk", ""]
            lines += ["* - equation", "  - computed by", "  - proved by"]
            previous = equation.page
        lines += row(equation, found, root, which)
    if previous is not None:
        lines += [":::"]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Join equations, functions and tests into one page.")
    parser.add_argument("--check", action="store_true", help="fail on a gap or a stale page, write nothing")
    options = parser.parse_args()
    found = collect()
    missing = gaps(found)
    for sentence in missing:
        print(sentence)
    text, path = page(found), ROOT / PAGE
    if options.check:
        stale = not path.is_file() or path.read_text() != text
        if stale:
            print(f"{PAGE} is stale: run python tools/crosswalk.py")
        return int(bool(missing) or stale)
    path.write_text(text)
    print(f"{PAGE}: {len(found.equations)} equations, {len(missing)} gaps")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
