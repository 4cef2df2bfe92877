"""The tables of the bench: what is said of a ratio, of a spread, of a run that was cut short."""

import pytest

from t2lib.bench import _plot, _ratios, _runner, _table, depth_mix, streams
from t2lib.bench._case import BACKWARD, FORWARD, Bar, Setting


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.01234, "0.0123"), (0.5, "0.500"), (9.999, "10.0"), (1.0, "1.00"),
        (12.345, "12.3"), (999.6, "1000"), (4053.84, "4054"), (0, "0"),
    ],
)  # fmt: skip
def test_three_significant_digits_written_out(number, shown):
    assert _table.digits(number) == shown


def test_a_ratio_that_misses_its_bar_is_marked():
    row = _ratios.row(Bar("a", "b", at_most=1.2), ["a", "b"], 1.3, "cpu")
    assert _table.ratio_line(row).endswith("1.30   (at most 1.2)   <- missed")
    assert row["met"] is False
    elsewhere = _ratios.row(Bar("a", "b", at_most=1.2, on="cuda"), ["a", "b"], 1.3, "cpu")
    assert _table.ratio_line(elsewhere).endswith("1.30")
    assert elsewhere["met"] is elsewhere["at_most"] is None
    memory = _ratios.row(Bar("a", "one state", at_most=1, of="memory"), ["a", "one state"], 0.5, "cpu")
    assert "memory of a beyond its result / one state" in _table.ratio_line(memory)
    missing = _ratios.row(Bar("a", "b", at_least=2), ["a", "b"], None, "cpu")
    assert _table.ratio_line(missing).endswith("not measured   (at least 2)")


def test_growth_outside_its_band_is_marked():
    setting = Setting(compiled=False)
    shape = depth_mix.Shape(tokens=8, width=8, states=3)
    result = _runner.measure(depth_mix, shape, setting, rounds=1, growth=False)
    grown = result | {"growth_in_T": {"arrays": 3.88, "eager": 2.0}}
    assert sum(line.endswith("3.88") for line in _table.lines(grown)) == 1, "shown, and no bar"
    lines = list(_table.lines(grown | {"operator": "short_swa"}))
    assert sum(line.endswith("3.88   (1.6 to 2.4)   <- missed") for line in lines) == 1
    assert sum(line.endswith("2.00   (1.6 to 2.4)") for line in lines) == 1


def test_a_fast_case_is_not_rounded_to_nothing():
    timing = {"wall": 0.05, "device": 0.01234, "device_low": 0.0121, "device_high": 0.0131, "rounds": 2}
    result = {
        "clock": "device", "milliseconds": {"kernels": timing}, "peak_bytes": {}, "rounds": 15,
        "bytes_moved": {FORWARD: 48_000_000}, "copy_milliseconds": {FORWARD: 0.0111},
        "copy_gigabytes_per_second": {FORWARD: 4324.0},
        "copy": {FORWARD: {"device_low": 0.0110, "device_high": 0.0112}},
    }  # fmt: skip
    first, _, row = _table._timings(result, FORWARD)
    assert first.endswith("a copy takes 0.0111 ms (0.0110 - 0.0112), 4324 GB/s")
    assert row.split() == ["kernels", "0.0123", "0.0121", "-", "0.0131", "0.0500", "3890", "90"]
    growth = {"name": "tokens", "sizes": [1], FORWARD: {"kernels": [0.00512]}, BACKWARD: {}}
    growth |= {"low": {FORWARD: {"kernels": [0.005]}}, "high": {FORWARD: {"kernels": [0.006]}}}
    assert list(_table._growth(growth, "GPU"))[1].endswith(" 0.00512 (0.00500 - 0.00600)")
    assert _table.rounds(result) == "cut short after 2 of 15 rounds"


def test_both_passes_are_compared_with_an_earlier_run():
    timing = {"wall": 2.0, "cpu": 2.0}
    now = {"clock": "cpu", "shape": {}, "dtype": "float32", "milliseconds": {"eager": timing}}
    now["backward_milliseconds"] = {"eager": timing, "new": timing}
    before = {**now, "machine": {"date": "2026-01-01"}, "milliseconds": {"eager": {"cpu": 1.0}}}
    before["backward_milliseconds"] = {"eager": {"cpu": 4.0}}
    lines = list(_table.compared(now, before))
    assert [line.split()[-1] for line in lines[1:]] == ["2.00", "0.50"]
    assert FORWARD in lines[1]
    assert BACKWARD in lines[2]


def test_streams_that_were_cut_short_are_shown_as_such():
    timing = {"wall": 2.0, "cpu": 2.0, "cpu_low": 1.9, "cpu_high": 2.1, "rounds": 1}
    result = {
        "operator": "streams", "machine": {}, "shape": {}, "dtype": "float32", "clock": "cpu", "rounds": 5,
        "backward_milliseconds": {"prenorm": timing}, "backward_peak_bytes": {}, "left_out": {},
        "ratio_to_plain": {"prenorm": 1.0}, "floor": {"prenorm": 1.0, "elc_bert": 1.1},
        "vectors": {"prenorm": 3.0}, "copy_gigabytes_per_second": 9.0, "gigaflops_per_second": 70.0,
    }  # fmt: skip
    lines = list(streams.lines(result))
    assert lines[1].endswith("float32, cut short after 1 of 5 rounds")
    assert lines[-1] == "not measured: elc_bert"


def test_plots_name_device_and_dtype(tmp_path, monkeypatch):
    drawn = []
    figure = _plot.figures.figure

    def kept(*arguments, **options):
        made = figure(*arguments, **options)
        drawn.append(made[0])
        return made

    monkeypatch.setattr(_plot.figures, "figure", kept)
    shape = depth_mix.Shape(tokens=8, width=8, states=4)
    result = _runner.measure(depth_mix, shape, Setting(dtype="float16", compiled=False), rounds=1)
    result["machine"]["device"] = "Some CPU"
    stream = {"operator": "streams", "clock": "cpu", "machine": result["machine"], "dtype": "bfloat16"}
    stream |= {"ratio_to_plain": {"prenorm": 1.0}, "floor": {"prenorm": 1.0}}
    assert len(_plot.draw([result, stream], tmp_path)) == 3
    growth, roofline, ratios = drawn
    assert growth.get_suptitle() == "depth_mix, Some CPU, float16"
    assert roofline.axes[0].get_title(loc="left").endswith("Some CPU, float16")
    assert ratios.axes[0].get_title(loc="left").endswith("Some CPU, bfloat16")
