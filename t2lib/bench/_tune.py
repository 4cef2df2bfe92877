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
from typing import Any
from unittest import mock

from t2lib.bench._case import FORWARD, Operator, Setting, cases
from t2lib.bench._measure import Progress, interleaved, machine

GAIN, STEPS = 0.97, 6
LIMITS = {"warps": (1, 16), "stages": (1, 4)}


def tune(operator: Operator, shape: Any, setting: Setting, *, rounds: int) -> list[dict[str, Any]]:
    """The configuration in use and the fastest one found, with backward, as records for a file."""
    kernels = importlib.import_module(f"t2lib.ops.{operator.NAME}.kernels")
    found, left_out = cases(operator, shape, setting, only_rungs=True)
    if "kernels" not in found or not hasattr(kernels, "pick_config"):
        print(f"{operator.NAME}: nothing to tune, {left_out.get('kernels', 'its kernels have no table')}")
        return []
    case = found["kernels"]
    call = case.backward or case.forward
    start = _in_use(kernels, call)
    best = fastest(start, lambda configs: _times(kernels, call, configs, rounds, setting.device))
    print(f"{operator.NAME}: {start} -> {best[0]}, {best[1]:.2f} of the time")
    record = {
        "operator": operator.NAME,
        "machine": machine(setting.device),
        "shape": asdict(shape),
        "dtype": setting.dtype,
        "passes": FORWARD if case.backward is None else "forward + backward",
        "in_use": start._asdict(),
        "fastest": best[0]._asdict(),
        "time_ratio": best[1],
    }
    return [record]


def fastest(start: Any, times: Callable[[list[Any]], dict[Any, float]]) -> tuple[Any, float]:
    """Walk from `start` to the fastest configuration near it; returns that and its share of the time."""
    best, share = start, 1.0
    for _ in range(STEPS):
        took = times([best, *neighbours(best)])
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


def _in_use(kernels: Any, call: Callable[[], Any]) -> Any:
    picked: list[Any] = []
    pick = kernels.pick_config

    def spy(*arguments: Any, **keywords: Any) -> Any:
        picked.append(pick(*arguments, **keywords))
        return picked[-1]

    with mock.patch.object(kernels, "pick_config", spy):
        call()
    return picked[0]


def _times(
    kernels: Any, call: Callable[[], Any], configs: list[Any], rounds: int, device: str
) -> dict[Any, float]:
    """Milliseconds of each configuration that launches; one that does not is left out."""

    def forced(config: Any) -> Callable[[], Any]:
        def run() -> Any:
            with mock.patch.object(kernels, "pick_config", return_value=config):
                return call()

        return run

    calls = {str(config): forced(config) for config in configs}
    progress = Progress((rounds + 1) * len(calls))
    timings, _ = interleaved(calls, rounds, progress, device)
    progress.close()
    clock = "device" if device == "cuda" else "cpu"
    return {config: timings[str(config)].median(clock) for config in configs if str(config) in timings}
