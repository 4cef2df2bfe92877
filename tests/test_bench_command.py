"""The command line of the bench: what it writes, draws, refuses, and how it ends."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from t2lib.bench import __main__ as command
from t2lib.bench import _arguments, _case, _memory, _tune, depth_mix, streams
from t2lib.bench._case import FORWARD
from t2lib.ops import RungUnavailable, _configs

SIZES = {"tokens": 40, "width": 16, "heads": 2, "window": 8, "layers": 6, "depth-window": 4}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
ONE = [
    "depth_mix",
    "--tokens",
    "8",
    "--width",
    "8",
    "--states",
    "3",
    "--rounds",
    "1",
    "--no-compile",
    "--no-growth",
]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for variable in (*command.THREADS, "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(variable, "1")


def test_the_table_and_the_file(tmp_path, capsys):
    file = tmp_path / "result.json"
    arguments = ["short_swa", *SMALL, "--rounds", "2", "--no-compile"]
    assert command.main([*arguments, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "NumPy loop over positions / arrays" in table
    assert "forward + backward: " in table
    result = json.loads(file.read_text(encoding="utf-8"))
    assert set(result["machine"]) == {"device", "python", "numpy", "torch", "triton", "date", "commit"}
    assert result["milliseconds"]["eager"]["rounds"] == 2
    assert result["growth_in_T"].keys() == {"arrays", "eager"}
    assert {letter: growth["sizes"] for letter, growth in result["growth"].items()} == {
        "T": [20, 40, 80], "w": [4, 8, 16], "d": [8, 16, 32], "L": [3, 6, 12], "K": [2, 4, 8],
    }  # fmt: skip
    assert result["rounds"] == 2
    for timing in (result["copy"][FORWARD], result["milliseconds"]["eager"]):
        assert timing["cpu_low"] <= timing["cpu"] <= timing["cpu_high"]
    for letter in "TL":
        growth = result["growth"][letter]
        spread = [part[FORWARD]["eager"] for part in (growth["low"], growth, growth["high"])]
        assert all(low <= time <= high for low, time, high in zip(*spread, strict=True))
    assert result["backward_milliseconds"].keys() >= {"eager", "SDPA, band mask"}
    assert result["command"].startswith("python -m t2lib.bench short_swa --batch 1 --tokens 40")
    assert "--depth-window 4" in result["command"]

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


def stored(name):
    return str(Path(_case.__file__).parent / "results" / f"{name}-cpu.json")


KEPT = """
import resource
import numpy as np
from t2lib.bench._memory import keep_freed
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 26, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(), faults()
fresh = faults()
assert keep_freed()
faults()
print(fresh, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of another system")
def test_memory_that_is_kept_has_no_fresh_pages():
    """64 MiB are 32 large pages at least when fresh, none when kept."""
    found = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    fresh, kept = map(int, found.stdout.split())
    assert fresh >= 32
    assert kept <= 2


def test_a_record_with_memory_kept_has_a_name_of_its_own(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("t2lib.bench._memory.keep_freed", lambda: asked.append(True) or True)
    command.main([*ONE, "--keep-memory", "--json", str(tmp_path)])
    assert asked == [True]
    (file,) = tmp_path.iterdir()
    assert file.name == "depth_mix-cpu-kept.json"
    record = json.loads(file.read_text())
    assert record["memory"] == "kept"
    assert record["command"].endswith("--keep-memory")
    assert "memory kept, 1 round(s)" in capsys.readouterr().out


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
        (["--keep-memory", "--device", "cuda"], "--keep-memory is for the CPU"),
        (["--json", "out.json"], "takes a folder for several operators; got 'out.json'"),
        (["--json", f"{__file__}/out.json", "short_conv"], "--json takes a place that can be written; got"),
        (["--json", "/proc/none/out.json", "short_conv"], "got '/proc/none/out.json'"),
        (["--plot", __file__, "short_conv"], f"--plot takes a place that can be written; got {__file__!r}"),
        (["short_conv", "--read", stored("short_conv")], "takes no operators; got ['short_conv']."),
        (["--tokens", "1000000000000"], "short_swa: takes sizes that fit into memory; these take at least"),
        (["streams", "--tokens", "1000000000000"], "streams: takes sizes that fit into memory"),
    ],
)
def test_bad_arguments_exit_with_one_sentence(arguments, got, capsys, monkeypatch):
    monkeypatch.setattr(command, "_measure", None)
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
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 34, 1 << 34))
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


def test_a_file_with_no_times_in_it_is_no_result(tmp_path, capsys):
    file = tmp_path / "empty.json"
    file.write_text(json.dumps({"operator": "short_conv", "machine": {}, "shape": {}, "clock": "cpu"}))
    with pytest.raises(SystemExit, match="2"):
        command.main(["--read", str(file)])
    assert "takes results that --json wrote; got" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(command, "_measure", None)
    with pytest.raises(SystemExit, match="2"):
        command.main([*ONE, "--plot", str(tmp_path)])
    assert "--plot takes matplotlib, which is not installed" in capsys.readouterr().err


def test_the_help_names_every_size_with_its_operators(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["-h"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, (meaning, _) in _arguments.SIZES.items():
        assert f"{_arguments.option(name)} N {meaning} (" in shown


def test_every_size_is_an_option_and_names_those_that_have_it():
    import importlib
    from dataclasses import fields

    having = {}
    for name in (*command.OPERATORS, "streams"):
        for field in fields(importlib.import_module(f"t2lib.bench.{name}").Shape):
            having.setdefault(field.name, []).append(name)
    assert {size: list(names) for size, (_, names) in _arguments.SIZES.items()} == having


def fails(*_):
    raise RungUnavailable("out of registers")


def test_a_rung_that_fails_is_in_the_file_and_in_the_exit_status(tmp_path, monkeypatch, capsys):
    call = depth_mix.call
    monkeypatch.setattr(
        depth_mix, "call", lambda shape, rung: fails if rung == "eager" else call(shape, rung)
    )
    file = tmp_path / "result.json"
    assert command.main([*ONE, "--json", str(file)]) == 1
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["failed"].keys() == {"eager, forward", "eager, forward + backward"}
    assert "eager, forward failed when it was called: RungUnavailable" in capsys.readouterr().err
    # The bars it leaves open are there, and say so.
    open_bars = [entry for entry in result["ratios"] if entry["ratio"] is None]
    assert {entry["of"] for entry in open_bars} == {"forward + backward"}
    assert all(entry["met"] is None and entry["at_least"] == 1 for entry in open_bars)


def test_a_peer_that_fails_is_no_failure_of_the_library(monkeypatch):
    monkeypatch.setattr(depth_mix, "_sum_of_products", fails)
    assert command.main(ONE) == 0


def test_every_bar_of_a_gpu_is_listed_though_no_kernel_ran():
    """As a GPU without Triton would leave it: with a stand-in for the GPU, which only names the bars."""
    from t2lib.bench import _ratios

    setting = _case.Setting("cuda")
    rows = _ratios.ratios(depth_mix, depth_mix.Shape(), setting, [], {}, {}, {})
    gpu = [bar for bar in depth_mix.BARS if bar.on == "cuda"]
    assert [(row["slower"], row["faster"], row["of"], row["at_least"]) for row in rows] == [
        (bar.slower, bar.faster, bar.of, bar.at_least) for bar in gpu
    ]
    assert all(row["ratio"] is None and row["met"] is None for row in rows)


def test_too_little_memory_while_it_runs_is_a_sentence_too(monkeypatch, capsys):
    def measured(name, options):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(command, "_measured", measured)
    assert command.main(ONE) == 1
    assert "depth_mix: takes sizes that fit into memory; RuntimeError" in capsys.readouterr().err
    assert _memory.is_too_little(MemoryError())
    assert not _memory.is_too_little(RuntimeError("no such axis"))
