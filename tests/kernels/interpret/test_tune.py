"""The tuner on the kernels of every operator: what it finds computes the same, and is taken from then on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from t2lib.bench import _case, _tune
from t2lib.bench._case import Setting
from t2lib.bench._measure import Timing
from t2lib.ops import _configs
from t2lib.ops._registry import OPERATORS

TINY = {
    "tokens": 12,
    "width": 16,
    "heads": 1,
    "window": 4,
    "states": 3,
    "streams": 2,
    "channels": 2,
    "taps": 3,
}
SETTING = Setting(compiled=False)


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of its own; kernels are candidates in the interpreter too, and fewer warps take less time."""
    path = tmp_path / "configs.json"
    path.write_text("[]")
    monkeypatch.setattr(_configs, "TABLE", path)
    _configs._entries.cache_clear()
    rungs = _case.rungs
    monkeypatch.setattr(_case, "rungs", lambda *asked: rungs(*asked) | {"kernels": ""})

    def interleaved(calls: dict[str, Any], *_: Any) -> tuple[dict[str, Timing], dict[str, str]]:
        took = {
            config: float(config.partition("warps=")[2].partition(",")[0].rstrip(")")) for config in calls
        }
        return {config: Timing({"cpu": [time], "wall": [time]}) for config, time in took.items()}, {}

    monkeypatch.setattr(_tune, "interleaved", interleaved)
    monkeypatch.setattr(_tune, "STEPS", 1)
    yield path
    monkeypatch.undo()
    _configs._entries.cache_clear()


def tuned(name: str) -> list[_configs.Record]:
    module = importlib.import_module(f"t2lib.bench.{name}")
    sizes = {size: number for size, number in TINY.items() if hasattr(module.Shape(), size)}
    return _tune.tune(module, module.Shape(**sizes), SETTING, rounds=1)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_found_is_taken(name: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = importlib.import_module(f"t2lib.ops.{name}.kernels")
    # As on a chip, where the rules give more than one warp.
    rule = kernels.pick_config
    busy = _configs.tabled(name)(lambda *given, **options: rule(*given, **options)._replace(warps=2))
    monkeypatch.setattr(kernels, "pick_config", busy)
    records = tuned(name)
    assert records
    for record in records:
        assert (record["before"]["warps"], record["config"]["warps"]) == (2, 1)
        assert record["time_ratio"] == 1 / 2
    _configs.rewrite(table, records)
    # From the table on there is nothing left to find.
    assert tuned(name) == []


def test_a_configuration_that_computes_something_else_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = importlib.import_module("t2lib.ops.depth_mix.kernels")
    launch = kernels._triton.launch

    def wrong(*given: Any, warps: int, **options: Any) -> None:
        launch(*given, warps=warps, **options)
        # The result of the forward pass; backward has none of that name.
        if warps == 1 and "z" in given[3]:
            given[3]["z"].mul_(1.01)

    rule = kernels.pick_config
    monkeypatch.setattr(kernels, "pick_config", lambda *a, **b: rule(*a, **b)._replace(warps=2))
    monkeypatch.setattr(kernels._triton, "launch", wrong)
    # The forward pass keeps what it had; the sums of the backward pass have an entry of their own.
    assert [record["entry"] for record in tuned("depth_mix")] == ["(0, 0), 16, 1, summed=True"]
    assert "left out: its results differ by" in capsys.readouterr().out
