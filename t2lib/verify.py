"""Check what the library claims, on this machine: `python -m t2lib.verify [section ...]`.

One table a section, with the largest error in each cell: of an operator, checks down and rungs across; of
the streams and the mixers, designs down and checks across. A cell that cannot run says why below the table.
The exit status is 1 if any cell is red, 2 for an unknown section.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from t2lib import __version__
from t2lib.ops import RungUnavailable, _registry

INFINITE = float("inf")
# Seconds after which a run says how far it is.
EVERY = 5.0

# Section -> the module that lists its checks, loaded when the section runs. It offers
#   checks(section, column) -> {check: (tolerance, what measures the error or why it is left out)}
# and, for a section that is no operator, columns(section) -> rows (column, whether it runs here, why not).
CLAIMS = {
    "short_swa": "t2lib.ops._claims_short_swa",
    "depth_mix": "t2lib.ops._claims_depth",
    "depth_attention": "t2lib.ops._claims_depth",
    "stream_mix": "t2lib.ops._claims_streams",
    "delta_rewrite": "t2lib.ops._claims_streams",
    "short_conv": "t2lib.ops._claims_streams",
    "streams": "t2lib.streams._claims",
    "delta": "t2lib.streams._claims_delta",
    "mixers": "t2lib.mixers._claims",
}


@dataclass(frozen=True)
class Cell:
    """One check on one rung: its error, or why it was skipped; `detail` tells what was raised.

    `shown` stands in the table in place of an error that is right, `note` below the table.
    """

    operator: str
    check: str
    rung: str
    error: float | None
    tolerance: float = 0.0
    reason: str = ""
    detail: str = ""
    shown: str = ""
    note: str = ""

    @property
    def red(self) -> bool:
        # Written so that NaN is red.
        return self.error is not None and not self.error <= self.tolerance


Section = Callable[[], Iterable[Cell]]
SECTIONS: dict[str, Section] = {}
# Sections that run only when they are named, and what they take.
APART = {"kernels": "interprets and compiles every kernel, minutes"}


def section(name: str) -> Callable[[Section], Section]:
    """Register a section: a function that yields cells."""

    def register(function: Section) -> Section:
        SECTIONS[name] = function
        return function

    return register


def cell(operator: str, check: str, rung: str, tolerance: float, measure: Callable[[], float]) -> Cell:
    """Run one check. What raises is red, unless it is the rung that says it cannot run."""
    try:
        # Some checks feed NaN and infinity on purpose; what comes of it is compared, not announced.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return Cell(operator, check, rung, float(measure()), tolerance)
    except RungUnavailable as unavailable:
        return Cell(operator, check, rung, None, reason=str(unavailable))
    except Exception as raised:
        return Cell(operator, check, rung, INFINITE, tolerance, detail=f"{type(raised).__name__}: {raised}")


def _by_claims(name: str, **asked: bool) -> Iterator[Cell]:
    """A section from the checks that its module lists, column by column."""
    if name not in _registry.OPERATORS and not _registry.installed("torch"):
        yield Cell(name, "all", "", None, reason="torch is not installed; `pip install torch` brings it")
        return
    claims = importlib.import_module(CLAIMS[name])
    columns = _registry.ladder(name) if name in _registry.OPERATORS else claims.columns(name)
    for column, runs_here, reason in columns:
        for check, (tolerance, measure) in claims.checks(name, column, **asked).items():
            if not runs_here:
                yield Cell(name, check, column, None, reason=reason)
            elif isinstance(measure, str):
                yield Cell(name, check, column, None, reason=measure)
            else:
                yield cell(name, check, column, tolerance, measure)


for _name in CLAIMS:
    section(_name)(partial(_by_claims, _name))


@section("kernels")
def _kernels() -> Iterator[Cell]:
    from t2lib.ops import _kernel_table

    for row in _kernel_table.rows():
        yield Cell(**row)


def report(cells: list[Cell]) -> str:
    """The cells as one table an operator: checks down, rungs across, reasons below."""
    lines: list[str] = []
    for operator in dict.fromkeys(c.operator for c in cells):
        mine = [c for c in cells if c.operator == operator]
        rungs, checks = (list(dict.fromkeys(getattr(c, key) for c in mine)) for key in ("rung", "check"))
        wide = max(len(check) for check in checks) + 2
        notes: dict[str, int] = {}
        lines += ["", f"{operator:<{wide}}" + "".join(f"{rung:<12}" for rung in rungs)]
        for check in checks:
            row = f"{check:<{wide}}"
            for rung in rungs:
                found = next((c for c in mine if (c.check, c.rung) == (check, rung)), None)
                row += f"{_shown(found, notes):<12}"
            lines.append(row.rstrip())
        lines += [f"[{number}] {reason}" for reason, number in notes.items()]
        lines += dict.fromkeys(c.note for c in mine if c.note)
        lines += [f"RED {c.check} on {c.rung}: {c.detail or f'{c.error:.1e}'}" for c in mine if c.red]
    return "\n".join(lines)


def _shown(found: Cell | None, notes: dict[str, int]) -> str:
    if found is None:
        return "-"
    if found.error is None:
        return f"skip [{notes.setdefault(found.reason, len(notes) + 1)}]"
    if found.red:
        return f"RED {found.error:.0e}"
    return found.shown or f"ok {found.error:.0e}"


def _announced(name: str, cells: Iterable[Cell]) -> Iterator[Cell]:
    """The same cells; on standard error, how far they are and what is red as soon as it is."""
    last, done, red = time.perf_counter(), 0, 0
    for c in cells:
        done, red = done + 1, red + c.red
        if c.red or time.perf_counter() - last >= EVERY:
            last = time.perf_counter()
            now = f"RED {c.check}" if c.red else c.check
            print(f"{name}: {done} done, {red} red; {now} on {c.rung}", file=sys.stderr, flush=True)
        yield c


def main(arguments: list[str] | None = None) -> int:
    """Run the sections and print their tables; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m t2lib.verify", description=__doc__)
    parser.add_argument(
        "sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; by default all but {', '.join(APART)}"
    )
    parser.add_argument("--compile", action="store_true", help="also compile every stream: half an hour")
    asked = parser.parse_args(arguments)
    chosen = asked.sections or [name for name in SECTIONS if name not in APART]
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        print(f"sections must be of {', '.join(SECTIONS)}; got {', '.join(unknown)}.", file=sys.stderr)
        return 2
    started = time.perf_counter()
    torch = sys.modules.get("torch")
    versions = [f"t2lib {__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    if torch is None and _registry.installed("torch"):
        import torch
    versions.append("no torch" if torch is None else f"torch {torch.__version__}")
    print(", ".join(versions), flush=True)
    sections = dict(SECTIONS)
    if asked.compile:
        sections["streams"] = partial(_by_claims, "streams", compiled=True)
    cells = [c for name in chosen for c in _announced(name, sections[name]())]
    print(report(cells))
    for name, takes in APART.items():
        if name not in chosen and not asked.sections:
            print(f"\nnot asked for: {name} ({takes}): python -m t2lib.verify {name}")
    red, skipped = sum(c.red for c in cells), sum(c.error is None for c in cells)
    seconds = time.perf_counter() - started
    passed = len(cells) - red - skipped
    print(f"\n{passed} passed, {red} red, {skipped} skipped, in {seconds:.0f} s")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
