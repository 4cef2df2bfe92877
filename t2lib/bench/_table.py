"""The tables that a bench prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from t2lib.bench._case import BACKWARD, FORWARD
from t2lib.bench._growth import band
from t2lib.bench._ratios import met

UNITS = {"cpu": "CPU", "device": "GPU", "wall": "wall"}
# What a bar does not say of itself.
VERDICT = {True: "", False: "   <- missed", None: ""}
NOT_MEASURED = "not measured"
# Memory that malloc keeps from call to call, or asks the system for each time.
KEPT, FRESH = "kept", "fresh"


def where(result: Mapping[str, Any]) -> str:
    """The device of a result as part of a file's name, and whether memory was kept there."""
    device = "cpu" if result["clock"] == "cpu" else result["machine"]["device"]
    device += " kept" if result.get("memory") == KEPT else ""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def file_name(result: Mapping[str, Any]) -> str:
    """What a result is stored as, without its ending."""
    return f"{result['operator']}-{where(result)}"


def digits(x: float) -> str:
    """Three significant digits, written out: 0.0123, 1.23, 123, 12345."""
    if not x or not math.isfinite(x):
        return f"{x:g}"
    rounded = float(f"{x:.2e}")
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def quartiles(summary: Mapping[str, float], clock: str) -> str:
    """The spread of a timing; nothing where it was not kept."""
    if f"{clock}_low" not in summary:
        return ""
    return f"{digits(summary[clock + '_low'])} - {digits(summary[clock + '_high'])}"


def rounds(result: Mapping[str, Any]) -> str:
    """How many rounds every case has; and out of how many, for a run that was cut short."""
    passes = [of_pass(result, which).values() for which in (FORWARD, BACKWARD)]
    counts = [int(timing["rounds"]) for timings in passes for timing in timings if "rounds" in timing]
    done, asked = min(counts, default=0), result.get("rounds")
    return f"{done} round(s)" if asked in (None, done) else f"cut short after {done} of {asked} rounds"


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """All of one result, as text."""
    yield ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    shape = ", ".join(f"{name} {value}" for name, value in result["shape"].items())
    threads = f", {result['threads']} thread(s)" if "threads" in result else ""
    memory = f", memory {result['memory']}" if "memory" in result else ""
    how = f"{result.get('dtype', 'float32')}{threads}{memory}, {rounds(result)}"
    yield f"{result['operator']}: {shape}, {how}"
    for which in (FORWARD, BACKWARD):
        if of_pass(result, which):
            yield ""
            yield from _timings(result, which)
    yield ""
    yield f"ratios of {UNITS[result['clock']]} time, median over median"
    for entry in result["ratios"]:
        yield ratio_line(entry)
    for rung, growth in result["growth_in_T"].items():
        low, high = band(result["operator"])
        asked = "" if low is None else f"   ({low:g} to {high:g})"
        yield f"  {rung + ', twice the tokens':<58}{growth:>7.2f}{asked}{VERDICT[met(growth, low, high)]}"
    for growth in result.get("growth", {}).values():
        yield ""
        yield from _growth(growth, UNITS[result["clock"]])
    if result.get("left_out"):
        yield "\nnot timed"
        for name, why in result["left_out"].items():
            yield f"  {name:<30}{why}"


def of_pass(result: Mapping[str, Any], which: str) -> dict[str, dict[str, float]]:
    """The timings of one pass by name; none if that pass was not timed."""
    key = "milliseconds" if which == FORWARD else "backward_milliseconds"
    found: dict[str, dict[str, float]] = result.get(key, {})
    return found


def bar_label(slower: str, faster: str, of: str) -> str:
    """A ratio in words."""
    if of == "memory":
        return f"memory of {slower} beyond its result / {faster}"
    return f"{slower} / {faster}" + (", with backward" if of == BACKWARD else "")


def ratio_line(entry: Mapping[str, Any]) -> str:
    """One ratio beside its bar."""
    text = bar_label(entry["slower"], entry["faster"], entry.get("of", FORWARD))
    asked = {key: entry.get(key) for key in ("at_least", "at_most")}
    bars = [f"{key.replace('_', ' ')} {value:g}" for key, value in asked.items() if value is not None]
    ratio = NOT_MEASURED if entry["ratio"] is None else f"{entry['ratio']:.2f}"
    tail = f"   ({bars[0]})" if bars else ""
    # Numbers stand in a column of 7; words go on from its start.
    return f"  {text:<58}{ratio:>7}{tail}{VERDICT[met(entry['ratio'], **asked)]}"


def _timings(result: Mapping[str, Any], which: str) -> Iterator[str]:
    clock, timings = result["clock"], of_pass(result, which)
    memory = result["peak_bytes" if which == FORWARD else "backward_peak_bytes"]
    unit = UNITS[clock]
    moved = result.get("bytes_moved", {}).get(which)
    if moved:
        copy = result["copy_milliseconds"][which]
        spread = quartiles(result.get("copy", {}).get(which, {}), clock)
        speed = result["copy_gigabytes_per_second"][which]
        took = f"{digits(copy)} ms{f' ({spread})' if spread else ''}, {digits(speed)} GB/s"
        yield f"{which}: {digits(moved / 1e6)} MB have to move; a copy takes {took}"
    yield f"{'':<30}{unit + ' ms':>10}{'quartiles':>18}{'wall ms':>10}{'GB/s':>9}{'% copy':>8}{'peak MB':>10}"
    for name, timing in sorted(timings.items(), key=lambda entry: entry[1][clock]):
        spread = quartiles(timing, clock)
        speed = share = ""
        if moved:
            # NumPy computes in float32 whatever the dtype of the bench, and moves as many bytes.
            own = timing.get("bytes", moved)
            speed = digits(own / timing[clock] / 1e6)
            share = f"{100 * result['copy_milliseconds'][which] * own / moved / timing[clock]:.0f}"
        held = digits(memory[name] / 1e6) if name in memory else ""
        yield (
            f"{name:<30}{digits(timing[clock]):>10}{spread:>18}{digits(timing['wall']):>10}"
            f"{speed:>9}{share:>8}{held:>10}"
        )


def _growth(growth: Mapping[str, Any], unit: str) -> Iterator[str]:
    sizes = growth["sizes"]
    yield f"{growth['name'] + ', ' + unit + ' ms and quartiles':<40}" + "".join(
        f"{size:>26}" for size in sizes
    )
    for which in (FORWARD, BACKWARD):
        for rung, times in growth[which].items():
            label = f"  {rung}{', with backward' if which == BACKWARD else ''}"
            yield f"{label:<40}" + "".join(f"{cell:>26}" for cell in growth_cells(growth, which, rung, times))


def growth_cells(growth: Mapping[str, Any], which: str, rung: str, times: list[float]) -> Iterator[str]:
    """The times at all sizes, with their quartiles where they were kept."""
    low, high = (growth.get(key, {}).get(which, {}).get(rung) for key in ("low", "high"))
    for place, time in enumerate(times):
        spread = f" ({digits(low[place])} - {digits(high[place])})" if low and high else ""
        yield digits(time) + spread


def compared(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Every time of this run over that of an earlier one; what only one of them has is left out."""
    clock = now["clock"]
    when, device, commit = (before["machine"].get(key, "unknown") for key in ("date", "device", "commit"))
    yield f"\ntime now / time on {when} ({device}, commit {commit})"
    if now["shape"] != before["shape"] or now.get("dtype") != before.get("dtype", "float32"):
        yield f"  of another shape: {before['shape']}, {before.get('dtype', 'float32')}"
    for which in (FORWARD, BACKWARD):
        earlier = of_pass(before, which)
        for name, timing in of_pass(now, which).items():
            if name in earlier and clock in earlier[name]:
                label = f"{name}, {which}"
                yield f"  {label:<58}{timing[clock] / earlier[name][clock]:>7.2f}"
