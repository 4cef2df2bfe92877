"""The tables of the page of measurements, from the records in t2lib/bench/results.

Directives: ``measured-bars cpu`` or ``gpu`` (the ratios that the library has to keep),
``measured-operator cpu short_swa`` (the times of one operator beside its floor, and how they grow),
``measured-streams`` (every residual stream in one decoder). What has no record is listed as not yet measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from book_pages import GeneratedTable
from docutils import nodes
from measured_records import DASH, NOT_YET, RESULTS, Result, bars, of, source
from sphinx.application import Sphinx

from t2lib.bench._case import BACKWARD, FORWARD
from t2lib.bench._growth import PASSES
from t2lib.bench._table import KEPT, NOT_MEASURED, digits, growth_cells, of_pass, quartiles
from t2lib.bench.streams import unmeasured

CLOCKS = {"cpu": "CPU time", "device": "time on the GPU"}
# Published: bytes a second, and dense FLOPs a second of matrix products in half precision.
CHIPS = {"T4": (0.32e12, 65e12), "A100": (2.0e12, 312e12), "H200": (4.8e12, 989e12)}
# About what one core of a CPU does.
CORE = {"one core": (10e9, 100e9)}
# FLOPs of a pass by those of forward: every product has two gradients, each a product as large.
PRODUCTS = {FORWARD: 1, BACKWARD: 3}
COPY, PRODUCT = "a copy of as many bytes", "a matrix product of as many FLOPs"


def operator(device: str, name: str, folder: Path = RESULTS) -> Iterator[str]:
    """Times, shares of the floor, memory, growth of one operator. Without a record, its floor alone."""
    found = of(name, device, folder)
    if not found:
        yield from _floors(name, device)
    for result in found:
        yield source(result)
        yield ""
        yield from _times(result)
        yield ""
        again = of(name, device, folder, KEPT) if device == "cpu" else []
        yield from _growth(again[0] if again else result)


def _floors(name: str, device: str) -> Iterator[str]:
    bench = importlib.import_module(f"t2lib.bench.{name}")
    shape, itemsize, chips = (bench.Shape(), 4, CORE) if device == "cpu" else (bench.ON_CUDA, 2, CHIPS)
    sizes = ", ".join(f"{size} {value}" for size, value in asdict(shape).items())
    yield f"{NOT_YET.capitalize()}. The floor at {sizes}, {itemsize} bytes a number:"
    yield ""
    speeds = [f"{chip}, {speed / 1e12:g} TB/s" for chip, (speed, _) in chips.items()]
    yield f"| | bytes that have to move | {' | '.join(speeds)} |"
    yield f"|:--|--:{'|--:' * len(chips)}|"
    for which in PASSES:
        moved = bench.bytes_moved(shape, itemsize, which == BACKWARD)
        computed = PRODUCTS[which] * bench.flops(shape)
        times = [1e3 * max(moved / speed, computed / peak) for speed, peak in chips.values()]
        yield f"| {which} | {digits(moved / 1e6)} MB | {' | '.join(f'{digits(time)} ms' for time in times)} |"


def floor(result: Result, which: str) -> tuple[float, str]:
    """Milliseconds of a copy or of a matrix product in that run, whichever takes longer; and which it is."""
    copy = result["copy_milliseconds"][which]
    computed = PRODUCTS[which] * result["flops"] / result["gigaflops_per_second"] / 1e6
    return (copy, COPY) if copy >= computed else (computed, PRODUCT)


def _times(result: Result) -> Iterator[str]:
    clock = result["clock"]
    yield (
        f"| {CLOCKS[clock]} | forward, ms | of the floor | MB held |"
        " with backward, ms | of the floor | MB held |"
    )
    yield "|:--|--:|--:|--:|--:|--:|--:|"
    floors = {which: floor(result, which) for which in PASSES}
    kinds = list(dict.fromkeys(kind for _, kind in floors.values()))
    cells = []
    for which, (time, kind) in floors.items():
        spread = quartiles(result.get("copy", {}).get(which, {}), clock) if kind == COPY else ""
        cells += [_spread(time, spread), "100 %", ""]
    yield f"| *floor: {'; with backward '.join(kinds)}* | {' | '.join(cells)} |"
    timings = of_pass(result, FORWARD)
    for name in sorted(timings, key=lambda name: timings[name][clock]):
        label = f"**{name}**" if name in result.get("rungs", ()) else name
        cells = [cell for which in PASSES for cell in _cells(result, name, which, floors[which])]
        yield f"| {label} | {' | '.join(cells)} |"
    yield from _left_out(result)


def _left_out(result: Result) -> Iterator[str]:
    reasons = [f"{name} ({why})" for name, why in result.get("left_out", {}).items() if name != "loops"]
    if reasons:
        yield ""
        yield f"Not timed: {'; '.join(reasons)}."


def _cells(result: Result, name: str, which: str, floor: tuple[float, str]) -> tuple[str, str, str]:
    timings = of_pass(result, which)
    if name not in timings:
        return "", "", ""
    timing, (least, kind) = timings[name], floor
    time = timing[result["clock"]]
    if kind == COPY:
        # NumPy computes in float32 whatever the dtype of the bench, and moves as many bytes.
        moved = result["bytes_moved"][which]
        least *= timing.get("bytes", moved) / moved
    held = result["peak_bytes" if which == FORWARD else "backward_peak_bytes"].get(name)
    shown = "" if held is None else digits(held / 1e6)
    return _spread(time, quartiles(timing, result["clock"])), f"{100 * least / time:.0f} %", shown


def _spread(time: float, spread: str) -> str:
    return f"{digits(time)} ({spread.replace(' - ', DASH)})" if spread else digits(time)


def _growth(result: Result) -> Iterator[str]:
    """All sizes of a record in one table, folded."""
    if not result.get("growth"):
        return
    kept = ", with memory kept" if result.get("memory") == KEPT else ""
    yield f":::{{dropdown}} How it grows with {', '.join(result['growth'])}{kept}"
    yield "| milliseconds | | | |"
    yield "|:--|--:|--:|--:|"
    for letter, growth in result["growth"].items():
        yield _padded(f"**{letter}**, {growth['name'].replace('_', ' ')}", map(str, growth["sizes"]))
        for which in PASSES:
            for rung, times in growth[which].items():
                label = rung if which == FORWARD else f"{rung}, with backward"
                cells = growth_cells(growth, which, rung, times)
                yield _padded(label, (cell.replace(" - ", DASH) for cell in cells))
    yield ":::"


def _padded(label: str, cells: Any) -> str:
    return f"| {' | '.join([label, *cells, '', ''][:4])} |"


def streams(folder: Path = RESULTS) -> Iterator[str]:
    """Every design as a ratio to the plain stream, beside its floor."""
    for device in ("cpu", "gpu"):
        found = of("streams", device, folder)
        if not found:
            yield f"On a {device.upper()}: {NOT_YET}."
        for result in found:
            yield source(result)
            yield ""
            yield "| design | time / plain | quartiles | floor | peak memory, MB | vectors moved a token |"
            yield "|:--|--:|--:|--:|--:|--:|"
            for name, ratio in sorted(result["ratio_to_plain"].items(), key=lambda entry: entry[1]):
                yield _stream(result, name, f"{ratio:.2f}")
            for name in unmeasured(result):
                yield _stream(result, name, NOT_MEASURED)
            yield from _left_out(result)
        yield ""


def _stream(result: Result, name: str, ratio: str) -> str:
    clock, timings = result["clock"], result["backward_milliseconds"]
    spread = ""
    if f"{clock}_low" in timings.get(name, {}):
        low, high = (timings[name][f"{clock}_{end}"] / timings["prenorm"][clock] for end in ("low", "high"))
        spread = f"{low:.2f}{DASH}{high:.2f}"
    held = result["backward_peak_bytes"].get(name)
    memory = NOT_MEASURED if held is None else digits(held / 1e6)
    cells = (name.replace("_", " "), ratio, spread, f"{result['floor'][name]:.2f}", memory)
    return f"| {' | '.join(cells)} | {result['vectors'][name]:g} |"


class Measured(GeneratedTable):
    def run(self) -> list[nodes.Node]:
        for path in RESULTS.glob("*.json"):
            self.env.note_dependency(str(path))
        return super().run()


class Bars(Measured):
    required_arguments = 1

    def lines(self) -> list[str]:
        return list(bars(self.arguments[0]))


class Operator(Measured):
    required_arguments = 2

    def lines(self) -> list[str]:
        return list(operator(*self.arguments))


class Streams(Measured):
    def lines(self) -> list[str]:
        return list(streams())


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured-bars", Bars)
    app.add_directive("measured-operator", Operator)
    app.add_directive("measured-streams", Streams)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
