"""Time in interleaved rounds, count the peak of memory, and say on what machine."""

from __future__ import annotations

import datetime
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Function = Callable[[], Any]

# What a GPU's caches can hold is wiped before each call; and the GPU is kept waiting for this many of its
# cycles, so that the processor has queued the whole call before its clock starts.
WIPED, WAIT = 1 << 28, 5_000_000


@dataclass(frozen=True)
class Timing:
    """Milliseconds by clock ("wall", "cpu", on a GPU "device"): the times of all rounds, in order."""

    times: Mapping[str, list[float]]

    def median(self, clock: str) -> float:
        return statistics.median(self.times[clock])

    def as_dict(self) -> dict[str, float]:
        """Medians, and quartiles of all clocks but the wall's."""
        result: dict[str, float] = {"wall": self.median("wall")}
        for clock, times in self.times.items():
            if clock != "wall":
                low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
                result |= {clock: self.median(clock), f"{clock}_low": low, f"{clock}_high": high}
        return result | {"rounds": len(self.times["wall"])}


def interleaved(
    cases: Mapping[str, Function],
    rounds: int,
    progress: Progress,
    device: str = "cpu",
    keep: Callable[[dict[str, Timing], dict[str, str]], None] | None = None,
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Run every case once a round, so that whatever else the machine does hits all of them alike.

    The first call of each case is not timed: it compiles, allocates and warms up. A case that fails is left
    out from there on; the second result says why. `keep` is called with both results as they stand: with one
    time a case while first calls, which may compile for long, go on; then after each round.
    """
    call = _on_the_device if device == "cuda" else _on_the_processor
    failed: dict[str, str] = {}
    early: dict[str, list[dict[str, float]]] = {}
    for name, function in cases.items():
        progress.step(f"first call of {name}")
        try:
            function()
            early[name] = [call(function)]
        except Exception as error:
            failed[name] = sentence(error)
        if keep:
            keep(_timings(early), failed)
    running = {name: function for name, function in cases.items() if name not in failed}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, function in running.items():
            progress.step(name)
            if name in failed:
                continue
            try:
                times[name].append(call(function))
            except Exception as error:
                failed[name] = sentence(error)
        if keep:
            keep(_timings(times), failed)
    return _timings(times), failed


def _timings(times: Mapping[str, list[dict[str, float]]]) -> dict[str, Timing]:
    return {
        name: Timing({clock: [entry[clock] for entry in entries] for clock in entries[0]})
        for name, entries in times.items()
        if entries
    }


def sentence(error: BaseException) -> str:
    """The first line of what was raised, short enough for a table."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"


def _on_the_processor(function: Function) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return {"wall": 1e3 * (time.perf_counter() - wall), "cpu": 1e3 * (time.process_time() - cpu)}


def _on_the_device(function: Function) -> dict[str, float]:
    import torch

    cuda: Any = torch.cuda
    torch.cuda.synchronize()
    wall = time.perf_counter()
    function()
    torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - wall)
    torch.empty(WIPED, dtype=torch.int8, device="cuda").zero_()
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda._sleep(WAIT)
    begin.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return {"wall": wall, "device": begin.elapsed_time(end)}


def peak_bytes(function: Function, device: str = "cpu") -> int:
    """The most memory that arrays and tensors made during the call held at one time, inputs not counted."""
    if device == "cuda":
        return _peak_on_the_device(function)
    arrays = peak_of_arrays(function)
    # In a run of its own: the profiler makes Python objects, which tracemalloc would count.
    return max(arrays, peak_of_tensors(function)) if "torch" in sys.modules else arrays


def peak_of_arrays(function: Function) -> int:
    """The bytes that NumPy and Python held at most; a first call, which may import, is not counted."""
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_of_tensors(function: Function) -> int:
    """The bytes that tensors on the CPU held at most; a first call is not counted."""
    import torch

    function()
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    sizes: list[tuple[int, int]] = []
    recorded: Any = profile.profiler
    events = list(recorded.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        events.extend(event.children)
        if str(event.tag).endswith("Allocation"):
            sizes.append((event.start_time_ns, event.extra_fields.alloc_size))
    held = peak = 0
    for _, size in sorted(sizes, key=lambda entry: entry[0]):
        held += size
        peak = max(peak, held)
    return peak


def _peak_on_the_device(function: Function) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def copying(count: int, device: str) -> Function:
    """A copy that reads and writes `count` bytes in all: the yardstick of everything bound by memory."""
    half = max(1, count // 2)
    if device == "cuda":
        import torch

        origin, target = (torch.zeros(half, dtype=torch.int8, device="cuda") for _ in range(2))
        return lambda: target.copy_(origin)
    import numpy as np

    # Written once, so that the pages are there.
    here, there = np.ones(half, np.int8), np.ones(half, np.int8)
    return lambda: np.copyto(there, here)


def multiplying(device: str, dtype: str) -> tuple[Function, int]:
    """A square matrix product and its FLOPs: the yardstick of everything bound by arithmetic."""
    size = 8192 if device == "cuda" else 512
    if device == "cuda":
        import torch

        x = torch.ones(size, size, device="cuda", dtype=getattr(torch, dtype))
        return lambda: x @ x, 2 * size**3
    import numpy as np

    y = np.ones((size, size), np.float32)
    return lambda: y @ y, 2 * size**3


def machine(device: str) -> dict[str, str]:
    """Device, versions, date and commit, as they belong to every number printed."""
    import numpy

    versions = {"python": platform.python_version(), "numpy": numpy.__version__}
    for package in ("torch", "triton"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            versions[package] = "not installed"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"device": _device(device), **versions, "date": date, "commit": _commit()}


def _commit() -> str:
    """The commit of the checkout that this file lies in; "+" if the library differs from it."""
    here = Path(__file__).resolve().parent
    ask = ["git", "-C", str(here)]
    try:
        found = subprocess.run(
            [*ask, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, timeout=10
        )
        changed = subprocess.run(
            [*ask, "status", "--porcelain", "--untracked-files=no", ".."],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if found.returncode:
        return "unknown"
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


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
            bar = ("#" * (30 * min(self.done, self.total) // max(1, self.total))).ljust(30)
            print(f"\r[{bar}] {self.done}/{self.total} {what[:44]:<44}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.shown:
            print("\r" + " " * 100 + "\r", end="", file=sys.stderr, flush=True)
