"""Run every check of the project, part by part, and end with a table of times.

    python tools/run_tests.py              all parts
    python tools/run_tests.py lint book    only these

Parts are separate processes, because some cannot share one: kernels in Triton's interpreter need
an environment variable set before Triton is imported, and in such a process nothing compiles.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "_build" / "reports"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
WORKERS = ["-n", "2", "--dist", "loadscope"]
NBVAL_OPTIONS = ["--nbval-current-env", "--nbval-sanitize-with", "tests/nbval_sanitize.cfg"]
NBVAL_OPTIONS += ["--nbval-cell-timeout=120"]


@dataclass
class Part:
    """Commands that prove one thing; `environment` is added to that of the caller."""

    name: str
    commands: list[list[str]]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What a part came to."""

    name: str
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0


PARTS = [
    Part(
        "lint",
        [
            [sys.executable, "-m", "ruff", "check", "."],
            [sys.executable, "-m", "ruff", "format", "--check", "t2lib", "tools", "tests"],
            [sys.executable, "-m", "mypy"],
            [sys.executable, "tools/identity.py", "--check"],
        ],
    ),
    Part("library", [[*PYTEST, *WORKERS, "tests", "--ignore=tests/kernels", "--ignore=tests/book"]]),
    Part(
        "kernels, interpreted",
        [[*PYTEST, *WORKERS, "tests/kernels/interpret"]],
        {"TRITON_INTERPRET": "1"},
    ),
    Part("kernels, compiled", [[*PYTEST, *WORKERS, "tests/kernels/build"]]),
    Part("verify", [[sys.executable, "-m", "t2lib.verify"]]),
    Part(
        "notebooks",
        [
            [*PYTEST, *WORKERS, "--nbval", *NBVAL_OPTIONS, "book"],
        ],
    ),
    Part("book", [[sys.executable, "tools/build_book.py"], [*PYTEST, *WORKERS, "tests/book"]]),
]


def run(part: Part) -> Result:
    """Run one part to its end; later commands run even if an earlier one failed."""
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **part.environment}
    result = Result(part.name, ok=True, seconds=0.0)
    for number, command in enumerate(part.commands):
        report = REPORTS / f"{part.name.replace(' ', '-').replace(',', '')}-{number}.xml"
        is_pytest = "pytest" in command
        shown = command + ([f"--junitxml={report}"] if is_pytest else [])
        print(f"\n=== {part.name}: {' '.join(['python', *command[1:]])}", flush=True)
        status = subprocess.run(shown, cwd=ROOT, env=environment).returncode
        counted = is_pytest and report.is_file()
        passed, failed, skipped = counts(report) if counted else (int(status == 0), int(status != 0), 0)
        result.passed, result.skipped = result.passed + passed, result.skipped + skipped
        # A run that died before it could count itself is a failure too.
        result.failed += failed if failed or status == 0 else 1
        result.ok = result.ok and status == 0
    result.seconds = time.monotonic() - started
    return result


def counts(report: Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) from a JUnit report."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total = sum(int(suite.get("tests", 0)) for suite in suites)
    failed = sum(int(suite.get(key, 0)) for suite in suites for key in ("failures", "errors"))
    skipped = sum(int(suite.get("skipped", 0)) for suite in suites)
    return total - failed - skipped, failed, skipped


def table(results: list[Result]) -> str:
    """The closing table: a row a part, then the sum."""
    rows = [f"{'part':<22}{'time':>8}{'passed':>9}{'failed':>8}{'skipped':>9}"]
    for r in results:
        minutes, seconds = divmod(round(r.seconds), 60)
        mark = "" if r.ok else "   <- failed"
        rows.append(f"{r.name:<22}{minutes:>5}:{seconds:02d}{r.passed:>9}{r.failed:>8}{r.skipped:>9}{mark}")
    minutes, seconds = divmod(round(sum(r.seconds for r in results)), 60)
    rows.append(f"{'all':<22}{minutes:>5}:{seconds:02d}")
    return "\n".join(rows)


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - {part.name for part in PARTS})
    if unknown:
        known = ", ".join(repr(part.name) for part in PARTS)
        print(f"Unknown part {unknown[0]!r}; the parts are {known}.", file=sys.stderr)
        return 2
    REPORTS.mkdir(parents=True, exist_ok=True)
    for stale in REPORTS.glob("*.xml"):
        stale.unlink()
    results = [run(part) for part in PARTS if not names or part.name in names]
    print("\n" + table(results))
    passed, failed, skipped = (
        sum(getattr(r, key) for r in results) for key in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
