"""python -m t2lib.bench: all peers compute the same, and table and file say what was measured."""

import importlib
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from t2lib.bench import __main__ as command
from t2lib.bench import _case, _measure, _runner, _table, _tune, streams
from t2lib.bench._case import BACKWARD, FORWARD, Bar, Setting, cases
from t2lib.bench._measure import Progress, copying, interleaved, peak_bytes
from t2lib.ops import _configs

TINY = {
    "short_swa": {"tokens": 40, "width": 16, "heads": 2, "window": 8},
    "depth_mix": {"tokens": 12, "width": 16, "states": 5},
    "depth_attention": {"tokens": 12, "width": 16, "states": 5},
    "stream_mix": {"tokens": 12, "width": 16, "streams": 3},
    "delta_rewrite": {"tokens": 12, "width": 16, "channels": 3},
    "short_conv": {"tokens": 12, "width": 16, "taps": 3},
}
PLAIN = Setting(compiled=False)


def operator(name):
    module = importlib.import_module(f"t2lib.bench.{name}")
    return module, module.Shape(**TINY[name])


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for variable in (*command.THREADS, "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(variable, "1")


def test_every_operator_has_a_bench():
    from t2lib.ops import _registry

    assert set(command.OPERATORS) == set(_registry.OPERATORS) == set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_all_cases_compute_the_same(name):
    module, shape = operator(name)
    found, left_out = cases(module, shape, PLAIN)
    want = np.asarray(found["arrays"].forward())
    peers = [case for case in found.values() if not case.rung]
    assert {"arrays", "eager"} <= found.keys()
    assert len(peers) >= 2
    for label, case in found.items():
        assert np.abs(np.asarray(case.forward()) - want).max() < 2e-5, label
    assert all(left_out.values())


@pytest.mark.parametrize("name", TINY)
def test_all_gradients_are_the_same(name):
    module, shape = operator(name)
    found, _ = cases(module, shape, PLAIN)
    _, want = found["eager"].backward()
    for label, case in found.items():
        if case.backward is None or label == "tensordot, stack given":
            continue
        _, gradients = case.backward()
        assert len(gradients) == len(want)
        for gradient, right in zip(gradients, want, strict=True):
            # A peer that wants another layout has its gradients in that layout.
            right = right if gradient.shape == right.shape else right.transpose(1, 2)
            assert (gradient - right).abs().max() < 2e-4, label


@pytest.mark.parametrize("name", TINY)
def test_the_device_draws_inputs_as_numpy_does(name):
    import torch

    module, shape = operator(name)
    arrays, tensors = module.inputs(shape), module.inputs(shape, _case.normal_on("cpu", "bfloat16"))
    assert [tuple(x.shape) for x in tensors] == [x.shape for x in arrays]
    assert all(x.dtype == np.float32 for x in arrays)
    assert all(x.dtype == torch.bfloat16 and x.is_contiguous() for x in tensors)


def test_on_a_gpu_nothing_is_drawn_by_numpy(monkeypatch):
    import torch

    module, shape = operator("depth_mix")
    on = _case.normal_on
    monkeypatch.setattr(_case, "normal_on", lambda device, dtype: on("cpu", dtype))
    monkeypatch.setattr(np.random, "default_rng", None)
    found, left_out = cases(module, shape, Setting("cuda", "float16", compiled=False))
    assert found["eager"].forward().dtype == torch.float16
    assert left_out["NumPy tensordot, stack given"] == "runs on the CPU"


def test_the_upstream_gradient_is_made_before_the_clock(monkeypatch):
    import torch

    module, shape = operator("depth_mix")
    backward = cases(module, shape, PLAIN, only_rungs=True)[0]["eager"].backward
    backward()
    monkeypatch.setattr(torch, "ones_like", None)
    assert len(backward()[1]) == shape.states + 1


@pytest.mark.parametrize("name", TINY)
def test_bytes_and_bars_are_those_of_the_operator(name):
    module, shape = operator(name)
    found, _ = cases(module, shape, Setting())
    arrays = module.inputs(shape)
    result = np.asarray(found["arrays"].forward())
    once = sum(x.nbytes for x in arrays) + result.nbytes
    # Inputs once and the result once; weights that all tokens share may be left out.
    assert once * 0.9 <= module.bytes_moved(shape, 4, False) <= once
    assert module.bytes_moved(shape, 4, True) >= 2 * module.bytes_moved(shape, 4, False)
    assert module.bytes_moved(shape, 2, False) * 2 == module.bytes_moved(shape, 4, False)
    assert module.state_bytes(shape, 4) == result.nbytes
    peers = module.peers(shape, Setting())
    known = {*peers, _case.BEST, _case.COPY, "one state", "arrays", "eager", "kernels"}
    assert {name for bar in module.BARS for name in (bar.slower, bar.faster)} <= known
    assert set(module.GROWTH.values()) <= TINY[name].keys()


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    module, shape = operator("depth_mix")
    monkeypatch.setitem(sys.modules, "numba", None)
    found, left_out = cases(module, shape, PLAIN)
    assert left_out["numba, loops"] == "numba is not installed"
    assert "numba, loops" not in found


@pytest.mark.parametrize(
    ("name", "peer", "package"),
    [
        ("short_swa", "flash-attention", "flash_attn"),
        ("short_swa", "flash-linear-attention", "fla"),
        ("depth_attention", "flash-linear-attention", "fla"),
        ("depth_attention", "Liger-Kernel", "liger_kernel"),
        ("stream_mix", "Liger-Kernel", "liger_kernel"),
        ("short_conv", "flash-linear-attention", "fla"),
    ],
)
def test_peers_for_a_gpu_say_what_they_lack(name, peer, package, monkeypatch):
    module, _ = operator(name)
    monkeypatch.setitem(sys.modules, package, None)
    assert _case.missing(package, Setting("cuda")) == f"{package} is not installed"
    shape = module.Shape(**TINY[name])
    assert module.peers(shape, PLAIN)[peer] == f"{package} needs a CUDA device"


def test_a_broken_package_counts_as_absent(monkeypatch, tmp_path):
    (tmp_path / "broken_peer.py").write_text("raise OSError('libcudart.so is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    assert _case.missing("broken_peer") == "broken_peer is not installed"


def test_the_table_and_the_file(tmp_path, capsys):
    file = tmp_path / "result.json"
    small = [word for name, size in TINY["short_swa"].items() for word in (f"--{name}", str(size))]
    arguments = ["short_swa", *small, "--rounds", "2", "--no-compile"]
    assert command.main([*arguments, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "NumPy loop over positions / arrays" in table
    assert "forward + backward: " in table
    result = json.loads(file.read_text(encoding="utf-8"))
    assert set(result["machine"]) == {"device", "python", "numpy", "torch", "triton", "date", "commit"}
    assert result["milliseconds"]["eager"]["rounds"] == 2
    assert result["growth_in_T"].keys() == {"arrays", "eager"}
    assert result["growth"]["w"]["sizes"] == [4, 8, 16]
    assert result["backward_milliseconds"].keys() >= {"eager", "SDPA, band mask"}
    assert result["command"].startswith("python -m t2lib.bench short_swa --batch 1 --tokens 40")

    assert command.main(["--read", str(file), "--compare", str(file), "--plot", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    assert f"  {'eager, forward + backward':<58}{1:>7.2f}\n" in shown
    plots = {"growth-short_swa-cpu.png", "roofline-cpu.png"}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == plots

    # The same operator on another device has plots of its own.
    elsewhere = result | {"machine": result["machine"] | {"device": "NVIDIA T4"}, "clock": "device"}
    for which in ("milliseconds", "backward_milliseconds"):
        elsewhere[which] = {
            name: timing | {f"device{end}": timing[f"cpu{end}"] for end in ("", "_low", "_high")}
            for name, timing in result[which].items()
        }
    other = tmp_path / "other.json"
    other.write_text(json.dumps(elsewhere), encoding="utf-8")
    assert command.main(["--read", str(file), str(other), "--plot", str(tmp_path / "plots")]) == 0
    plots |= {name.replace("cpu", "nvidia-t4") for name in plots}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == plots


def test_the_streams(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(streams, "designs", lambda: {"prenorm": ("prenorm", {}), "elc": ("elc_bert", {})})
    monkeypatch.setattr(streams, "COPIED", {"cpu": 1 << 16})
    sizes = ["--blocks", "2", "--width", "16", "--tokens", "8", "--heads", "2", "--rounds", "1"]
    plots = ["--plot", str(tmp_path), "--json", str(tmp_path / "streams.json")]
    assert command.main(["streams", *sizes, "--no-compile", *plots]) == 0
    table = capsys.readouterr().out
    assert "tensordot, stack given" in table
    result = json.loads((tmp_path / "streams.json").read_text(encoding="utf-8"))
    assert result["ratio_to_plain"]["prenorm"] == result["floor"]["prenorm"] == 1
    assert result["floor"]["elc"] > 1
    assert (tmp_path / "streams-cpu.png").exists()


def test_what_is_there_is_kept_from_the_first_call_on():
    module, shape = operator("depth_mix")
    kept = []
    result = _runner.measure(module, shape, PLAIN, rounds=2, growth=False, keep=kept.append)
    # Beside the yardsticks, a case more with each first call; then all of them, a round more each time.
    assert [len(entry["milliseconds"]) for entry in kept[:4]] == [0, 1, 2, 3]
    assert [entry["milliseconds"]["eager"]["rounds"] for entry in kept[-3:]] == [1, 2, 2]
    assert kept[-1]["peak_bytes"]
    assert not kept[-2]["peak_bytes"]
    assert all("\n".join(_table.lines(entry)) for entry in kept)
    assert kept[-1] == result


def test_what_is_there_of_the_streams_is_kept_too(monkeypatch):
    monkeypatch.setattr(streams, "designs", lambda: {"elc": ("elc_bert", {}), "prenorm": ("prenorm", {})})
    monkeypatch.setattr(streams, "COPIED", {"cpu": 1 << 16})
    shape = streams.Shape(blocks=2, width=16, tokens=8, heads=2)
    kept = []
    streams.measure(shape, PLAIN, rounds=1, keep=kept.append)
    assert [set(entry["ratio_to_plain"]) for entry in kept[:2]] == [{"prenorm"}, {"prenorm", "elc"}]
    assert kept[-1]["backward_peak_bytes"].keys() == {"prenorm", "elc"}
    assert all("prenorm" in "\n".join(streams.lines(entry)) for entry in kept)


def test_every_design_stands_in_the_bench_of_streams():
    from t2lib.streams import STREAMS

    assert streams.designs().keys() >= STREAMS.keys()
    for name, options in streams.designs().values():
        STREAMS.check_options(name, options)


def test_rounds_are_interleaved():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    timings, failed = interleaved(calls, 2, Progress(6))
    assert order == list("aabbabab")
    assert timings.keys() == set("ab")
    assert not failed


def test_a_case_that_fails_is_left_out_with_its_reason():
    def fails():
        raise RuntimeError("out of memory\nand a long story")

    timings, failed = interleaved({"good": int, "bad": fails}, 1, Progress(4))
    assert timings.keys() == {"good"}
    assert failed == {"bad": "RuntimeError: out of memory"}


def test_times_on_a_gpu_are_those_between_two_events(monkeypatch):
    """With a stand-in for the GPU: the order of what is queued, and what becomes of the times."""
    import torch

    queued = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            queued.append("event")

        def elapsed_time(self, end):
            return 0.25

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(1, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: queued.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: queued.append("sleep"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    timings, _ = interleaved({"case": lambda: queued.append("call")}, 1, Progress(2), "cuda")
    assert queued[-8:] == ["wait", "call", "wait", "sleep", "event", "call", "event", "wait"]
    found = timings["case"].as_dict()
    assert found["device"] == found["device_low"] == found["device_high"] == 0.25
    assert found.keys() == {"wall", "device", "device_low", "device_high", "rounds"}


def test_on_a_gpu_numpy_is_left_out_and_the_bars_are_others():
    reasons = _case.rungs("depth_mix", Setting("cuda"))
    assert reasons["arrays"] == "NumPy runs on the CPU"
    assert reasons["eager"] == ""
    for name in TINY:
        module, _ = operator(name)
        bars = [bar for bar in module.BARS if bar.on == "cuda"]
        # They are the kernels' own: another rung cannot clear them in their place.
        assert {bar.faster for bar in bars} == {"kernels"}, name
        if name != "short_swa":
            assert {(bar.slower, bar.at_least) for bar in bars} >= {(_case.COPY, 0.8)}, name
        assert module.ON_CUDA.tokens == 16384
        assert module.ON_CUDA.width == 2048


def test_peak_of_memory():
    assert 1e6 <= peak_bytes(lambda: np.ones(125_000)) < 1.1e6
    assert peak_bytes(copying(1 << 20, "cpu")) < 1e5


def test_a_ratio_that_misses_its_bar_is_marked():
    row = _runner._row(Bar("a", "b", at_most=1.2), ["a", "b"], 1.3, "cpu")
    assert _table.ratio_line(row).endswith("1.30   (at most 1.2)   <- missed")
    elsewhere = _runner._row(Bar("a", "b", at_most=1.2, on="cuda"), ["a", "b"], 1.3, "cpu")
    assert _table.ratio_line(elsewhere).endswith("1.30")
    memory = _runner._row(Bar("a", "one state", at_most=1, of="memory"), ["a", "one state"], 0.5, "cpu")
    assert "memory of a beyond its result / one state" in _table.ratio_line(memory)


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


def stored(name):
    return str(Path(_case.__file__).parent / "results" / f"{name}-cpu.json")


class Config(NamedTuple):
    tile: bool
    rows: int
    warps: int


def test_the_tuner_walks_to_the_fastest_configuration():
    def times(configs):
        return {c: 1 + abs(c.rows - 64) / 64 + abs(c.warps - 2) for c in configs if c.rows <= 128}

    best, share = _tune.fastest(Config(True, 16, 8), times)
    assert best == Config(True, 64, 2)
    assert share == pytest.approx(1 / 7.75)
    assert all(config.tile for config in _tune.neighbours(best))
    assert _tune.fastest(Config(True, 512, 4), times) == (Config(True, 512, 4), 1.0)


def test_the_tuner_replaces_one_entry_of_the_table(capsys):
    launched = []

    class Kernels:
        @staticmethod
        def pick_config(size, *, backward):
            return Config(True, size, 8 if backward else 4)

    def call():
        configs = [Kernels.pick_config(32, backward=backward) for backward in (False, True)]
        launched.append(configs)
        if configs[0].rows == 64:
            raise RuntimeError("out of shared memory")
        return torch.ones(2)

    found = _tune.in_use(Kernels, call)
    assert found == {"32, backward=False": Config(True, 32, 4), "32, backward=True": Config(True, 32, 8)}
    launched.clear()
    tried = [Config(True, 16, 4), Config(True, 64, 4)]
    start = Config(True, 32, 4)
    took = _tune.times(Kernels, call, "32, backward=False", start, Setting(), tried, rounds=1)
    assert took.keys() == {tried[0]}
    assert "out of shared memory" in capsys.readouterr().out
    assert {first for first, _ in launched} == {start, *tried}
    assert {second for _, second in launched} == {Config(True, 32, 8)}
    assert Kernels.pick_config(8, backward=False) == Config(True, 8, 4)


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (["long_swa"], "got ['long_swa']."),
        (["--width", "30", "--heads", "8"], "short_swa: heads must divide width; got heads 8, width 30."),
        (["short_swa", "--heads", "7"], "heads must divide width; got heads 7, width 512."),
        (["streams", "--heads", "7"], "must be a multiple of 2 heads; got width 256, heads 7."),
        (["--threads", "0"], "got {'threads': 0}."),
        (["--device", "cuda", "--tune", "streams"], "--tune takes operators"),
        (["--read", "no/such.json"], "got 'no/such.json': No such file or directory."),
        (["depth_mix", "--compare", __file__], "takes results that --json wrote; got"),
        (
            ["--read", stored("depth_mix"), "--compare", stored("short_conv")],
            "depth_mix; got one of short_conv.",
        ),
        (["--compare", stored("depth_mix")], "got one of depth_mix."),
        (
            ["--read", stored("depth_mix"), stored("depth_mix"), "--plot", "."],
            "got several of depth_mix-cpu.",
        ),
        (["--rounds", "0"], "got {'rounds': 0}."),
        (["--states", "-1"], "got {'states': -1}."),
        (["--tune", "depth_mix"], "takes --device cuda."),
    ],
)
def test_bad_arguments_exit_with_one_sentence(arguments, got, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert got in capsys.readouterr().err


def test_without_a_gpu_one_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        command.main(["depth_mix", "--device", "cuda"])
    assert "--device cuda takes a machine with torch and a CUDA device" in capsys.readouterr().err


def on_a_gpu_that_tunes(monkeypatch, records):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    asked = []

    def tune(module, shape, setting, *, rounds):
        asked.append((module.NAME, shape.tokens, setting.device, rounds))
        return records.get(module.NAME, [])

    monkeypatch.setattr(_tune, "tune", tune)
    return asked


def test_tuning_rewrites_the_table(monkeypatch, tmp_path, capsys):
    found = {"operator": "depth_mix", "entry": "(9, 0), 8", "config": {"rows": 2}}
    asked = on_a_gpu_that_tunes(monkeypatch, {"depth_mix": [found]})
    table = tmp_path / "configs.json"
    monkeypatch.setattr(_configs, "TABLE", table)
    arguments = ["--device", "cuda", "--tune", "--tokens", "64", "depth_mix", "short_conv"]
    assert command.main(arguments) == 0
    assert asked == [("depth_mix", 64, "cuda", 15), ("short_conv", 64, "cuda", 15)]
    assert _configs.read(table) == [found]
    assert f"depth_mix: 1 written to {table}" in capsys.readouterr().out
    other = tmp_path / "other.json"
    assert command.main([*arguments, "--json", str(other)]) == 0
    assert _configs.read(other) == [found]


def test_a_table_that_is_none_is_left_alone_and_nothing_is_timed(monkeypatch, tmp_path, capsys):
    asked = on_a_gpu_that_tunes(monkeypatch, {})
    result = tmp_path / "result.json"
    result.write_text('{"operator": "depth_mix"}')
    for path, got in (
        (result, "must hold a list of records"),
        (tmp_path, "takes a table that can be written"),
    ):
        with pytest.raises(SystemExit, match="2"):
            command.main(["--device", "cuda", "--tune", "--json", str(path), "depth_mix"])
        assert got in capsys.readouterr().err
    assert result.read_text() == '{"operator": "depth_mix"}'
    assert not asked


def test_a_size_that_cannot_grow_is_left_out():
    module, _ = operator("short_swa")
    shape = module.Shape(tokens=8, width=24, heads=8, window=4)
    assert _runner._grow(module, shape, PLAIN, "width", 1, "cpu")["sizes"] == [24, 48]


def test_the_commit_is_known_in_a_checkout():
    commit = _measure.machine("cpu")["commit"]
    assert commit == "unknown" or len(commit.rstrip("+")) == 9
