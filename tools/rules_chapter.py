"""Rules for the anatomy of a chapter: what stands at its top, its boxes, its exercises, its end."""

# nbformat carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from complaints import Complaint
from nbformat import NotebookNode
from reader import Directive, parse

from t2lib.exercises import exercises

TIME_LINE = re.compile(r"(?m)^\*\d+ minutes\b.*\*\s*$")
BANNER = re.compile(r"^\*difficulty [1-5] of 5 · \d+ minutes\*$")
CHECK = re.compile(r"""\bcheck\(\s*["']([\w.]+)["']""")
FEWEST_EXERCISES = 4
FEWEST_QUESTIONS = 3


class Event(NamedTuple):
    """Something that matters to the order within an exercise."""

    place: str
    kind: str
    name: str


def complaints(notebook: NotebookNode, path: Path) -> Iterator[Complaint]:
    """All complaints about the anatomy of the chapter."""
    boxes = list(directives(notebook))
    yield from opening(notebook)
    yield from needed_boxes([box for _, box in boxes])
    yield from self_check(boxes)
    yield from exercise_blocks(notebook, path)
    titles = [title for cell in texts(notebook) for _, _, title in parse(cell.source).headings]
    if not any(title.lower() == "references" for title in titles):
        yield Complaint("chapter", "anatomy", "no heading 'References'")


def texts(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def directives(notebook: NotebookNode) -> Iterator[tuple[str, Directive]]:
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "markdown":
            yield from ((f"cell {number}", directive) for directive in parse(cell.source).directives)


def opening(notebook: NotebookNode) -> Iterator[Complaint]:
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield Complaint("cell 1", "anatomy", "the first cell is Markdown and begins with the title")
        return
    if not TIME_LINE.search(first.source):
        yield Complaint("cell 1", "anatomy", "no time line of the form *45 minutes · needs: ...*")
    if "you will be able to" not in first.source:
        yield Complaint("cell 1", "anatomy", "no learning goals: '... you will be able to'")


def needed_boxes(boxes: list[Directive]) -> Iterator[Complaint]:
    for name in ("conventions", "predict", "doubt", "takeaway"):
        if not any(name in box.classes for box in boxes):
            yield Complaint("chapter", "anatomy", f"no box of class {name}")


def self_check(boxes: list[tuple[str, Directive]]) -> Iterator[Complaint]:
    questions = [(place, box) for place, box in boxes if "selfcheck" in box.classes]
    if len(questions) < FEWEST_QUESTIONS:
        sentence = f"{len(questions)} self-check questions; at least {FEWEST_QUESTIONS}"
        yield Complaint("chapter", "anatomy", sentence)
    for place, box in questions:
        if "dropdown" not in box.classes or not box.title.startswith("Self-check: "):
            sentence = f"a self-check is titled 'Self-check: question' and folded, got {box.title!r}"
            yield Complaint(place, "selfcheck", sentence)
        if not "".join(box.body).strip():
            yield Complaint(place, "selfcheck", f"no answer to {box.title!r}")


def events(notebook: NotebookNode) -> Iterator[Event]:
    """Exercises, checks, hints and solutions, in the order of the page."""
    for number, cell in enumerate(notebook.cells, start=1):
        place = f"cell {number}"
        if cell.cell_type == "code":
            yield from (Event(place, "check", name) for name in CHECK.findall(cell.source))
            continue
        for box in parse(cell.source).directives:
            if box.name == "exercise":
                yield Event(place, "exercise", box.options.get("label", ""))
            elif "hint" in box.classes or box.title.startswith("Hint"):
                folded = "" if "dropdown" in box.classes else " (not folded)"
                yield Event(place, "hint", box.title + folded)
            elif box.name == "solution":
                folded = "" if "dropdown" in box.classes else " (not folded)"
                yield Event(place, "solution", box.title + folded)


def exercise_blocks(notebook: NotebookNode, path: Path) -> Iterator[Complaint]:
    """Each exercise is followed by its check, three hints and its folded solution, in this order."""
    blocks: list[list[Event]] = []
    for event in events(notebook):
        if event.kind == "exercise":
            blocks.append([event])
        elif blocks:
            blocks[-1].append(event)
    if len(blocks) < FEWEST_EXERCISES:
        yield Complaint("chapter", "anatomy", f"{len(blocks)} exercises; at least {FEWEST_EXERCISES}")
    chapter = path.name.split("-")[0]
    known = registered(chapter)
    for exercise, *rest in blocks:
        place, label = exercise.place, exercise.name
        if not label.startswith("ex-"):
            yield Complaint(
                place, "exercise", f"an exercise needs a :label: of the form ex-name, got {label!r}"
            )
        checks = [event.name for event in rest if event.kind == "check"]
        due = [("check", name) for name in checks[:1]] or [("check", f"{chapter}.name")]
        due += [("hint", f"Hint {n}") for n in (1, 2, 3)] + [("solution", label)]
        got = [(event.kind, event.name) for event in rest]
        if got != due:
            wanted = "check, Hint 1, Hint 2, Hint 3, folded solution"
            found = ", ".join(name for _, name in got) or "nothing"
            yield Complaint(place, "exercise", f"{label} needs {wanted}, in this order; found: {found}")
        for name in checks:
            if name not in known:
                yield Complaint(place, "exercise", f"t2lib.exercises.{chapter} registers no {name!r}")
    for place, box in directives(notebook):
        lines = [line.strip() for line in box.body if line.strip()]
        if box.name == "exercise" and not (lines and BANNER.match(lines[0])):
            sentence = "the first line of an exercise is *difficulty 2 of 5 · 10 minutes*"
            yield Complaint(place, "exercise", f"{box.title!r}: {sentence}")


def registered(chapter: str) -> set[str]:
    try:
        return {exercise.id for exercise in exercises(chapter)}
    except ValueError:
        return set()
