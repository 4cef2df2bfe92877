"""Look for faster configurations of the kernels on the GPU at hand, for the table that the library reads.

Each operator's `kernels.pick_config` gives a tuple of named sizes: by a rule, or what the table says. From
there the tuner walks: it halves and doubles one size at a time, leaves out what does not launch or computes
something else, times the neighbours beside the best so far, and moves while one is faster by more than 3 %.
What it finds holds for the chip and for the arguments of `pick_config`; `t2lib.ops._configs` rewrites the
table with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any
from unittest import mock

from t2lib.bench._case import Operator, Setting, cases
from t2lib.bench._measure import Progress, interleaved, machine, sentence
from t2lib.ops._configs import Record, entry

GAIN, STEPS = 0.97, 6
LIMITS = {"warps": (1, 16), "stages": (1, 4)}
# How far two configurations may differ, root mean square: they add in another order.
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}


def tune(operator: Operator, shape: Any, setting: Setting, *, rounds: int) -> list[Record]:
    """A record for every entry that the call looks up, forward and backward, and that can be faster."""
    found, left_out = cases(operator, shape, setting, only_rungs=True)
    if "kernels" not in found:
        print(f"{operator.NAME}: nothing to tune, {left_out['kernels']}")
        return []
    kernels = importlib.import_module(f"t2lib.ops.{operator.NAME}.kernels")
    case = found["kernels"]
    call = case.backward or case.forward
    records = []
    for name, start in in_use(kernels, call).items():
        best, share = fastest(start, partial(times, kernels, call, name, start, setting, rounds=rounds))
        print(f"{operator.NAME}, {name}: {start} -> {best}, {share:.2f} of the time", flush=True)
        if best != start:
            records.append(
                {
                    "operator": operator.NAME,
                    "entry": name,
                    "config": best._asdict(),
                    "before": start._asdict(),
                    "time_ratio": share,
                    "shape": asdict(shape),
                    "dtype": setting.dtype,
                    "machine": machine(setting.device),
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
    """What `pick_config` gave in one call, by the names of the entries that it was asked for."""
    picked: dict[str, Any] = {}
    with _watched(kernels, picked, {}):
        call()
    return picked


def times(
    kernels: Any, call: Callable[[], Any], name: str, start: Any, setting: Setting, configs: list[Any],
    *, rounds: int,
) -> dict[Any, float]:  # fmt: skip
    """Milliseconds with each configuration in place of one entry; only those that agree with `start`."""

    def forced(config: Any) -> Callable[[], Any]:
        def run() -> Any:
            with _watched(kernels, {}, {name: config}):
                return call()

        return run

    want = _tensors(forced(start)())
    calls = {}
    for config in configs:
        fault = _fault(forced(config), want, TOLERANCE[setting.dtype])
        if fault:
            print(f"  {config} left out: {fault}")
        else:
            calls[str(config)] = forced(config)
    progress = Progress((rounds + 1) * len(calls))
    timings, _ = interleaved(calls, rounds, progress, setting.device)
    progress.close()
    clock = "device" if setting.device == "cuda" else "cpu"
    return {config: timings[str(config)].median(clock) for config in configs if str(config) in timings}


def _fault(call: Callable[[], Any], want: list[Any], tolerance: float) -> str:
    """Why a configuration is no candidate: it does not launch, or its results are others; "" if it is."""
    from t2lib.ops._kernel_cases import error

    try:
        got = _tensors(call())
        worst = max(error(one, other.double()) for one, other in zip(got, want, strict=True))
    except Exception as raised:
        return sentence(raised)
    return "" if worst <= tolerance else f"its results differ by {worst:.1e}"


def _tensors(results: Any) -> list[Any]:
    """The tensors of a result and its gradients, in order."""
    if isinstance(results, (list, tuple)):
        return [x for part in results for x in _tensors(part)]
    return [results.detach()]


def _watched(kernels: Any, picked: dict[str, Any], instead: dict[str, Any]) -> Any:
    """`pick_config` in a context: `picked` is filled with what it gives, `instead` replaces entries."""
    pick = kernels.pick_config

    def watch(*arguments: Any, **keywords: Any) -> Any:
        name = entry(*arguments, **keywords)
        picked[name] = instead.get(name) or pick(*arguments, **keywords)
        return picked[name]

    return mock.patch.object(kernels, "pick_config", watch)
