"""The tables of the page of measurements, from the records in t2lib/bench/results.

Directives: ``measured-bars`` (the ratios that the library has to keep), ``measured-operators cpu`` or ``gpu``
(the times of every operator beside the bytes that have to move), ``measured-streams`` (every residual stream
in one decoder). What has no record is said to be not yet measured.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from book_pages import BOOK, GeneratedTable
from docutils import nodes
from sphinx.application import Sphinx

RESULTS = BOOK.parent / "t2lib" / "bench" / "results"
OPERATORS = ("short_swa", "depth_mix", "depth_attention", "stream_mix", "delta_rewrite", "short_conv")
CLOCKS = {"cpu": "CPU time", "device": "time on the GPU"}
NOT_YET = "not yet measured"
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
    """Where, when and with what a record was made, as one line."""
    machine = result["machine"]
    shape = ", ".join(f"{name} {size}" for name, size in result["shape"].items() if name != "device")
    return (
        f"{machine['device']}, torch {machine['torch']}, triton {machine['triton']}, {machine['date']}, "
        f"commit {machine.get('commit', 'unknown')}: {shape}, {result.get('dtype', 'float32')}."
    )


def bars(folder: Path = RESULTS) -> Iterator[str]:
    """Every ratio with a bar, and whether it is kept."""
    yield "| operator | ratio, in one run | is | bar | kept |"
    yield "|:--|:--|--:|:--|:--|"
    for operator in OPERATORS:
        found = [
            (result, entry)
            for result in records(folder)
            if result["operator"] == operator
            for entry in result["ratios"]
            if "at_least" in entry or "at_most" in entry
        ]
        if not found:
            yield f"| `{operator}` | | {NOT_YET} | | |"
        for result, entry in found:
            where = "" if result["shape"]["device"] == "cpu" else f", {result['machine']['device']}"
            kept = entry.get("at_least", 0) <= entry["ratio"] <= entry.get("at_most", float("inf"))
            key = "at_least" if "at_least" in entry else "at_most"
            bar = f"{'≥' if key == 'at_least' else '≤'} {entry[key]:g}"
            yield (
                f"| `{operator}` | {_ratio(entry)}{where} | {entry['ratio']:.2f} | {bar} |"
                f" {'yes' if kept else '**no**'} |"
            )


def _ratio(entry: dict[str, Any]) -> str:
    pass_name = entry.get("of", "forward")
    if pass_name == "memory":
        return f"memory of {entry['slower']} beyond its result / {entry['faster']}"
    return f"{entry['slower']} / {entry['faster']}" + (", with backward" if "backward" in pass_name else "")


def operators(device: str, folder: Path = RESULTS) -> Iterator[str]:
    """A table an operator: times, shares of the copy, memory. Without a record, its floor alone."""
    for operator in OPERATORS:
        found = of(operator, device, folder)
        yield f"**`{operator}`**"
        yield ""
        if not found:
            yield from _floor(operator, device)
        for result in found:
            yield source(result)
            yield ""
            yield from _times(result)
        yield ""


def _floor(operator: str, device: str) -> Iterator[str]:
    bench = importlib.import_module(f"t2lib.bench.{operator}")
    shape, itemsize = (bench.Shape(), 4) if device == "cpu" else (bench.ON_CUDA, 2)
    sizes = ", ".join(f"{name} {size}" for name, size in asdict(shape).items())
    moved = [bench.bytes_moved(shape, itemsize, backward) / 1e6 for backward in (False, True)]
    yield f"{NOT_YET.capitalize()}. At the size of the bench ({sizes}, {itemsize} bytes a number):"
    yield ""
    # About what a core of a CPU and what a small GPU copy.
    speed, gigabytes = ("10 GB/s", 10) if device == "cpu" else ("1 TB/s", 1000)
    yield f"| | bytes that have to move | at {speed} |"
    yield "|:--|--:|--:|"
    for name, megabytes in zip(("forward", "forward + backward"), moved, strict=True):
        yield f"| {name} | {megabytes:.0f} MB | {megabytes / gigabytes:.2f} ms |"


def _times(result: Result) -> Iterator[str]:
    clock = result["clock"]
    moved = result.get("bytes_moved", {})
    yield f"| {CLOCKS[clock]} | forward, ms | of a copy | MB held | with backward, ms | of a copy | MB held |"
    yield "|:--|--:|--:|--:|--:|--:|--:|"
    if moved:
        copies = [result["copy_milliseconds"][name] for name in ("forward", "forward + backward")]
        yield f"| *floor: a copy of as many bytes* | {copies[0]:.2f} | 100 % | | {copies[1]:.2f} | 100 % | |"
    timings = result["milliseconds"]
    backward = result.get("backward_milliseconds", {})
    for name in sorted(timings, key=lambda name: timings[name][clock]):
        cells = [
            *_cell(result, name, "forward", timings),
            *_cell(result, name, "forward + backward", backward),
        ]
        label = f"**{name}**" if name in result.get("rungs", ()) else name
        yield f"| {label} | {' | '.join(cells)} |"
    if result.get("left_out"):
        yield ""
        missing = [f"{name} ({why})" for name, why in result["left_out"].items() if name not in ("loops",)]
        yield f"Not timed: {'; '.join(missing)}."


def _cell(result: Result, name: str, which: str, timings: dict[str, Any]) -> tuple[str, str, str]:
    if name not in timings:
        return "", "", ""
    clock = result["clock"]
    time = timings[name][clock]
    held = result["peak_bytes" if which == "forward" else "backward_peak_bytes"].get(name)
    share = (
        f"{100 * result['copy_milliseconds'][which] / time:.0f} %" if "copy_milliseconds" in result else ""
    )
    return f"{time:.2f}", share, "" if held is None else f"{held / 1e6:.1f}"


def streams(folder: Path = RESULTS) -> Iterator[str]:
    """Every design as a ratio to the plain stream, beside its floor."""
    for device in ("cpu", "gpu"):
        found = of("streams", device, folder)
        if not found:
            yield f"On a {device.upper()}: {NOT_YET}."
        for result in found:
            yield source(result)
            yield ""
            yield "| design | time / plain | floor | peak memory, MB | vectors moved a token |"
            yield "|:--|--:|--:|--:|--:|"
            for name, ratio in sorted(result["ratio_to_plain"].items(), key=lambda entry: entry[1]):
                held, vectors = result["backward_peak_bytes"][name] / 1e6, result["vectors"][name]
                floor = result["floor"][name]
                yield f"| {name.replace('_', ' ')} | {ratio:.2f} | {floor:.2f} | {held:.0f} | {vectors:g} |"
        yield ""


class Measured(GeneratedTable):
    def run(self) -> list[nodes.Node]:
        for path in RESULTS.glob("*.json"):
            self.env.note_dependency(str(path))
        return super().run()


class Bars(Measured):
    def lines(self) -> list[str]:
        return list(bars())


class Operators(Measured):
    required_arguments = 1

    def lines(self) -> list[str]:
        return list(operators(self.arguments[0]))


class Streams(Measured):
    def lines(self) -> list[str]:
        return list(streams())


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured-bars", Bars)
    app.add_directive("measured-operators", Operators)
    app.add_directive("measured-streams", Streams)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
