"""Time in interleaved rounds, count the peak of memory, and say on what machine."""

from __future__ import annotations

import datetime
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Function = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Milliseconds over the rounds: medians of wall clock and CPU time, and quartiles of the latter."""

    wall: float
    cpu: float
    cpu_low: float
    cpu_high: float
    rounds: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def interleaved(cases: dict[str, Function], rounds: int, progress: Progress) -> dict[str, Timing]:
    """Run every case once a round, so that whatever else the machine does hits all of them alike.

    The first call of each case is not timed: it compiles, allocates and warms up.
    """
    for name, function in cases.items():
        progress.step(f"first call of {name}")
        function()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, function in cases.items():
            progress.step(name)
            wall, cpu = time.perf_counter(), time.process_time()
            function()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: _timing(pairs) for name, pairs in times.items()}


def _timing(pairs: list[tuple[float, float]]) -> Timing:
    walls, cpus = ([1e3 * t for t in times] for times in zip(*pairs, strict=True))
    low, _, high = statistics.quantiles(cpus, n=4) if len(cpus) > 1 else (cpus[0],) * 3
    return Timing(statistics.median(walls), statistics.median(cpus), low, high, len(pairs))


def peak_bytes(function: Function) -> int:
    """The most memory that arrays and tensors made during the call held at one time, inputs not counted."""
    tracemalloc.start()
    try:
        function()
        arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    torch = sys.modules.get("torch")
    if torch is None:
        return arrays
    # In a run of its own: the profiler makes Python objects, which tracemalloc would count.
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    return max(arrays, _peak_of_tensors(profile))


def _peak_of_tensors(profile: Any) -> int:
    sizes: list[tuple[int, int]] = []
    todo = list(profile.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo.extend(event.children)
        if str(event.tag).endswith("Allocation"):
            sizes.append((event.start_time_ns, event.extra_fields.alloc_size))
    held = peak = 0
    for _, size in sorted(sizes, key=lambda entry: entry[0]):
        held += size
        peak = max(peak, held)
    return peak


def machine(device: str) -> dict[str, str]:
    """Device, versions and date, as they belong to every number printed."""
    import numpy

    versions = {"python": platform.python_version(), "numpy": numpy.__version__}
    for package in ("torch", "triton"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            versions[package] = "not installed"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"device": _device(device), **versions, "date": date}


def _device(device: str) -> str:
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    names = {line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")}
    return " / ".join(sorted(names)) or platform.processor() or platform.machine()


class Progress:
    """A bar on standard error, if that is a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.shown = sys.stderr.isatty()

    def step(self, what: str) -> None:
        self.done += 1
        if self.shown:
            bar = ("#" * (30 * self.done // max(1, self.total))).ljust(30)
            print(f"\r[{bar}] {self.done}/{self.total} {what:<40}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.shown:
            print("\r" + " " * 90 + "\r", end="", file=sys.stderr, flush=True)
