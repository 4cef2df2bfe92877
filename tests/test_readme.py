"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_of_the_readme(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed
    # A comment behind a print that begins with True says what it prints.
    assert ("# True" in block) == printed.startswith("True")


def test_there_are_blocks():
    assert len(BLOCKS) == 2
