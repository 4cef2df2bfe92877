"""Look for a better entry of a kernel's table of configurations, on the GPU at hand.

Each operator's `kernels.pick_config` returns a tuple of named sizes. From what it picks, the tuner walks: it
halves and doubles one size at a time, times the neighbours beside the best so far, and moves while one is
faster by more than 3 %. What it finds holds for this chip, dtype and shape; the table itself is edited by
hand, after its tests have passed with the new entry.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any
from unittest import mock

from t2lib.bench._case import Operator, Setting, cases
from t2lib.bench._measure import Progress, interleaved, machine

GAIN, STEPS = 0.97, 6
LIMITS = {"warps": (1, 16), "stages": (1, 4)}


def tune(operator: Operator, shape: Any, setting: Setting, *, rounds: int) -> list[dict[str, Any]]:
    """For every entry that the call looks up, forward and backward: what is in use and the fastest found."""
    found, left_out = cases(operator, shape, setting, only_rungs=True)
    if "kernels" not in found:
        print(f"{operator.NAME}: nothing to tune, {left_out['kernels']}")
        return []
    kernels = importlib.import_module(f"t2lib.ops.{operator.NAME}.kernels")
    case = found["kernels"]
    call = case.backward or case.forward
    records = []
    for entry, start in in_use(kernels, call).items():
        measured = partial(times, kernels, call, entry, rounds=rounds, device=setting.device)
        best, share = fastest(start, measured)
        print(f"{operator.NAME}, {entry}: {start} -> {best}, {share:.2f} of the time")
        records.append(
            {
                "operator": operator.NAME,
                "machine": machine(setting.device),
                "shape": asdict(shape),
                "dtype": setting.dtype,
                "entry": entry,
                "in_use": start._asdict(),
                "fastest": best._asdict(),
                "time_ratio": share,
            }
        )
    return records


def fastest(start: Any, measured: Callable[[list[Any]], dict[Any, float]]) -> tuple[Any, float]:
    """Walk from `start` to the fastest configuration near it; returns that and its share of the time."""
    best, share = start, 1.0
    for _ in range(STEPS):
        took = measured([best, *neighbours(best)])
        if best not in took:
            break
        winner = min(took, key=lambda config: took[config])
        if winner == best or took[winner] > GAIN * took[best]:
            break
        best, share = winner, share * took[winner] / took[best]
    return best, share


def neighbours(config: Any) -> Iterator[Any]:
    """All that differ in one size by a factor of two; flags stay as they are."""
    for name, size in config._asdict().items():
        if isinstance(size, bool) or not isinstance(size, int):
            continue
        low, high = LIMITS.get(name, (1, 1 << 14))
        for other in (size // 2, 2 * size):
            if low <= other <= high:
                yield config._replace(**{name: other})


def in_use(kernels: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """What the table gave in one call, by the arguments it was asked with."""
    picked: dict[str, Any] = {}
    with _watched(kernels, picked, {}):
        call()
    return picked


def times(
    kernels: Any, call: Callable[[], Any], entry: str, configs: list[Any], *, rounds: int, device: str
) -> dict[Any, float]:
    """Milliseconds with each configuration in place of one entry; one that does not launch is left out."""

    def forced(config: Any) -> Callable[[], Any]:
        def run() -> Any:
            with _watched(kernels, {}, {entry: config}):
                return call()

        return run

    calls = {str(config): forced(config) for config in configs}
    progress = Progress((rounds + 1) * len(calls))
    timings, _ = interleaved(calls, rounds, progress, device)
    progress.close()
    clock = "device" if device == "cuda" else "cpu"
    return {config: timings[str(config)].median(clock) for config in configs if str(config) in timings}


def _watched(kernels: Any, picked: dict[str, Any], instead: dict[str, Any]) -> Any:
    """The table in a context: `picked` is filled with what it gives, `instead` replaces entries of it."""
    pick = kernels.pick_config

    def watch(*arguments: Any, **keywords: Any) -> Any:
        words = [*map(str, arguments), *(f"{name}={value}" for name, value in keywords.items())]
        entry = ", ".join(words)
        picked[entry] = instead.get(entry) or pick(*arguments, **keywords)
        return picked[entry]

    return mock.patch.object(kernels, "pick_config", watch)
