"""Measure one operator: its rungs and peers side by side, how they grow, and the ratios that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from t2lib.bench._arguments import option
from t2lib.bench._case import BACKWARD, COPY, FORWARD, Function, Operator, Setting, cases
from t2lib.bench._growth import PASSES, grow, of_last
from t2lib.bench._measure import (
    Progress,
    Timing,
    copying,
    interleaved,
    machine,
    multiplying,
    peak_bytes,
    sentence,
)
from t2lib.bench._ratios import Key, ratios
from t2lib.ops._registry import RUNGS

PRODUCT = "matrix product"


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
    for letter in operator.GROWTH if growth else ():
        result["growth"][letter], failed = grow(operator, shape, setting, letter, rounds, clock)
        result["left_out"] |= failed
        result["failed"] |= failed
        if letter == "T":
            result["growth_in_T"] = of_last(result["growth"]["T"])
        if keep:
            keep(result)
    return result


class _SideBySide:
    """Every case at one shape: forward, and forward with backward, in the same rounds as a copy."""

    def __init__(self, operator: Operator, shape: Any, setting: Setting) -> None:
        self.found, self.left_out = cases(operator, shape, setting)
        self.failed: dict[str, str] = {}
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
            self._fail(failed)
            keep(self)

        named = dict(zip(keys, self.calls.values(), strict=True))
        interleaved(named, rounds, progress, self.device, take)
        for label, (name, which) in keys.items():
            if name in self.found and (name, which) in self.timings and label not in self.left_out:
                progress.step(f"memory of {name}")
                try:
                    self.memory[name, which] = peak_bytes(named[label], self.device)
                except Exception as error:
                    self._fail({label: sentence(error)})
        keep(self)
        progress.close()

    def _fail(self, failed: Mapping[str, str]) -> None:
        self.left_out |= failed
        # A rung that is timed here is one that the ladder says runs here.
        self.failed |= {name: why for name, why in failed.items() if name.partition(",")[0] in RUNGS}

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
    sizes = " ".join(f"{option(name)} {value}" for name, value in asdict(shape).items())
    return {
        "operator": operator.NAME,
        "command": f"python -m t2lib.bench {operator.NAME} {sizes} --device {setting.device}"
        f" --dtype {setting.dtype} --rounds {rounds}",
        "machine": {},
        "shape": asdict(shape) | {"device": setting.device},
        "dtype": setting.dtype,
        "clock": clock,
        "rounds": rounds,
        "milliseconds": _of_pass(operator, shape, side, FORWARD),
        "backward_milliseconds": _of_pass(operator, shape, side, BACKWARD),
        "peak_bytes": {name: held for (name, which), held in side.memory.items() if which == FORWARD},
        "backward_peak_bytes": {
            name: held for (name, which), held in side.memory.items() if which == BACKWARD
        },
        "rungs": side.rungs,
        "bytes_moved": moved,
        "flops": operator.flops(shape),
        "copy": {which: side.timings[COPY, which].as_dict() for which in PASSES},
        "copy_milliseconds": {which: time_of[COPY, which] for which in PASSES},
        "copy_gigabytes_per_second": {which: moved[which] / time_of[COPY, which] / 1e6 for which in PASSES},
        "gigaflops_per_second": side.product_flops / time_of[PRODUCT, FORWARD] / 1e6,
        "ratios": ratios(operator, shape, setting, side.rungs, time_of, side.memory, side.found),
        "growth": {},
        "growth_in_T": {},
        "left_out": dict(side.left_out),
        "failed": dict(side.failed),
    }


def _of_pass(operator: Operator, shape: Any, side: _SideBySide, which: str) -> dict[str, dict[str, float]]:
    """The timings of one pass, with the bytes that each has to move in the numbers it computes with."""
    return {
        name: timing.as_dict()
        | {"bytes": operator.bytes_moved(shape, side.found[name].itemsize, which == BACKWARD)}
        for (name, of), timing in side.timings.items()
        if of == which and name in side.found
    }
