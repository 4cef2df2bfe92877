"""What the book's pages take from its own files, so that no table is typed twice.

Directives: ``chapter-table`` (chapters with their minutes), ``exercise-table`` (every exercise, with a link),
``provenance`` (what made the stored outputs). Chapters also get classes for the stylesheet: the line with the
minutes and the list of goals. Where triton is absent its API page is made from the source alone.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

BOOK = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class ChapterExercise:
    label: str
    title: str
    difficulty: str
    minutes: str


@dataclass(frozen=True)
class Chapter:
    path: Path
    title: str
    minutes: int
    goal: str
    exercises: tuple[ChapterExercise, ...]


def read_chapters(folder: Path = BOOK) -> list[Chapter]:
    """The chapters of the book, in order, as their notebooks describe themselves."""
    return [_read_chapter(path) for path in sorted(folder.glob("ch[0-9][0-9]-*.ipynb"))]


def _read_chapter(path: Path) -> Chapter:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    minutes = re.search(r"^\*(\d+) minutes", text, re.MULTILINE)
    goal = re.search(r"^[-*] (.+?)(?=^\s*$|^[-*] |\Z)", text, re.MULTILINE | re.DOTALL)
    return Chapter(
        path=path,
        title=title[1].strip() if title else path.stem,
        minutes=int(minutes[1]) if minutes else 0,
        goal=" ".join(goal[1].split()).rstrip(";.,") if goal else "",
        exercises=tuple(_read_exercises(text)),
    )


def _read_exercises(text: str) -> Iterator[ChapterExercise]:
    for block in re.finditer(r"^:{3,}\{exercise\}(.*?)\n(.*?)^:{3,}\s*$", text, re.MULTILINE | re.DOTALL):
        label = re.search(r"^:label:\s*(\S+)", block[2], re.MULTILINE)
        banner = re.search(r"difficulty (\d) of 5 · (\d+) minutes", block[2])
        difficulty, minutes = banner.groups() if banner else ("–", "–")
        if label:
            yield ChapterExercise(label[1], block[1].strip(), difficulty, minutes)


class GeneratedTable(SphinxDirective):
    """A directive that writes Markdown, which is then parsed in place."""

    def lines(self) -> list[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        holder = nodes.container(classes=["generated"])
        for path in (*BOOK.glob("ch*.ipynb"), BOOK / "_provenance.json"):
            self.env.note_dependency(str(path))
        self.state.nested_parse(StringList(self.lines(), source=self.env.docname), 0, holder)
        return list(holder.children)


class ChapterTable(GeneratedTable):
    def lines(self) -> list[str]:
        chapters = read_chapters()
        rows = ["| | chapter | the first thing you will be able to do | minutes |", "|--:|:--|:--|--:|"]
        for number, chapter in enumerate(chapters, start=1):
            link = f"[{chapter.title}]({chapter.path.name})"
            rows.append(f"| {number} | {link} | {chapter.goal} | {chapter.minutes} |")
        total = sum(chapter.minutes for chapter in chapters)
        hours = f"about {round(total / 60)} hours of reading, exercises not counted"
        return [*rows, "", f"Together {total} minutes: {hours}."]


class ExerciseTable(GeneratedTable):
    def lines(self) -> list[str]:
        rows = ["| exercise | about | difficulty | min |", "|:--|:--|--:|--:|"]
        for chapter in read_chapters():
            rows.append(f"| | **[{chapter.title}]({chapter.path.name})** | | |")
            for e in chapter.exercises:
                rows.append(f"| {{ref}}`{e.label}` | {e.title} | {e.difficulty} | {e.minutes} |")
        return rows


class Provenance(GeneratedTable):
    def lines(self) -> list[str]:
        path = BOOK / "_provenance.json"
        if not path.exists():
            return ["No record of a run is stored with this build."]
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = ["| what made the outputs | which |", "|:--|:--|"]
        rows += [f"| {name} | {value} |" for name, value in record["machine"].items()]
        rows += ["", "| notebook | seconds | date |", "|:--|--:|:--|"]
        titles = {chapter.path.stem: chapter.title for chapter in read_chapters()}
        for name, run in record["notebooks"].items():
            link = f"[{titles[name]}]({name}.ipynb)" if name in titles else name
            rows.append(f"| {link} | {run['seconds']} | {run['date']} |")
        return rows


def mark_opening(app: Sphinx, doctree: nodes.document) -> None:
    """Name the parts of a chapter's opening for the stylesheet: the line of minutes and the goals."""
    if not re.search(r"ch\d\d-", app.env.docname):
        return
    section = next(iter(doctree.findall(nodes.section)), None)
    opening = list(section.children[1:5]) if section is not None else []
    for node in opening:
        if isinstance(node, nodes.paragraph) and re.match(r"\d+ minutes", node.astext()):
            node["classes"].append("time-line")
        elif isinstance(node, nodes.bullet_list):
            node["classes"].append("goals")
            break


def show_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring, written to be read in the source, into paragraphs, definitions and formulas.

    Text stays text; lines in two columns become definitions; anything else that is indented is shown as it
    stands. A line ``Book: eq-name`` becomes links to the equations.
    """
    text = "\n".join(lines).replace("``", "`")
    labels = [label for found in re.findall(r"^Book:(.+)$", text, re.MULTILINE) for label in found.split(",")]
    text = re.sub(r"^Book:.+\n?", "", text, flags=re.MULTILINE).strip("\n")
    lines[:] = [line for block in re.split(r"\n\s*\n", text) if block.strip() for line in _block(block)]
    known = [label.strip() for label in labels if label.strip() in _equation_labels()]
    if known:
        lines += ["In the book: equation " + ", ".join(f":eq:`{label}`" for label in known) + ".", ""]


def _block(block: str) -> list[str]:
    rows = block.split("\n")
    if rows[0].lstrip().startswith(">>>"):
        return [".. code-block:: pycon", "", *("   " + row.strip() for row in rows), ""]
    flush = not rows[0].startswith(" ")
    if flush and len(rows) > 1 and all(row.startswith("    ") for row in rows[1:]):
        columns = _columns(rows)
        return columns or [f"**{_plain(rows[0])}**", "", *_indented(rows[1:])]
    if flush:
        return _columns(rows) or [_plain(" ".join(rows)), ""]
    return _indented(rows)


def _indented(rows: list[str]) -> list[str]:
    inner = dedent("\n".join(rows)).split("\n")
    return _columns(inner) or [".. code-block:: text", "", *("   " + row for row in inner), ""]


def _columns(rows: list[str]) -> list[str]:
    """Rows such as ``name   what it means``, continuations indented, as a definition list; else nothing."""
    result: list[str] = []
    for row in rows:
        entry = re.match(r"([\w.*`/|-]+) {2,}(?=[^\s=])(.+)$", row)
        if entry:
            result += ["", f":code:`{entry[1].strip('`')}`", f"   {_plain(entry[2])}"]
        elif result and row.startswith("  "):
            result[-1] += " " + _plain(row.strip())
        else:
            return []
    return [*result, ""]


def _plain(text: str) -> str:
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    marked = (
        rf"\ :code:{part}\ " if part.startswith("`") else re.sub(r"([\\*_|`])", r"\\\1", part)
        for part in parts
    )
    return "".join(part for part in marked if part.strip("\\ ")).strip()


@cache
def _equation_labels() -> frozenset[str]:
    cells = [cell for path in BOOK.glob("ch*.ipynb") for cell in json.loads(path.read_text("utf-8"))["cells"]]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return frozenset(re.findall(r"^\$\$ \((eq-[a-z0-9-]+)\)", text, re.MULTILINE))


def without_triton(app: Sphinx, config: Any) -> None:
    """Let the kernels be documented on a machine that cannot import their compiler."""
    if importlib.util.find_spec("triton") is None:
        config.autodoc_mock_imports = [*config.autodoc_mock_imports, "triton"]


def setup(app: Sphinx) -> dict[str, Any]:
    # Jupyter Book sets this for an extension that the book does without.
    app.add_config_value("comments_config", {}, "html")
    app.add_directive("chapter-table", ChapterTable)
    app.add_directive("exercise-table", ExerciseTable)
    app.add_directive("provenance", Provenance)
    app.connect("config-inited", without_triton)
    app.connect("autodoc-process-docstring", show_docstring)
    app.connect("doctree-read", mark_opening)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
