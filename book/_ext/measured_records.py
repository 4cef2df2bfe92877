"""The records in t2lib/bench/results, and the ratios with a bar that they hold."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from book_pages import BOOK

from t2lib.bench._case import BEST, Bar
from t2lib.bench._growth import band
from t2lib.bench._ratios import met
from t2lib.bench._table import FRESH, NOT_MEASURED, bar_label, rounds
from t2lib.bench._table import KEPT as MEMORY_KEPT

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


def of(operator: str, device: str, folder: Path = RESULTS, memory: str = FRESH) -> list[Result]:
    """The records of one operator on "cpu" or "gpu", with memory as a program meets it or kept."""
    return [
        result
        for result in records(folder)
        if result["operator"] == operator
        and (result["shape"]["device"] == "cpu") == (device == "cpu")
        and result.get("memory", FRESH) == memory
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
    """Every ratio with a bar on that device, what it is, and whether it is kept.

    On a CPU also what it is when malloc keeps its memory; there, growth is judged by that.
    """
    cpu = device == "cpu"
    yield f"| operator | ratio, in one run | is |{' memory kept |' * cpu} bar | met |"
    yield f"|:--|:--|--:|{'--:|' * cpu}:--|:--|"
    for operator in OPERATORS:
        asked, found = _asked(operator, device), of(operator, device, folder)
        again: Result = next(iter(of(operator, device, folder, MEMORY_KEPT)), {})
        for bar in asked if not found else ():
            label = bar_label(bar.slower, bar.faster, bar.of)
            yield _row(operator, label, [None] * (1 + cpu), bar, absent=NOT_YET)
        for result in found:
            where = "" if cpu else f", {result['machine']['device']}"
            for bar in asked:
                entry, second = _entry(result, bar), _entry(again, bar)
                names = entry.get("slower", bar.slower), entry.get("faster", bar.faster)
                ratios = [entry.get("ratio"), second.get("ratio")][: 1 + cpu]
                yield _row(operator, bar_label(*names, bar.of) + where, ratios, bar)
            grown = [one.get("growth_in_T", {}) for one in (result, again)]
            for rung in {**grown[0], **grown[1]} if band(operator) != (None, None) else ():
                ratios = [growth.get(rung) for growth in grown][: 1 + cpu]
                judged = -1 if ratios[-1] is not None else 0
                label = f"{rung}, twice the tokens{where}"
                yield _row(operator, label, ratios, Bar(rung, rung, *band(operator)), judged)


def _entry(result: Result, bar: Bar) -> dict[str, Any]:
    """The ratio of a bar in a record; empty if it has none."""
    return next((entry for entry in result.get("ratios", ()) if _is(entry, bar)), {})


def _asked(operator: str, device: str) -> list[Bar]:
    bench = importlib.import_module(f"t2lib.bench.{operator}")
    return [bar for bar in bench.BARS if (bar.on == "cpu") == (device == "cpu")]


def _is(entry: dict[str, Any], bar: Bar) -> bool:
    """Whether a ratio is that of a bar; the best rung has the name of a rung in a record."""
    pairs = ((bar.slower, entry["slower"]), (bar.faster, entry["faster"]))
    return entry.get("of", "forward") == bar.of and all(asked in (BEST, name) for asked, name in pairs)


def _row(
    operator: str,
    label: str,
    ratios: list[float | None],
    bar: Bar,
    judged: int = 0,
    absent: str = NOT_MEASURED,
) -> str:
    shown = " | ".join(absent if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    if bar.at_least is not None and bar.at_most is not None:
        asked = f"{bar.at_least:g} to {bar.at_most:g}"
    else:
        asked = f"≤ {bar.at_most:g}" if bar.at_least is None else f"≥ {bar.at_least:g}"
    asked = asked.replace(" ", TIED)
    verdict = KEPT[met(ratios[judged], bar.at_least, bar.at_most)]
    return f"| `{operator}` | {label} | {shown} | {asked} | {verdict} |"
