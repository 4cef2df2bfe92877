"""Each guard lets a good chapter pass and names the fault of a bad one."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import nbformat
import pytest
import rules_chapter
import rules_code
import rules_text
from identity import identity, put_setup_cell
from notebooks import fingerprint

TITLE = """\
# A small chapter

*25 minutes · needs: nothing*

After this chapter you will be able to

- pass every guard."""

BOXES = """\
:::{admonition} Symbols on this page
:class: conventions
$x_t$ the state.
:::

## One read

:::{admonition} Predict first
:class: predict
What do you expect?
:::

The weights are equal:

$$
z = \\tfrac12 x
$$ (eq-half)

What equation {eq}`eq-half` says in words: both count the same.

:::{admonition} Doubt it
:class: doubt
Are they?
:::"""

EXERCISE = """\
:::{{exercise}} Number {n}
:label: ex-number-{n}
*difficulty 2 of 5 · 10 minutes*

Write `answer_{n}()`.
:::"""

ANSWER = """\
:::{{admonition}} Hint 1
:class: dropdown hint
Look.
:::

:::{{admonition}} Hint 2
:class: dropdown hint
Look again.
:::

:::{{admonition}} Hint 3
:class: dropdown hint
Write it down.
:::

:::{{solution}} ex-number-{n}
:class: dropdown
It is {n}:

```python
def answer_{n}():
    return {n}
```
:::"""

END = """\
## Self-check

:::{admonition} Self-check: one?
:class: dropdown selfcheck
Yes.
:::

:::{admonition} Self-check: two?
:class: dropdown selfcheck
No.
:::

:::{admonition} Self-check: three?
:class: dropdown selfcheck
Sometimes.
:::

:::{admonition} Key takeaway
:class: takeaway
Count yourself.
:::

## References

- A paper."""

PNG = "iVBORw0KGgo="
FIGURE = {
    "figure": {"name": "fig-small", "caption": "What it means."},
    "image": {"alt": "A line that rises from left to right."},
}


@pytest.fixture
def chapter(monkeypatch):
    """A chapter that satisfies every rule."""
    known = [SimpleNamespace(id=f"ch03.answer_{n}") for n in (1, 2, 3, 4)]
    monkeypatch.setattr(rules_chapter, "exercises", lambda name: known)
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    drawn = code("show()", metadata={"mystnb": copy.deepcopy(FIGURE)})
    drawn.outputs = [
        nbformat.v4.new_output("display_data", data={"image/png": PNG, "text/plain": "<Figure>"})
    ]
    printed = code("print(1)", outputs=[nbformat.v4.new_output("stream", text="1\n")])
    cells = [markdown(TITLE), markdown(BOXES), printed, drawn]
    for n in (1, 2, 3, 4):
        stub = code(f'def answer_{n}():\n    ...\n\ncheck("ch03.answer_{n}", answer_{n})')
        stub.outputs = [nbformat.v4.new_output("stream", text="○ not attempted yet\n")]
        cells += [markdown(EXERCISE.format(n=n)), stub, markdown(ANSWER.format(n=n))]
    notebook = nbformat.v4.new_notebook(cells=[*cells, markdown(END)])
    put_setup_cell(notebook, identity())
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    notebook.metadata["t2book"] = {"fingerprint": fingerprint(notebook)}
    return notebook


def complaints(notebook, tmp_path):
    path = tmp_path / "ch03-small.ipynb"
    nbformat.write(notebook, path)
    found = list(rules_text.notebook_complaints(notebook))
    found += rules_code.source_complaints(notebook)
    found += rules_code.output_complaints(notebook, path)
    return found + list(rules_chapter.complaints(notebook, path))


def test_a_good_chapter_passes(chapter, tmp_path):
    assert complaints(chapter, tmp_path) == []


BOX_CELL, PRINT_CELL, FIGURE_CELL, EXERCISE_CELL, STUB_CELL, ANSWER_CELL = 2, 3, 4, 5, 6, 7


@pytest.mark.parametrize(
    ("cell", "old", "new", "rule"),
    [
        (0, "*25 minutes", "25 minutes", "anatomy"),
        (0, "you will be able to", "we look at", "anatomy"),
        (BOX_CELL, "conventions", "note", "anatomy"),
        (BOX_CELL, ":class: predict", ":class: note", "anatomy"),
        (BOX_CELL, ":class: doubt", ":class: note", "anatomy"),
        (BOX_CELL, "## One read", "#### One read", "heading"),
        (BOX_CELL, "## One read", "# One read", "heading"),
        (BOX_CELL, "## One read", "##", "heading"),
        (BOX_CELL, "equal:\n\n$$", "equal:\n$$", "structure"),
        (BOX_CELL, "$$ (eq-half)\n", "$$ (eq-half)", "structure"),
        (BOX_CELL, "$$\nz = \\tfrac12 x\n$$ (eq-half)", "$$ z = x $$ (eq-half)", "structure"),
        (BOX_CELL, "$$ (eq-half)", "$$ (half)", "label"),
        (BOX_CELL, "\\tfrac12", "\\norm", "macro"),
        (BOX_CELL, "$x_t$", "$\\bm x_t$", "macro"),
        (BOX_CELL, "\\tfrac12", "\\newcommand{\\h}{2}", "macro"),
        (BOX_CELL, "What equation {eq}`eq-half` says in words: both", "{eq}`eq-half` says that both", "role"),
        (
            BOX_CELL,
            "What equation {eq}`eq-half` says in words: both count",
            "See {eq}`eq-half`. Both count",
            "role",
        ),
        (BOX_CELL, "The weights", "In Figure 3.1 the weights", "reference"),
        (BOX_CELL, "The weights", "By (2.4) the weights", "reference"),
        (BOX_CELL, "The weights", "We delve: the weights", "filler"),
        (BOX_CELL, "The weights", "In this chapter we will see: the weights", "filler"),
        (BOX_CELL, "The weights", "It is important to note: the weights", "filler"),
        (BOX_CELL, "The weights", "![a line that rises and falls](a.png) The weights", "image"),
        (BOX_CELL, "The weights", "![](https://example.org/a.png) The weights", "alt"),
        (BOX_CELL, "The weights", '<img src="a.png"> The weights', "image"),
        (BOX_CELL, "The weights", "The files in /home/someone: the weights", "path"),
        (BOX_CELL, "The weights", "TO" + "DO: the weights", "unfinished"),
        (BOX_CELL, "The weights", "\U0001f600 The weights", "emoji"),
        (BOX_CELL, "\\tfrac12", "\tfrac12", "control"),
        (BOX_CELL, "$x_t$", "$x \bmod t$", "control"),
        (BOX_CELL, "Are they?\n:::", "Are they?", "structure"),
        (BOX_CELL, "Are they?\n:::", "Are they?\n::::", "structure"),
        (BOX_CELL, "Are they?", "```{note}\nAre they?\n```", "fence"),
        (BOX_CELL, "Are they?", ":::{note}\nAre they?\n:::", "structure"),
        (PRINT_CELL, "print(1)", "print(torch.cuda.is_bf16_supported())", "bf16"),
        (PRINT_CELL, "print(1)", "print(1)\n" * 31, "length"),
        (PRINT_CELL, "print(1)", "print(open('/home/someone/x'))", "path"),
        (EXERCISE_CELL, "*difficulty 2 of 5 · 10 minutes*", "", "exercise"),
        (EXERCISE_CELL, ":label: ex-number-1", ":label: number-1", "exercise"),
        (STUB_CELL, "ch03.answer_1", "ch03.answer_9", "exercise"),
        (STUB_CELL, 'check("ch03.answer_1", answer_1)', "pass", "exercise"),
        (ANSWER_CELL, "Hint 2", "Hint 3", "exercise"),
        (ANSWER_CELL, ":class: dropdown hint\nLook again", ":class: hint\nLook again", "exercise"),
        (ANSWER_CELL, ":class: dropdown\n", "", "exercise"),
        (ANSWER_CELL, "{solution} ex-number-1", "{solution} ex-number-2", "exercise"),
        (-1, ":class: takeaway", ":class: note", "anatomy"),
        (-1, "## References", "## Sources", "anatomy"),
        (-1, "dropdown selfcheck\nYes", "selfcheck\nYes", "selfcheck"),
        (-1, "Self-check: two?", "Two?", "selfcheck"),
        (-1, "\nSometimes.", "", "selfcheck"),
        (-1, "dropdown selfcheck\nYes", "dropdown\nYes", "anatomy"),
    ],
)
def test_a_fault_in_the_text_is_named(chapter, tmp_path, cell, old, new, rule):
    changed = chapter.cells[cell]
    assert old in changed.source
    changed.source = changed.source.replace(old, new, 1)
    assert rule in {complaint.rule for complaint in complaints(chapter, tmp_path)} - {"fingerprint"}


def stale(notebook):
    notebook.cells[PRINT_CELL].source = "print(2)"


def unrun(notebook):
    notebook.cells[PRINT_CELL].execution_count = None


def out_of_order(notebook):
    first, second = notebook.cells[PRINT_CELL], notebook.cells[FIGURE_CELL]
    first.execution_count, second.execution_count = second.execution_count, first.execution_count


def silent(notebook):
    notebook.cells[PRINT_CELL].outputs = []


def noisy(notebook):
    notebook.cells[PRINT_CELL].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="careful"))


def broken(notebook):
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    notebook.cells[PRINT_CELL].outputs.append(error)


def addressed(notebook):
    notebook.cells[PRINT_CELL].outputs[0].text = "<object at 0x7f0011223344>"


def without_alt(notebook):
    notebook.cells[FIGURE_CELL].metadata["mystnb"]["image"]["alt"] = "A line"


def without_caption(notebook):
    del notebook.cells[FIGURE_CELL].metadata["mystnb"]["figure"]


def huge(notebook):
    notebook.cells[PRINT_CELL].outputs[0].text = "1" * 1_500_001


def other_setup(notebook):
    notebook.cells[1].source += "\n"


def without_setup(notebook):
    del notebook.cells[1]


def few_exercises(notebook):
    del notebook.cells[EXERCISE_CELL : EXERCISE_CELL + 3]


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (stale, "fingerprint"),
        (unrun, "count"),
        (out_of_order, "count"),
        (silent, "output"),
        (noisy, "stderr"),
        (broken, "error"),
        (addressed, "path"),
        (without_alt, "alt"),
        (without_caption, "caption"),
        (huge, "size"),
        (other_setup, "setup"),
        (without_setup, "setup"),
        (few_exercises, "anatomy"),
    ],
)
def test_a_fault_in_code_or_outputs_is_named(chapter, tmp_path, damage, rule):
    damage(chapter)
    assert rule in {complaint.rule for complaint in complaints(chapter, tmp_path)}


def test_an_error_that_is_meant_passes(chapter, tmp_path):
    broken(chapter)
    chapter.cells[PRINT_CELL].metadata["tags"] = ["raises-exception"]
    assert complaints(chapter, tmp_path) == []


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("print(1)", True),
        ("for x in y:\n    print(x)", True),
        ('check("ch01.a", a)', True),
        ("plt.show()", True),
        ("def f():\n    print(1)", False),
        ("if cuda:\n    print(1)", False),
        ("x = 1", False),
    ],
)
def test_cells_that_surely_show_something(source, shows):
    assert rules_code.shows(source) is shows


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("# One\n\n# Two", "heading"),
        ("no title", "heading"),
        ("# One\n\n:::{figure} a.svg\n:name: x\n:::", "alt"),
        ("# One\n\n```{image} a.svg\n:width: 3\n```", "alt"),
        ('# One\n\n<img src="a.svg">', "alt"),
        ("# One\n\nSee Figure 3.1.", "reference"),
        ("# One\n\n:::{note}\nOpen", "structure"),
    ],
)
def test_pages_have_their_rules_too(text, rule):
    assert rule in {complaint.rule for complaint in rules_text.page_complaints(text)}


def test_a_good_page_passes():
    text = "# One\n\n:::{image} a.svg\n:alt: A grid of levels and tokens.\n:::\n\n```{glossary}\nterm\n```"
    assert list(rules_text.page_complaints(text)) == []
