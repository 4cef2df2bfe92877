"""Measure one operator: its rungs and peers side by side, how they grow, and the ratios that matter."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from t2lib.bench._case import BACKWARD, BEST, COPY, FORWARD, Bar, Function, Operator, Setting, cases
from t2lib.bench._measure import Progress, Timing, copying, interleaved, machine, multiplying, peak_bytes

PRODUCT = "matrix product"
PASSES = (FORWARD, BACKWARD)
Key = tuple[str, str]


def measure(
    operator: Operator,
    shape: Any,
    setting: Setting,
    *,
    rounds: int,
    growth: bool = True,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """All that the table, the file and the plots show of one operator.

    `keep` is called with what there is whenever a part of it is done.
    """
    clock = "device" if setting.device == "cuda" else "cpu"
    where = machine(setting.device)

    def so_far(side: _SideBySide) -> dict[str, Any]:
        return _side_by_side(operator, shape, setting, rounds, side) | {"machine": where}

    def keep_side(side: _SideBySide) -> None:
        # Once the yardsticks, which are timed first, are there.
        if keep and (PRODUCT, FORWARD) in side.timings:
            keep(so_far(side))

    side = _SideBySide(operator, shape, setting)
    side.measure(rounds, keep_side)
    result = so_far(side)
    del side
    for letter, name in operator.GROWTH.items() if growth else ():
        result["growth"][letter] = _grow(operator, shape, setting, name, rounds, clock)
        if letter == "T":
            tokens = result["growth"]["T"][FORWARD]
            # What twice the tokens cost.
            result["growth_in_T"] = {rung: times[-1] / times[-2] for rung, times in tokens.items()}
        if keep:
            keep(result)
    return result


class _SideBySide:
    """Every case at one shape: forward, and forward with backward, in the same rounds as a copy."""

    def __init__(self, operator: Operator, shape: Any, setting: Setting) -> None:
        self.found, self.left_out = cases(operator, shape, setting)
        self.device = setting.device
        self.calls: dict[Key, Function] = {}
        for which in PASSES:
            count = operator.bytes_moved(shape, setting.itemsize, which == BACKWARD)
            self.calls[COPY, which] = copying(count, setting.device)
        self.calls[PRODUCT, FORWARD], self.product_flops = multiplying(setting.device, setting.dtype)
        for which in PASSES:
            for name, case in self.found.items():
                function = case.forward if which == FORWARD else case.backward
                if function is not None:
                    self.calls[name, which] = function
        self.timings: dict[Key, Timing] = {}
        self.memory: dict[Key, int] = {}

    def measure(self, rounds: int, keep: Callable[[_SideBySide], None]) -> None:
        """Time all calls, then count their memory; `keep` is called as often as there is more."""
        progress = Progress((rounds + 2) * len(self.calls))
        keys = {f"{name}, {which}": (name, which) for name, which in self.calls}

        def take(timings: Mapping[str, Timing], failed: Mapping[str, str]) -> None:
            self.timings = {keys[name]: timing for name, timing in timings.items()}
            self.left_out |= failed
            keep(self)

        named = dict(zip(keys, self.calls.values(), strict=True))
        interleaved(named, rounds, progress, self.device, take)
        for (name, which), call in self.calls.items():
            if name in self.found and (name, which) in self.timings:
                progress.step(f"memory of {name}")
                self.memory[name, which] = peak_bytes(call, self.device)
        keep(self)
        progress.close()

    @property
    def rungs(self) -> list[str]:
        return [name for name, case in self.found.items() if case.rung and (name, FORWARD) in self.timings]


def _side_by_side(
    operator: Operator, shape: Any, setting: Setting, rounds: int, side: _SideBySide
) -> dict[str, Any]:
    """What is known at one shape, and no growth yet."""
    clock = "device" if setting.device == "cuda" else "cpu"
    time_of = {key: timing.median(clock) for key, timing in side.timings.items()}
    moved = {which: operator.bytes_moved(shape, setting.itemsize, which == BACKWARD) for which in PASSES}
    sizes = " ".join(f"--{name} {value}" for name, value in asdict(shape).items())
    return {
        "operator": operator.NAME,
        "command": f"python -m t2lib.bench {operator.NAME} {sizes} --device {setting.device}"
        f" --dtype {setting.dtype} --rounds {rounds}",
        "machine": {},
        "shape": asdict(shape) | {"device": setting.device},
        "dtype": setting.dtype,
        "clock": clock,
        "milliseconds": _of_pass(side.timings, FORWARD),
        "backward_milliseconds": _of_pass(side.timings, BACKWARD),
        "peak_bytes": {name: held for (name, which), held in side.memory.items() if which == FORWARD},
        "backward_peak_bytes": {
            name: held for (name, which), held in side.memory.items() if which == BACKWARD
        },
        "rungs": side.rungs,
        "bytes_moved": moved,
        "flops": operator.flops(shape),
        "copy_milliseconds": {which: time_of[COPY, which] for which in PASSES},
        "copy_gigabytes_per_second": {which: moved[which] / time_of[COPY, which] / 1e6 for which in PASSES},
        "gigaflops_per_second": side.product_flops / time_of[PRODUCT, FORWARD] / 1e6,
        "ratios": _ratios(operator, shape, setting, time_of, side),
        "growth": {},
        "growth_in_T": {},
        "left_out": dict(side.left_out),
    }


def _of_pass(timings: Mapping[Key, Timing], which: str) -> dict[str, dict[str, float]]:
    return {
        name: timing.as_dict()
        for (name, of), timing in timings.items()
        if of == which and name not in (COPY, PRODUCT)
    }


def _ratios(
    operator: Operator, shape: Any, setting: Setting, time_of: Mapping[Key, float], side: _SideBySide
) -> list[dict[str, Any]]:
    rows = []
    for bar in operator.BARS:
        which = FORWARD if bar.of == "memory" else bar.of
        running = [rung for rung in side.rungs if (rung, which) in time_of]
        if not running:
            continue
        best = min(running, key=lambda rung: time_of[rung, which])
        names = [best if name == BEST else name for name in (bar.slower, bar.faster)]
        if bar.of == "memory":
            if (names[0], FORWARD) not in side.memory:
                continue
            # The result of these operators is as large as a state.
            state = operator.state_bytes(shape, setting.itemsize)
            row = _row(bar, names, (side.memory[names[0], FORWARD] - state) / state, setting.device)
        elif all((name, which) in time_of for name in names):
            ratio = time_of[names[0], which] / time_of[names[1], which]
            row = _row(bar, names, ratio, setting.device)
        else:
            continue
        rows.append(row)
    return rows


def _row(bar: Bar, names: list[str], ratio: float, device: str) -> dict[str, Any]:
    row: dict[str, Any] = {"slower": names[0], "faster": names[1], "of": bar.of, "ratio": ratio}
    for key in ("at_least", "at_most") if device == bar.on else ():
        if (value := getattr(bar, key)) is not None:
            row[key] = float(value)
    return row


def _grow(
    operator: Operator, shape: Any, setting: Setting, name: str, rounds: int, clock: str
) -> dict[str, Any]:
    """The rungs at half the size, the size and twice the size, if there can be such, in the same rounds."""
    middle = getattr(shape, name)
    shapes = {}
    for size in sorted({max(1, middle // 2), middle, 2 * middle}):
        # Half a width may be one that its heads do not divide.
        with suppress(ValueError):
            shapes[size] = replace(shape, **{name: size})
    sizes = list(shapes)
    calls: dict[tuple[str, str, int], Function] = {}
    for size, grown in shapes.items():
        found, _ = cases(operator, grown, setting, only_rungs=True)
        for rung, case in found.items():
            calls[FORWARD, rung, size] = case.forward
            if case.backward is not None:
                calls[BACKWARD, rung, size] = case.backward
    progress = Progress((rounds + 1) * len(calls))
    named = {f"{rung}, {name} {size}, {which}": call for (which, rung, size), call in calls.items()}
    timings, _ = interleaved(named, rounds, progress, setting.device)
    progress.close()
    result: dict[str, Any] = {"name": name, "sizes": sizes, FORWARD: {}, BACKWARD: {}}
    for label, (which, rung, _) in zip(named, calls, strict=True):
        if label in timings:
            result[which].setdefault(rung, []).append(timings[label].median(clock))
    for which in PASSES:
        result[which] = {rung: times for rung, times in result[which].items() if len(times) == len(sizes)}
    del calls, named
    gc.collect()
    return result
