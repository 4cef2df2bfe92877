"""The table of configurations replaces what a rule says, entry by entry, and refuses what is no table."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from t2lib.ops import _configs
from t2lib.ops._registry import OPERATORS


class Config(NamedTuple):
    rows: int
    held: bool
    warps: int


@_configs.tabled("depth_mix")
def pick_config(capability, width, *, summed=False, aligned=True):
    return Config(width, summed, 4)


def record(entry="(9, 0), 64, aligned=True, summed=False", operator="depth_mix", **config):
    return {"operator": operator, "entry": entry, "config": {"rows": 8, "held": True, "warps": 2} | config}


@pytest.fixture
def table(tmp_path, monkeypatch):
    path = tmp_path / "configs.json"
    monkeypatch.setattr(_configs, "TABLE", path)
    _configs._entries.cache_clear()
    yield path
    monkeypatch.undo()
    _configs._entries.cache_clear()


def test_an_entry_holds_for_its_arguments_alone(table):
    _configs.rewrite(table, [record(), record("(9, 0), 64", "short_conv", rows=1)])
    assert pick_config((9, 0), 64, summed=False, aligned=True) == Config(8, True, 2)
    assert pick_config((9, 0), 64, aligned=True, summed=False) == Config(8, True, 2)
    for other in (((8, 0), 64, False), ((9, 0), 65, False), ((9, 0), 64, True)):
        capability, width, summed = other
        config = pick_config(capability, width, summed=summed, aligned=True)
        assert config == Config(width, summed, 4), "the rule"


def test_rewriting_keeps_the_other_entries(table):
    first, second = record(), record("(8, 0), 64, aligned=True, summed=False", rows=2)
    _configs.rewrite(table, [first, second])
    newer = record(rows=16)
    _configs.rewrite(table, [newer])
    assert _configs.read(table) == [second, newer]
    # What is read is what was written last, in the same process as well.
    assert pick_config((9, 0), 64, summed=False, aligned=True).rows == 16
    assert [path.name for path in table.parent.iterdir()] == [table.name]


@pytest.mark.parametrize(
    "written",
    ["", "{}", "[1]", json.dumps([record() | {"operator": "none"}]), json.dumps([record(rows=0)])],
)
def test_what_is_no_table(table, written):
    table.write_text(written)
    for call in (lambda: _configs.read(table), lambda: pick_config((9, 0), 64)):
        with pytest.raises(ValueError, match=r"must hold a list of records with operator, entry and config"):
            call()
    with pytest.raises(ValueError, match="must hold a list"):
        _configs.rewrite(table, [record()])
    assert table.read_text() == written


def test_sizes_of_another_kernel(table):
    one = record()
    one["config"] = {"columns": 8, "warps": 2}
    _configs.rewrite(table, [one])
    with pytest.raises(ValueError, match="must give rows, held, warps for depth_mix; got columns, warps"):
        pick_config((9, 0), 64, summed=False, aligned=True)


def test_the_shipped_table_says_where_it_was_measured():
    for one in _configs.read(_configs.TABLE):
        assert one["operator"] in OPERATORS
        assert {"before", "time_ratio", "shape", "dtype", "machine"} <= one.keys()
        assert one["time_ratio"] < 1
        assert {"device", "triton", "date", "commit"} <= one["machine"].keys()
