"""A small reader of the Markdown the book uses: fences, display maths, headings and plain prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

COLON_FENCE = re.compile(r"^\s*(:{3,})\s*(?:\{(?P<name>[^}]+)\}\s*(?P<title>.*?))?\s*$")
CODE_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*(?P<info>.*?)\s*$")
OPTION = re.compile(r"^\s*:(?P<key>[\w-]+):\s*(?P<value>.*?)\s*$")
MATHS_END = re.compile(r"^\s*\$\$(?: \((?P<label>[A-Za-z0-9-]+)\))?$")
HEADING = re.compile(r"^(?P<marks>#{1,6})(?:\s+(?P<title>.*?))?\s*$")


@dataclass
class Directive:
    """One colon fence: its name, its argument, its options and the lines inside."""

    name: str
    title: str
    line: int
    options: dict[str, str] = field(default_factory=dict)
    body: list[str] = field(default_factory=list)

    @property
    def classes(self) -> set[str]:
        return set(self.options.get("class", "").split())


@dataclass
class Markdown:
    """What one piece of Markdown holds; ``faults`` are breaks of its structure, by line."""

    directives: list[Directive] = field(default_factory=list)
    headings: list[tuple[int, int, str]] = field(default_factory=list)
    code: list[tuple[int, str]] = field(default_factory=list)
    maths: list[tuple[int, str]] = field(default_factory=list)
    equations: list[tuple[int, str, str]] = field(default_factory=list)
    prose: list[tuple[int, str]] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)

    def paragraphs(self) -> Iterator[tuple[int, str]]:
        """Prose, joined over its line breaks: (first line, text)."""
        start, words, last = 0, "", 0
        for number, line in [*self.prose, (0, "")]:
            if words and (number != last + 1 or not line.strip()):
                yield start, words
                words = ""
            if line.strip():
                start, words = (start, f"{words} {line.strip()}") if words else (number, line.strip())
            last = number


def without_inline(text: str) -> str:
    """The text without inline code, inline maths and roles' targets."""
    text = re.sub(r"`[^`]*`", " ", text)
    return re.sub(r"\$[^$]+\$", " ", text)


def parse(text: str) -> Markdown:
    """Read Markdown line by line. Colon fences nest; what stands in a code fence is kept apart as code."""
    found = Markdown()
    stack: list[tuple[int, Directive]] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if stack and not stack[-1][1].body and (option := OPTION.match(line)):
            stack[-1][1].options[option["key"]] = option["value"]
            continue
        for _, around in stack:
            around.body.append(line)
        if fence := CODE_FENCE.match(line):
            number = _code(found, lines, number, fence)
        elif line.strip().startswith("$$"):
            number = _maths(found, lines, number)
        elif fence := COLON_FENCE.match(line):
            _colon(found, stack, number, fence)
        elif heading := HEADING.match(line):
            found.headings.append((number, len(heading["marks"]), heading["title"] or ""))
        else:
            found.prose.append((number, line))
    for _, left in stack:
        found.faults.append((left.line, f"the box {{{left.name}}} is never closed"))
    return found


def _code(found: Markdown, lines: list[str], number: int, fence: re.Match[str]) -> int:
    found.code.append((number, fence["info"]))
    closing = re.compile(rf"^\s*{re.escape(fence[1])}+\s*$")
    for end in range(number, len(lines)):
        if closing.match(lines[end]):
            return end + 1
    found.faults.append((number, "the code fence is never closed"))
    return len(lines)


def _maths(found: Markdown, lines: list[str], number: int) -> int:
    opening = lines[number - 1]
    if opening.strip() != "$$":
        found.faults.append((number, "display maths: `$$` stands on a line of its own"))
        return number
    before = lines[number - 2].strip() if number > 1 else ""
    if before:
        found.faults.append((number, "display maths needs a blank line before `$$`"))
    for end in range(number, len(lines)):
        if not (closing := MATHS_END.match(lines[end])):
            if "$$" in lines[end]:
                break
            continue
        formula = "\n".join(lines[number:end])
        found.maths.append((number, formula))
        if closing["label"]:
            found.equations.append((number, closing["label"], formula))
        after = lines[end + 1].strip() if end + 1 < len(lines) else ""
        if after and not after.startswith(":::"):
            found.faults.append((end + 1, "display maths needs a blank line after it"))
        return end + 1
    found.faults.append((number, "display maths is never closed by a line `$$` or `$$ (eq-label)`"))
    return len(lines)


def _colon(found: Markdown, stack: list[tuple[int, Directive]], number: int, fence: re.Match[str]) -> None:
    width = len(fence[1])
    if fence["name"]:
        if stack and width >= stack[-1][0]:
            outer = stack[-1][1].name
            found.faults.append(
                (number, f"{{{fence['name']}}} inside {{{outer}}} needs fewer colons than it")
            )
        directive = Directive(fence["name"], fence["title"] or "", number)
        found.directives.append(directive)
        stack.append((width, directive))
    elif not stack:
        found.faults.append((number, "a closing fence without an open box"))
    else:
        opened, directive = stack.pop()
        directive.body.pop()
        if opened != width:
            found.faults.append(
                (number, f"{{{directive.name}}} opens with {opened} colons, closes with {width}")
            )
