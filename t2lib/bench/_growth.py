"""How the times of the rungs grow with one size of an operator."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from t2lib.bench._case import BACKWARD, FORWARD, Function, Operator, Setting, cases
from t2lib.bench._measure import Progress, interleaved

PASSES = (FORWARD, BACKWARD)
# What twice the tokens may cost in a program that is linear in them, and of which operators that is a bar.
# The others are bound by memory: how they grow depends on what still fits into a cache.
BAND, BARRED = (1.6, 2.4), ("short_swa",)


def band(operator: str) -> tuple[float | None, float | None]:
    """The least and the most that twice the tokens may cost; None where that is shown and is no bar."""
    return BAND if operator in BARRED else (None, None)


def grow(
    operator: Operator, shape: Any, setting: Setting, letter: str, rounds: int, clock: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The rungs at half the size, the size and twice the size, if there can be such, in the same rounds.

    Returns medians and quartiles, and the rungs that failed with the reason.
    """
    name = operator.GROWTH[letter]
    growing = getattr(operator, "GROWING", {}).get(letter, operator)
    middle = getattr(shape, name)
    shapes = {}
    for size in sorted({max(1, middle // 2), middle, 2 * middle}):
        # Half a width may be one that its heads do not divide.
        with suppress(ValueError):
            shapes[size] = replace(shape, **{name: size})
    sizes = list(shapes)
    calls: dict[tuple[str, str, int], Function] = {}
    for size, grown in shapes.items():
        found, _ = cases(growing, grown, setting, only_rungs=True)
        for rung, case in found.items():
            calls[FORWARD, rung, size] = case.forward
            if case.backward is not None:
                calls[BACKWARD, rung, size] = case.backward
    progress = Progress((rounds + 1) * len(calls))
    named = {f"{rung}, {name} {size}, {which}": call for (which, rung, size), call in calls.items()}
    timings, failed = interleaved(named, rounds, progress, setting.device)
    progress.close()
    result: dict[str, Any] = {"name": name, "sizes": sizes}
    result |= {key: {which: {} for which in PASSES} for key in ("low", "high")}
    for which in PASSES:
        medians = {}
        for rung in dict.fromkeys(rung for of, rung, _ in calls if of == which):
            of_rung = [timings.get(f"{rung}, {name} {size}, {which}") for size in sizes]
            if all(of_rung):
                summaries = [timing.as_dict() for timing in of_rung if timing]
                medians[rung] = [summary[clock] for summary in summaries]
                for key in ("low", "high"):
                    result[key][which][rung] = [summary[f"{clock}_{key}"] for summary in summaries]
        result[which] = medians
    del calls, named
    gc.collect()
    return result, failed


def of_last(growth: Mapping[str, Any]) -> dict[str, float]:
    """What the last doubling of the size costs, forward, by rung."""
    return {rung: times[-1] / times[-2] for rung, times in growth[FORWARD].items() if len(times) > 1}
