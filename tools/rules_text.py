"""Rules for Markdown: it must read well in the built book and, raw, in Colab."""

# nbformat carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import re
from collections.abc import Iterator

from complaints import Complaint
from nbformat import NotebookNode
from reader import Markdown, parse, without_inline
from rules_code import MACHINE_PATH, SHORTEST_ALT

CODE_LANGUAGES = {"", "python", "text", "console", "bash"}
CUSTOM_MACRO = re.compile(
    r"\\(?:(?:re)?newcommand|DeclareMathOperator|def|let|require|bm|R|N|Z|E|norm|abs|argmax|argmin|softmax|diag|eps)"
    r"(?![A-Za-z])"
)
TYPED_REFERENCE = re.compile(r"(?i)\b(?:figure|fig\.|equation|eq\.|table|theorem|exercise)\s+\(?\d[\d.]*\)?")
TYPED_EQUATION = re.compile(r"\(\d+\.\d+\)")
FILLER_PHRASES = (
    r"delv(?:e|es|ing)",
    r"in this (?:chapter|section) we will",
    r"it is (?:important|worth)(?: to)? not(?:e|ing)",
    r"let['’]s dive",
    r"in conclusion",
    r"leverag(?:e|es|ing)",
    r"seamless(?:ly)?",
    r"needless to say",
    r"as we can see",
)
FILLER = re.compile(rf"(?i)\b(?:{'|'.join(FILLER_PHRASES)})\b")
# Spelled apart, so that this file does not carry the words it refuses.
UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "T" + "BD")) + r")\b")
EMOJI = re.compile("[\U0001f000-\U0001faff\u2600-\u26ff\ufe0f]")
# What is left of \bmod, \frac, \text ... when a program took the backslash for an escape.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
EQUATION_ROLE = re.compile(r"\{eq\}`[^`]+`")
ROLE = re.compile(r"\{[a-z:]+\}`[^`]*`")
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)[^)]*\)")
HTML_IMAGE = re.compile(r"<img\b[^>]*>")
LABEL_FORM = re.compile(r"^eq-[a-z0-9-]+$")
FEWEST_WORDS = 4


def notebook_complaints(notebook: NotebookNode) -> Iterator[Complaint]:
    """Rules for the Markdown cells of a notebook."""
    headings: list[tuple[str, int, str]] = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "markdown":
            continue
        found = parse(cell.source)
        headings += [(f"cell {number}, line {line}", level, title) for line, level, title in found.headings]
        for complaint in [*common(found, cell.source), *colab_safe(found, cell.source)]:
            yield complaint._replace(place=f"cell {number}, {complaint.place}")
    yield from heading_levels(headings)


def page_complaints(text: str) -> Iterator[Complaint]:
    """Rules for a Markdown page, which is only ever read in the built book."""
    found = parse(text)
    yield from common(found, text)
    yield from heading_levels([(f"line {line}", level, title) for line, level, title in found.headings])
    # Pages may use backtick directives, whose inside the reader above takes for code.
    for block in re.finditer(r"(?ms)^\s*([:`]{3,})\{(?:image|figure)\}.*?^\s*\1\s*$", text):
        alt = re.search(r"(?m)^\s*:alt:\s*(.*)$", block[0])
        if alt is None or len(alt[1]) < SHORTEST_ALT:
            place = f"line {text.count(chr(10), 0, block.start()) + 1}"
            yield Complaint(place, "alt", f"an image needs :alt: of at least {SHORTEST_ALT} characters")
    for tag in HTML_IMAGE.findall(text):
        if not re.search(r"\balt=\"[^\"]{3,}", tag) and 'alt=""' not in tag:
            yield Complaint("page", "alt", f"an image without alt: {tag}")


def common(found: Markdown, text: str) -> Iterator[Complaint]:
    for line, sentence in found.faults:
        yield Complaint(f"line {line}", "structure", sentence)
    for line, label, _ in found.equations:
        if not LABEL_FORM.match(label):
            yield Complaint(f"line {line}", "label", f"equation labels have the form eq-name, got {label!r}")
    for line, formula in [*found.maths, *_inline_maths(found)]:
        if macro := CUSTOM_MACRO.search(formula):
            yield Complaint(f"line {line}", "macro", f"{macro[0]} is not known to a plain MathJax")
    for line, paragraph in found.paragraphs():
        place, plain = f"line {line}", without_inline(ROLE.sub(" ", paragraph))
        if typed := TYPED_REFERENCE.search(plain) or TYPED_EQUATION.search(plain):
            yield Complaint(place, "reference", f"{typed[0]!r} is typed by hand: refer by label")
        if filler := FILLER.search(plain):
            yield Complaint(place, "filler", f"{filler[0]!r} says nothing")
        for image in IMAGE.finditer(paragraph):
            if len(image["alt"]) < SHORTEST_ALT:
                yield Complaint(place, "alt", f"an image needs alt text of {SHORTEST_ALT} characters")
    for rule, pattern, sentence in (
        ("unfinished", UNFINISHED, "a marker of unfinished work"),
        ("emoji", EMOJI, "emoji do not survive in print"),
        ("path", MACHINE_PATH, "a path of one machine"),
        ("control", CONTROL, "a control character, perhaps a lost backslash"),
    ):
        if match := pattern.search(text):
            yield Complaint(
                f"line {text.count(chr(10), 0, match.start()) + 1}", rule, f"{sentence}: {match[0]}"
            )


def _shown(text: str, match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else repr(text[max(match.start() - 8, 0) : match.end() + 8])


def colab_safe(found: Markdown, text: str) -> Iterator[Complaint]:
    """What would come out broken in Colab, which knows neither directives nor the book's folder."""
    for line, info in found.code:
        if info not in CODE_LANGUAGES:
            known = ", ".join(sorted(CODE_LANGUAGES - {""}))
            sentence = f"a backtick fence holds code only ({known}), got {info!r}: use a colon fence"
            yield Complaint(f"line {line}", "fence", sentence)
    for directive in found.directives:
        if directive.name in {"image", "figure"}:
            yield Complaint(
                f"line {directive.line}", "image", "draw figures in code: Colab has no image files"
            )
    for line, paragraph in found.paragraphs():
        for image in IMAGE.finditer(paragraph):
            if not image["target"].startswith("https://"):
                yield Complaint(
                    f"line {line}", "image", f"a relative image breaks in Colab: {image['target']}"
                )
        for sentence in re.split(r"(?<=[.!?;])\s+", paragraph):
            yield from _equation_role(f"line {line}", sentence)
    if tag := HTML_IMAGE.search(text):
        yield Complaint("line 1", "image", f"raw HTML image: {tag[0]}")


def _equation_role(place: str, sentence: str) -> Iterator[Complaint]:
    if not EQUATION_ROLE.search(sentence):
        return
    words = re.findall(r"[A-Za-z]{2,}", without_inline(ROLE.sub(" ", sentence)))
    if EQUATION_ROLE.match(sentence) or len(words) < FEWEST_WORDS:
        yield Complaint(place, "role", f"must still read when the role shows raw: {sentence!r}")


def _inline_maths(found: Markdown) -> Iterator[tuple[int, str]]:
    for line, text in found.prose:
        yield from ((line, formula) for formula in re.findall(r"\$([^$]+)\$", re.sub(r"`[^`]*`", "", text)))


def heading_levels(headings: list[tuple[str, int, str]]) -> Iterator[Complaint]:
    firsts = [place for place, level, _ in headings if level == 1]
    if len(firsts) != 1 or headings[0][1] != 1:
        yield Complaint("headings", "heading", f"one title (#), at the top; found {len(firsts)}")
    previous = 1
    for place, level, title in headings:
        if not title:
            yield Complaint(place, "heading", "an empty heading")
        if level > previous + 1:
            yield Complaint(place, "heading", f"{title!r} jumps from level {previous} to {level}")
        previous = level
