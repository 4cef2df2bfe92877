"""Build the book's HTML with every warning an error, and say where to open it.

    python tools/build_book.py
    python tools/build_book.py --linkcheck     follow every external link instead

Notebooks are not run here: the book shows their stored outputs, which `make test` validates.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"


def build(builder: str = "html") -> int:
    """Run Jupyter Book on the repository root; returns its exit status."""
    # The package cannot be run with -m, and its script breaks in a path with spaces on some systems.
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "--all"]
    command += ["--warningiserror", "--nitpick", "--keep-going", "--quiet"]
    command += ["--builder", builder, "."]
    return subprocess.run(command, cwd=ROOT).returncode


def main() -> int:
    if "--linkcheck" in sys.argv[1:]:
        return build("linkcheck")
    status = build()
    # Some versions of the builder end with status 0 and no page; the page itself is the proof.
    if status != 0 or not (HTML / "index.html").is_file():
        print("The book was not built: see the messages above.", file=sys.stderr)
        return status or 1
    pages = len(list(HTML.rglob("*.html")))
    print(f"The book is built ({pages} pages). Open {HTML / 'index.html'}, or run `make serve`.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
