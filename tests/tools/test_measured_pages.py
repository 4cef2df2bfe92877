"""The page of measurements: what it shows of a record, and what it says where there is none."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
measured_pages = importlib.import_module("measured_pages")
measured_records = importlib.import_module("measured_records")


def plain(lines):
    """Without what keeps a line from breaking."""
    return [line.replace("\N{NO-BREAK SPACE}", " ").replace("\N{WORD JOINER}", "") for line in lines]


PASSES = ("forward", "forward + backward")


def record(device="cpu"):
    clock = "cpu" if device == "cpu" else "device"

    def timing(time):
        return {
            "wall": 9.0,
            clock: time,
            f"{clock}_low": time - 0.1,
            f"{clock}_high": time + 0.2,
            "rounds": 3,
        }

    name = "a machine" if device == "cpu" else "NVIDIA T4"
    machine = {"device": name, "torch": "2.9", "triton": "3.7", "date": "2026-01-02", "commit": "abc"}
    ratio = {"slower": "stack and einsum", "faster": "eager", "of": PASSES[1], "ratio": 0.9, "at_least": 1.0}
    return {
        "operator": "depth_mix",
        "machine": machine,
        "shape": {"tokens": 8, "device": device},
        "dtype": "float32",
        "clock": clock,
        "rounds": 3,
        "milliseconds": {"eager": timing(2.0), "einsum": timing(4.0)},
        "backward_milliseconds": {"eager": timing(5.0)},
        "peak_bytes": {"eager": 3e6},
        "backward_peak_bytes": {"eager": 7e6},
        "rungs": ["eager"],
        "bytes_moved": {"forward": 1, "forward + backward": 3},
        "flops": 1e6,
        "gigaflops_per_second": 100.0,
        "copy": {"forward": timing(1.0)},
        "copy_milliseconds": {"forward": 1.0, "forward + backward": 3.0},
        "ratios": [ratio, ratio | {"of": "forward", "ratio": 2.5}, ratio | {"slower": "other"}],
        "growth": {},
        "growth_in_T": {"eager": 3.88, "arrays": 2.0},
        "left_out": {"numba, loops": "numba is not installed", "loops": "the definition"},
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # As if how it grows were a bar of this operator too.
    monkeypatch.setattr(measured_records, "band", lambda operator: (1.6, 2.4))
    (tmp_path / "depth_mix-cpu.json").write_text(json.dumps(record()))
    return tmp_path


def test_bars_say_whether_they_are_kept(folder):
    lines = plain(measured_records.bars("cpu", folder))
    for row in (
        "stack and einsum / eager, with backward | 0.90 | not measured | ≥ 1 | **no** |",
        "stack and einsum / eager | 2.50 | not measured | ≥ 1 | yes |",
        "eager, twice the tokens | 3.88 | not measured | 1.6 to 2.4 | **no** |",
        "arrays, twice the tokens | 2.00 | not measured | 1.6 to 2.4 | yes |",
        # The bar whose ratio the record lacks is there; the ratio that has no bar is left out.
        "best rung / tensordot, stack given | not measured | not measured | ≤ 1.2 |  |",
    ):
        assert f"| `depth_mix` | {row}" in lines
    assert "| `short_conv` | conv1d / best rung | not yet measured | not yet measured | ≥ 1 |  |" in lines
    assert sum("depth_mix" in line for line in lines) == 5


def test_growth_is_a_bar_of_short_swa_alone(folder, monkeypatch):
    monkeypatch.undo()
    assert not any("twice the tokens" in line for line in measured_records.bars("cpu", folder))
    (folder / "short_swa-cpu.json").write_text(json.dumps(record() | {"operator": "short_swa"}))
    lines = plain(measured_records.bars("cpu", folder))
    assert "| `short_swa` | eager, twice the tokens | 3.88 | not measured | 1.6 to 2.4 | **no** |" in lines


def test_kept_memory_stands_beside_and_judges_growth(folder):
    kept = record() | {"memory": "kept", "growth_in_T": {"eager": 2.01}}
    kept["ratios"] = [ratio | {"ratio": ratio["ratio"] + 1} for ratio in kept["ratios"]]
    kept["growth"] = {"T": {"name": "tokens", "sizes": [4, 8], "forward": {"eager": [1.0, 2.0]}}}
    kept["growth"]["T"]["forward + backward"] = {}
    (folder / "depth_mix-cpu-kept.json").write_text(json.dumps(kept))
    lines = plain(measured_records.bars("cpu", folder))
    # The bar is that of the run as a program meets it.
    assert "| `depth_mix` | stack and einsum / eager, with backward | 0.90 | 1.90 | ≥ 1 | **no** |" in lines
    assert "| `depth_mix` | eager, twice the tokens | 3.88 | 2.01 | 1.6 to 2.4 | yes |" in lines
    assert "| `depth_mix` | arrays, twice the tokens | 2.00 | not measured | 1.6 to 2.4 | yes |" in lines
    shown = plain(measured_pages.operator("cpu", "depth_mix", folder))
    assert ":::{dropdown} How it grows with T, with memory kept" in shown
    # The times are those of one record, not of both.
    assert sum(line.startswith("| **eager** |") for line in shown) == 1


@pytest.mark.parametrize(("measured", "said"), [(False, "not yet measured"), (True, "not measured")])
def test_bars_of_a_gpu_are_listed_though_no_kernel_was_timed(measured, said, folder):
    if measured:
        (folder / "depth_mix-t4.json").write_text(json.dumps(record("cuda")))
    lines = [line for line in plain(measured_records.bars("gpu", folder)) if "`depth_mix`" in line]
    where = ", NVIDIA T4" if measured else ""
    for slower, bar in (
        ("copy of as many bytes", "0.8"),
        ("sum of products, compiled", "1"),
        ("compiled", "1"),
    ):
        for end in ("", ", with backward"):
            assert f"| `depth_mix` | {slower} / kernels{end}{where} | {said} | ≥ {bar} |  |" in lines
    assert any("twice the tokens" in line for line in lines) == measured


def test_times_stand_beside_the_floor(folder):
    lines = plain(measured_pages.operator("cpu", "depth_mix", folder))
    first = "| *floor: a copy of as many bytes* | 1.00 (0.900–1.20) | 100 % |  | 3.00 | 100 % |  |"
    assert first in lines
    assert "| **eager** | 2.00 (1.90–2.20) | 50 % | 3.00 | 5.00 (4.90–5.20) | 60 % | 7.00 |" in lines
    assert "| einsum | 4.00 (3.90–4.20) | 25 % |  |  |  |  |" in lines
    assert "Not timed: numba, loops (numba is not installed)." in lines
    where = "a machine, torch 2.9, triton 3.7, 2026-01-02, commit abc"
    assert f"{where}: tokens 8, float32, 3 round(s)." in lines


def test_the_floor_is_the_larger_of_bytes_and_flops(folder):
    bound = record() | {"flops": 150e6}
    (folder / "depth_mix-cpu.json").write_text(json.dumps(bound))
    lines = plain(measured_pages.operator("cpu", "depth_mix", folder))
    # 150 MFLOP at 100 GFLOP/s, and three times that with backward.
    product = "| *floor: a matrix product of as many FLOPs* | 1.50 | 100 % |  | 4.50 | 100 % |  |"
    assert product in lines
    assert "| **eager** | 2.00 (1.90–2.20) | 75 % | 3.00 | 5.00 (4.90–5.20) | 90 % | 7.00 |" in lines


def test_growth_is_shown_with_its_spread(folder):
    growth = {"name": "depth_window", "sizes": [2, 4, 8], "forward": {"eager": [1.0, 2.0, 4.0]}}
    growth |= {
        "low": {"forward": {"eager": [0.9, 1.9, 3.9]}},
        "high": {"forward": {"eager": [1.1, 2.1, 4.1]}},
    }
    short = {"name": "width", "sizes": [3, 6], "forward": {"eager": [1.0, 0.001234]}, PASSES[1]: {}}
    grown = record() | {"growth": {"K": growth | {PASSES[1]: {}}, "d": short}}
    (folder / "depth_mix-cpu.json").write_text(json.dumps(grown))
    lines = plain(measured_pages.operator("cpu", "depth_mix", folder))
    assert ":::{dropdown} How it grows with K, d" in lines
    assert "| **K**, depth window | 2 | 4 | 8 |" in lines
    assert "| eager | 1.00 (0.900–1.10) | 2.00 (1.90–2.10) | 4.00 (3.90–4.10) |" in lines
    assert "| eager | 1.00 | 0.00123 |  |" in lines


def test_a_run_that_was_cut_short_says_so(folder):
    (folder / "depth_mix-cpu.json").write_text(json.dumps(record() | {"rounds": 15}))
    assert any(
        "cut short after 3 of 15 rounds" in line
        for line in measured_pages.operator("cpu", "depth_mix", folder)
    )


def test_without_a_record_the_floor_stands_alone(folder):
    lines = plain(measured_pages.operator("gpu", "depth_mix", folder))
    assert lines[0].startswith("Not yet measured.")
    # 25 states of 16384 x 2048 numbers of 2 bytes.
    assert "| | bytes that have to move | T4, 0.32 TB/s | A100, 2 TB/s | H200, 4.8 TB/s |" in lines
    assert "| forward | 1678 MB | 5.24 ms | 0.839 ms | 0.350 ms |" in lines
    assert "On a GPU: not yet measured." in list(measured_pages.streams(folder))


def test_streams_of_a_run_that_was_cut_short(folder):
    timing = {"wall": 2.0, "cpu": 2.0, "cpu_low": 1.9, "cpu_high": 2.1, "rounds": 1}
    cut = record() | {
        "operator": "streams", "milliseconds": {}, "backward_peak_bytes": {}, "rounds": 5, "left_out": {},
        "backward_milliseconds": {"prenorm": timing, "elc_bert": timing | {"cpu": 3.0}},
        "ratio_to_plain": {"prenorm": 1.0, "elc_bert": 1.5},
        "floor": {"prenorm": 1.0, "elc_bert": 1.01, "deep_delta": 1.02},
        "vectors": {"prenorm": 3.0, "elc_bert": 5.0, "deep_delta": 6.0},
    }  # fmt: skip
    (folder / "streams-cpu.json").write_text(json.dumps(cut))
    lines = plain(measured_pages.streams(folder))
    assert lines[0].endswith("cut short after 1 of 5 rounds.")
    assert "| prenorm | 1.00 | 0.95–1.05 | 1.00 | not measured | 3 |" in lines
    assert "| deep delta | not measured |  | 1.02 | not measured | 6 |" in lines


def test_the_page_shows_every_operator_under_a_heading_of_its_own():
    page = (ROOT / "book" / "measured.md").read_text(encoding="utf-8")
    for device in ("cpu", "gpu"):
        for name in measured_records.OPERATORS:
            assert f"### `{name}`\n\n:::{{measured-operator}} {device} {name}\n:::" in page
    assert re.search(r"More than 100 % can be right: a copy writes half", page)


def test_the_stored_records_can_be_shown():
    assert measured_records.records()
    for device in ("cpu", "gpu"):
        for name in measured_records.OPERATORS:
            assert plain(measured_pages.operator(device, name))
        assert list(measured_records.bars(device))
    assert list(measured_pages.streams())
