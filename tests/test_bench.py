"""python -m t2lib.bench: all peers compute the same, and table and file say what was measured."""

import importlib
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch

from t2lib.bench import __main__ as command
from t2lib.bench import _case, _measure, _runner, _table, _tune, streams
from t2lib.bench._case import BACKWARD, FORWARD, Setting, cases
from t2lib.bench._growth import grow
from t2lib.bench._measure import Progress, copying, interleaved, peak_bytes
from t2lib.ops import _registry

TINY = {
    "short_swa": {"tokens": 40, "width": 16, "heads": 2, "window": 8, "layers": 6, "depth_window": 4},
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
    peers = {**module.peers(shape, Setting()), **module.peers(shape, Setting("cuda"))}
    known = {*peers, _case.BEST, _case.COPY, "one state", *_registry.RUNGS}
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
        ("depth_attention", "Liger-Kernel, stack given", "liger_kernel"),
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
        assert {bar.faster.partition(",")[0] for bar in bars} == {"kernels"}, name
        passes = {
            bar.of for bar in bars if (bar.slower, bar.faster, bar.at_least) == ("compiled", "kernels", 1)
        }
        assert passes == {FORWARD, BACKWARD}, name
        if name != "short_swa":
            assert {(bar.slower, bar.at_least) for bar in bars} >= {(_case.COPY, 0.8)}, name
        assert module.ON_CUDA.tokens == 16384
        assert module.ON_CUDA.width == 2048


def test_peak_of_memory():
    assert 1e6 <= peak_bytes(lambda: np.ones(125_000)) < 1.1e6
    assert peak_bytes(copying(1 << 20, "cpu")) < 1e5


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


def test_a_size_that_cannot_grow_is_left_out():
    module, _ = operator("short_swa")
    shape = module.Shape(tokens=8, width=24, heads=8, window=4)
    assert grow(module, shape, PLAIN, "d", 1, "cpu")[0]["sizes"] == [24, 48]


def test_the_commit_is_known_in_a_checkout():
    commit = _measure.machine("cpu")["commit"]
    assert commit == "unknown" or len(commit.rstrip("+")) == 9


def test_short_swa_stands_beside_flex_attention_at_three_windows():
    module, _ = operator("short_swa")
    at = {bar.faster: bar for bar in module.BARS if bar.on == "cuda" and bar.slower.startswith(module.FLEX)}
    assert module.ON_CUDA.window == 64
    assert at.keys() == {"kernels", "kernels, w = 32", "kernels, w = 128"}
    assert {(bar.of, bar.at_least) for bar in at.values()} == {(BACKWARD, 1)}
    peers = module.peers(module.Shape(**TINY["short_swa"]), Setting("cuda"))
    assert peers.keys() >= {name for bar in at.values() for name in (bar.slower, bar.faster)} - {"kernels"}


def test_the_read_along_depth_grows_with_its_layers_and_its_window(monkeypatch):
    module, shape = operator("short_swa")
    seen = []
    right = module.short_swa
    monkeypatch.setattr(
        module,
        "short_swa",
        lambda q, k, v, **options: seen.append((q.shape, options)) or right(q, k, v, **options),
    )
    growth, failed = grow(module, shape, PLAIN, "L", 1, "cpu")
    assert growth["sizes"] == [3, 6, 12]
    assert not failed
    assert {q[options["axis"]] for q, options in seen} == {3, 6, 12}
    assert {options["window"] for _, options in seen} == {4}
    seen.clear()
    assert grow(module, shape, PLAIN, "K", 1, "cpu")[0]["sizes"] == [2, 4, 8]
    assert {options["window"] for _, options in seen} == {2, 4, 8}
    assert {q[options["axis"]] for q, options in seen} == {6}


def test_a_rung_that_fails_at_another_size_is_named(monkeypatch):
    module, shape = operator("depth_mix")
    call = module.call

    def some(shape, rung):
        if rung == "eager" and shape.tokens == 24:
            raise_ = RuntimeError("out of memory")
            return lambda *_: (_ for _ in ()).throw(raise_)
        return call(shape, rung)

    monkeypatch.setattr(module, "call", some)
    result = _runner.measure(module, shape, PLAIN, rounds=1)
    assert result["failed"].keys() == {f"eager, tokens 24, {which}" for which in (FORWARD, BACKWARD)}
    assert result["growth"]["T"][FORWARD].keys() == {"arrays"}


def test_what_needs_a_compiler_says_why_it_is_missing():
    for name in TINY:
        module, shape = operator(name)
        _, left_out = cases(module, shape, PLAIN)
        compiled = [label for label in module.peers(shape, Setting()) if label.endswith("compiled")]
        assert compiled, name
        assert {left_out[label] for label in compiled} <= {"left out by --no-compile"}, name


def test_many_tokens_leave_out_what_is_quadratic_in_them():
    module, _ = operator("short_swa")
    peers = module.peers(module.Shape(tokens=1 << 17), Setting())
    assert peers["full T x T mask, compiled"] == "its scores alone would take 550 GB"
    assert peers["SDPA, band mask"] == "making its mask would take 137 GB"


def test_numpy_counts_the_bytes_of_its_own_dtype():
    module, shape = operator("depth_mix")
    half = Setting(dtype="float16", compiled=False)
    result = _runner.measure(module, shape, half, rounds=1, growth=False)
    times = result["milliseconds"]
    assert times["arrays"]["bytes"] == module.bytes_moved(shape, 4, False) == 2 * times["eager"]["bytes"]
    timing = times["arrays"]
    row = next(line for line in _table.lines(result) if line.startswith("arrays "))
    assert _table.digits(timing["bytes"] / timing["cpu"] / 1e6) in row


def test_a_case_that_fails_later_keeps_what_it_had():
    left = iter("abc")
    timings, failed = interleaved({"good": int, "bad": lambda: next(left)}, 3, Progress(9))
    assert len(timings["good"].times["cpu"]) == 3
    assert len(timings["bad"].times["cpu"]) == 1
    assert failed == {"bad": "StopIteration: "}


def test_any_way_a_package_fails_counts_as_absent(monkeypatch, tmp_path):
    (tmp_path / "odd_peer.py").write_text("import sys; sys.no_such_thing")
    monkeypatch.syspath_prepend(tmp_path)
    assert _case.missing("odd_peer") == "odd_peer is not installed"


def test_what_torch_compiles_is_given_its_mask(recwarn):
    module, shape = operator("short_swa")
    peer = module.peers(shape, Setting())[module.FULL]
    compiled = torch.compile(peer.function, backend="eager", fullgraph=True, dynamic=False)
    given = peer.prepare(*(torch.from_numpy(x) for x in module.inputs(shape)))
    want = module.call(shape, "eager")(*(x.transpose(1, 2) for x in given))
    assert (compiled(*given) - want).abs().max() < 1e-5
    assert not [warning for warning in recwarn if "Dynamo" in str(warning.message)]
