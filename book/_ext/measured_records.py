"""The records in t2lib/bench/results, and the ratios with a bar that they hold."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from book_pages import BOOK

from t2lib.bench._case import BEST, Bar
from t2lib.bench._growth import BAND
from t2lib.bench._ratios import met
from t2lib.bench._table import NOT_MEASURED, bar_label, rounds

RESULTS = BOOK.parent / "t2lib" / "bench" / "results"
OPERATORS = ("short_swa", "depth_mix", "depth_attention", "stream_mix", "delta_rewrite", "short_conv")
NOT_YET = "not yet measured"
# A space and a dash at which no line breaks.
TIED, DASH = "\N{NO-BREAK SPACE}", "\N{WORD JOINER}–\N{WORD JOINER}"
KEPT = {True: "yes", False: "**no**", None: ""}
Result = dict[str, Any]


def records(folder: Path = RESULTS) -> list[Result]:
    """All records, those of the CPU first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda result: (result["shape"]["device"] != "cpu", result["operator"]))


def of(operator: str, device: str, folder: Path = RESULTS) -> list[Result]:
    """The records of one operator on "cpu" or "gpu"."""
    return [
        result
        for result in records(folder)
        if result["operator"] == operator and (result["shape"]["device"] == "cpu") == (device == "cpu")
    ]


def source(result: Result) -> str:
    """Where, when, with what and how often a record was measured, as one line."""
    machine = result["machine"]
    shape = ", ".join(f"{name} {size}" for name, size in result["shape"].items() if name != "device")
    return (
        f"{machine['device']}, torch {machine['torch']}, triton {machine['triton']}, {machine['date']}, "
        f"commit {machine.get('commit', 'unknown')}: {shape}, {result.get('dtype', 'float32')}, "
        f"{rounds(result)}."
    )


def bars(device: str, folder: Path = RESULTS) -> Iterator[str]:
    """Every ratio with a bar on that device, what it is, and whether it is kept."""
    yield "| operator | ratio, in one run | is | bar | kept |"
    yield "|:--|:--|--:|:--|:--|"
    for operator in OPERATORS:
        asked = _asked(operator, device)
        found = of(operator, device, folder)
        for bar in asked if not found else ():
            yield _row(operator, bar_label(bar.slower, bar.faster, bar.of), None, bar, NOT_YET)
        for result in found:
            where = "" if device == "cpu" else f", {result['machine']['device']}"
            for bar in asked:
                entry = next((entry for entry in result["ratios"] if _is(entry, bar)), {})
                names = entry.get("slower", bar.slower), entry.get("faster", bar.faster)
                yield _row(operator, bar_label(*names, bar.of) + where, entry.get("ratio"), bar)
            for rung, growth in result["growth_in_T"].items():
                band = Bar(rung, rung, *BAND)
                yield _row(operator, f"{rung}, twice the tokens{where}", growth, band)


def _asked(operator: str, device: str) -> list[Bar]:
    bench = importlib.import_module(f"t2lib.bench.{operator}")
    return [bar for bar in bench.BARS if (bar.on == "cpu") == (device == "cpu")]


def _is(entry: dict[str, Any], bar: Bar) -> bool:
    """Whether a ratio is that of a bar; the best rung has the name of a rung in a record."""
    pairs = ((bar.slower, entry["slower"]), (bar.faster, entry["faster"]))
    return entry.get("of", "forward") == bar.of and all(asked in (BEST, name) for asked, name in pairs)


def _row(operator: str, label: str, ratio: float | None, bar: Bar, absent: str = NOT_MEASURED) -> str:
    shown = absent if ratio is None else f"{ratio:.2f}"
    if bar.at_least is not None and bar.at_most is not None:
        asked = f"{bar.at_least:g} to {bar.at_most:g}"
    else:
        asked = f"≤ {bar.at_most:g}" if bar.at_least is None else f"≥ {bar.at_least:g}"
    asked = asked.replace(" ", TIED)
    return f"| `{operator}` | {label} | {shown} | {asked} | {KEPT[met(ratio, bar.at_least, bar.at_most)]} |"
