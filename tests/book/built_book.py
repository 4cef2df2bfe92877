"""Where the built book lies and what its table of contents lists."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"


def toc_files() -> list[str]:
    """Every source file of the table of contents, without suffix, in order."""

    def below(node: object) -> list[str]:
        if isinstance(node, list):
            return [name for item in node for name in below(item)]
        if isinstance(node, dict):
            own = [node[key] for key in ("root", "file") if key in node]
            return own + [name for key in ("parts", "chapters", "sections") for name in below(node.get(key))]
        return []

    return below(yaml.safe_load((ROOT / "_toc.yml").read_text()))


def source(name: str) -> Path:
    """The file behind an entry of the table of contents."""
    return next(ROOT / (name + suffix) for suffix in (".ipynb", ".md") if (ROOT / (name + suffix)).is_file())
