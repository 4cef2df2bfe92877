"""The page of measurements: what it shows of a record, and what it says where there is none."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
measured_pages = importlib.import_module("measured_pages")


@pytest.fixture
def folder(tmp_path):
    timing = {"wall": 2.0, "cpu": 2.0, "rounds": 3}
    machine = {"device": "a machine", "torch": "2.9", "triton": "3.7", "date": "2026-01-02", "commit": "abc"}
    ratio = {"slower": "einsum", "faster": "eager", "of": "forward + backward", "ratio": 2.5}
    record = {
        "operator": "depth_mix",
        "machine": machine,
        "shape": {"tokens": 8, "device": "cpu"},
        "dtype": "float32",
        "clock": "cpu",
        "milliseconds": {"eager": timing, "einsum": {**timing, "cpu": 4.0}},
        "backward_milliseconds": {"eager": {**timing, "cpu": 5.0}},
        "peak_bytes": {"eager": 3e6},
        "backward_peak_bytes": {"eager": 7e6},
        "rungs": ["eager"],
        "bytes_moved": {"forward": 1, "forward + backward": 3},
        "copy_milliseconds": {"forward": 1.0, "forward + backward": 3.0},
        "ratios": [{**ratio, "at_least": 3.0}, ratio, {**ratio, "of": "forward", "at_least": 2.0}],
        "left_out": {"numba, loops": "numba is not installed", "loops": "the definition"},
    }
    (tmp_path / "depth_mix-cpu.json").write_text(json.dumps(record))
    return tmp_path


def test_bars_say_whether_they_are_kept(folder):
    lines = list(measured_pages.bars(folder))
    assert "| `depth_mix` | einsum / eager, with backward | 2.50 | ≥ 3 | **no** |" in lines
    assert "| `depth_mix` | einsum / eager | 2.50 | ≥ 2 | yes |" in lines
    assert "| `short_conv` | | not yet measured | | |" in lines
    # The ratio that has no bar is left out.
    assert sum("depth_mix" in line for line in lines) == 2


def test_times_stand_beside_the_floor(folder):
    lines = list(measured_pages.operators("cpu", folder))
    assert "| *floor: a copy of as many bytes* | 1.00 | 100 % | | 3.00 | 100 % | |" in lines
    assert "| **eager** | 2.00 | 50 % | 3.0 | 5.00 | 60 % | 7.0 |" in lines
    assert "| einsum | 4.00 | 25 % |  |  |  |  |" in lines
    assert "Not timed: numba, loops (numba is not installed)." in lines
    assert "a machine, torch 2.9, triton 3.7, 2026-01-02, commit abc: tokens 8, float32." in lines


def test_without_a_record_the_floor_stands_alone(folder):
    lines = list(measured_pages.operators("gpu", folder))
    assert sum(line.startswith("Not yet measured.") for line in lines) == len(measured_pages.OPERATORS)
    # 25 states of 16384 x 2048 numbers of 2 bytes.
    assert "| forward | 1678 MB | 1.68 ms |" in lines
    assert "On a GPU: not yet measured." in list(measured_pages.streams(folder))


def test_the_stored_records_can_be_shown():
    assert measured_pages.records()
    for device in ("cpu", "gpu"):
        assert list(measured_pages.operators(device))
    assert list(measured_pages.bars())
    assert list(measured_pages.streams())
