"""The tables that a bench prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from t2lib.bench._case import BACKWARD, FORWARD

UNITS = {"cpu": "CPU", "device": "GPU", "wall": "wall"}
# What a bar does not say of itself.
VERDICT = {True: "", False: "   <- missed"}


def where(result: Mapping[str, Any]) -> str:
    """The device of a result as part of a file's name."""
    device = "cpu" if result["clock"] == "cpu" else result["machine"]["device"]
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """All of one result, as text."""
    yield ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    shape = ", ".join(f"{name} {value}" for name, value in result["shape"].items())
    threads = f", {result['threads']} thread(s)" if "threads" in result else ""
    yield f"{result['operator']}: {shape}, {result.get('dtype', 'float32')}{threads}"
    for which in (FORWARD, BACKWARD):
        if of_pass(result, which):
            yield ""
            yield from _timings(result, which)
    yield ""
    yield f"ratios of {UNITS[result['clock']]} time, median over median"
    for entry in result["ratios"]:
        yield ratio_line(entry)
    for rung, growth in result["growth_in_T"].items():
        yield f"  {rung + ', twice the tokens':<58}{growth:>7.2f}   (1.6 to 2.4)"
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


def met(entry: Mapping[str, Any]) -> bool:
    """Whether a ratio clears its bar."""
    return bool(entry.get("at_least", 0) <= entry["ratio"] <= entry.get("at_most", float("inf")))


def ratio_line(entry: Mapping[str, Any]) -> str:
    """One ratio beside its bar."""
    of = entry.get("of", FORWARD)
    text = f"{entry['slower']} / {entry['faster']}"
    if of == "memory":
        text = f"memory of {entry['slower']} beyond its result / {entry['faster']}"
    elif of == BACKWARD:
        text += ", with backward"
    bars = [f"{key.replace('_', ' ')} {entry[key]:g}" for key in ("at_least", "at_most") if key in entry]
    asked = f"   ({bars[0]})" if bars else ""
    return f"  {text:<58}{entry['ratio']:>7.2f}{asked}{VERDICT[met(entry)]}"


def _timings(result: Mapping[str, Any], which: str) -> Iterator[str]:
    clock, timings = result["clock"], of_pass(result, which)
    memory = result["peak_bytes" if which == FORWARD else "backward_peak_bytes"]
    unit = UNITS[clock]
    moved = result.get("bytes_moved", {}).get(which)
    if moved:
        copy = result["copy_milliseconds"][which]
        speed = result["copy_gigabytes_per_second"][which]
        yield f"{which}: {moved / 1e6:.1f} MB have to move; a copy takes {copy:.2f} ms ({speed:.1f} GB/s)"
    yield f"{'':<30}{unit + ' ms':>10}{'quartiles':>18}{'wall ms':>10}{'GB/s':>9}{'% copy':>8}{'peak MB':>10}"
    for name, timing in sorted(timings.items(), key=lambda entry: entry[1][clock]):
        spread = f"{timing[clock + '_low']:.2f} - {timing[clock + '_high']:.2f}"
        speed = f"{moved / timing[clock] / 1e6:.1f}" if moved else ""
        share = f"{100 * result['copy_milliseconds'][which] / timing[clock]:.0f}" if moved else ""
        held = f"{memory[name] / 1e6:.1f}" if name in memory else ""
        yield (
            f"{name:<30}{timing[clock]:>10.2f}{spread:>18}{timing['wall']:>10.2f}"
            f"{speed:>9}{share:>8}{held:>10}"
        )


def _growth(growth: Mapping[str, Any], unit: str) -> Iterator[str]:
    sizes = growth["sizes"]
    yield f"{growth['name'] + ', ' + unit + ' ms':<58}" + "".join(f"{size:>10}" for size in sizes)
    for which in (FORWARD, BACKWARD):
        for rung, times in growth[which].items():
            label = f"  {rung}{', with backward' if which == BACKWARD else ''}"
            yield f"{label:<58}" + "".join(f"{time:>10.2f}" for time in times)


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
