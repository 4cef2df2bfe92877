"""What every page of the book must satisfy, with the cell that does not.

    python tools/check.py                       all notebooks, all pages, the book as a whole
    python tools/check.py book/ch03-*.ipynb     these
    python tools/check.py --text-only FILES     leaves out outputs and fingerprint, while a chapter is drafted

Every rule is a function that yields complaints. They stand in three modules: ``rules_code`` (cells and
stored outputs), ``rules_text`` (Markdown that reads the same in the book and in Colab) and
``rules_chapter`` (the anatomy of a chapter and its exercises).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import rules_chapter
import rules_code
import rules_text
from complaints import Complaint
from notebooks import BOOK, chapters, pages, read
from reader import parse


def check_notebook(path: Path, *, text_only: bool = False, anatomy: bool = True) -> list[Complaint]:
    """All complaints about one notebook."""
    notebook = read(path)
    found = list(rules_text.notebook_complaints(notebook))
    found += rules_code.source_complaints(notebook)
    if anatomy:
        found += rules_chapter.complaints(notebook, path)
    if not text_only:
        found += rules_code.output_complaints(notebook, path)
    return found


def check_page(path: Path) -> list[Complaint]:
    """All complaints about one Markdown page."""
    return list(rules_text.page_complaints(path.read_text()))


def labels(path: Path) -> Iterator[str]:
    """Every label that a page or notebook defines."""
    if path.suffix == ".ipynb":
        cells = read(path).cells
        texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
        figures = (cell.metadata.get("mystnb", {}).get("figure", {}).get("name") for cell in cells)
        yield from (name for name in figures if name)
    else:
        texts = [path.read_text()]
    for text in texts:
        found = parse(text)
        yield from (label for _, label, _ in found.equations)
        names = (d.options.get("label") or d.options.get("name") for d in found.directives)
        yield from (name for name in names if name)
        yield from (match[1] for _, line in found.prose if (match := re.match(r"^\(([\w-]+)\)=$", line)))


def check_book(book: Path = BOOK) -> list[Complaint]:
    """Complaints about the book as a whole: labels must be unique over all its pages."""
    counted = Counter(label for path in [*chapters(book), *pages(book)] for label in labels(path))
    return [
        Complaint("book", "label", f"the label {label!r} stands in {count} places")
        for label, count in counted.items()
        if count > 1
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check what every page of the book must satisfy.")
    parser.add_argument("files", nargs="*", type=Path, help="notebooks and pages; default: the whole book")
    parser.add_argument("--text-only", action="store_true", help="leave out outputs and fingerprint")
    options = parser.parse_args()
    count = 0
    for path in options.files or [*chapters(), *pages()]:
        is_notebook = path.suffix == ".ipynb"
        for complaint in (
            check_notebook(path, text_only=options.text_only) if is_notebook else check_page(path)
        ):
            count += 1
            print(f"{path.name}: {complaint}")
    if not options.files:
        for complaint in check_book():
            count += 1
            print(complaint)
    print(f"{count} complaints" if count else "Nothing to complain about.")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
