"""The GPU run: its parts, its limits, and what it leaves when it is cut short. Nothing here needs a GPU."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu
import gpu_process
import gpu_record
import pytest

from t2lib.ops import _registry

ROOT = Path(__file__).resolve().parents[2]


def python(code):
    return [sys.executable, "-c", code]


def test_the_parts_cover_every_operator_and_every_chapter():
    chapters = sorted((ROOT / "book").glob("ch*.ipynb"))
    for device in ("cuda", "cpu"):
        planned = gpu.parts(device, Path("out"), chapters)
        names = {part.name for part in planned}
        assert names >= {f"{kind} {name}" for kind in ("checks", "bench") for name in _registry.OPERATORS}
        assert names >= {f"notebook {path.stem}" for path in chapters} | {"bench streams"}
        # Nothing runs beside what is timed, and notebooks come last. On two cores, which have two workers,
        # every part is sure of its seconds.
        sized = [part for part in planned if part.name == "checks sizes"]
        assert [part for part in planned if part.alone] == sized + [p for p in planned if "bench" in p.name]
        kinds = [part.name.split()[0] for part in planned]
        assert kinds == sorted(kinds, key=["checks", "bench", "notebook"].index)
        assert sum(part.sure / (1 if part.alone else 2) for part in planned) <= 450
        assert all(part.sure < part.most for part in planned)
        interpreted = {part.environment.get("TRITON_INTERPRET") for part in planned if "checks" in part.name}
        assert interpreted == ({None} if device == "cuda" else {"1"})


def test_every_part_is_recorded_however_it_ends(tmp_path):
    planned = [
        gpu.Part("good", python("print('done')"), 20, 60),
        gpu.Part("bad", python("import sys; print('why'); sys.exit(3)"), 20, 60),
        gpu.Part("slow", python("import time; print('begun', flush=True); time.sleep(60)"), 2, 4, alone=True),
    ]
    outcomes = {outcome.name: outcome for outcome in gpu.run_all(planned, tmp_path, "cpu", 120, 2)}
    assert outcomes["good"].status == "passed"
    assert outcomes["bad"].status == "failed with 3"
    assert outcomes["slow"].status == "cut short after 4 s"
    assert (tmp_path / "bad.log").read_text() == "why\n"
    assert (tmp_path / "slow.log").read_text() == "begun\n"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [part["status"] for part in summary["parts"]] == [o.status for o in outcomes.values()]


def test_what_the_time_does_not_reach_is_said(tmp_path):
    planned = [gpu.Part("never", python("print('no')"), 20, 60)]
    (outcome,) = gpu.run_all(planned, tmp_path, "cpu", 0, 1)
    assert outcome.status == "not reached"
    assert json.loads((tmp_path / "summary.json").read_text())["parts"][0]["status"] == "not reached"


def test_a_part_may_take_what_no_later_part_is_sure_of():
    part, alone = gpu.Part("", [], 10, 100), gpu.Part("", [], 30, 100, alone=True)
    assert gpu.allowed(part, [], 500, 2) == 100
    assert gpu.allowed(part, [alone, part, part], 100, 2) == 60
    assert gpu.allowed(part, [alone, alone], 65, 2) == 10
    assert gpu.allowed(part, [], 3, 2) == 3


def test_a_part_that_is_cut_short_takes_its_children_with_it(tmp_path):
    code = f"import subprocess, sys, time; subprocess.Popen({python('import time; time.sleep(3)')}).wait()"
    before = time.monotonic()
    part = gpu.Part("parent", python(code), 1, 1)
    assert gpu.Processes().run(part, 1, tmp_path).status.startswith("cut short")
    assert time.monotonic() - before < 3


def test_checks_and_a_bench_on_the_cpu_by_the_same_path(tmp_path):
    arguments = [
        "tools/gpu.py",
        "checks sizes",
        "bench short_conv",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + "".join(log.read_text() for log in tmp_path.glob("*.log"))
    first, *rows = [json.loads(line) for line in (tmp_path / "checks-sizes.jsonl").read_text().splitlines()]
    assert len(rows) == len(_registry.OPERATORS) + 2
    assert f"passed, {len(rows)} of {len(rows)} checks" in done.stdout
    assert "2 of 2 parts passed" in done.stdout
    result = json.loads((tmp_path / "bench" / "short_conv-cpu.json").read_text())
    assert result["shape"]["tokens"] == 64
    # Whatever is left says where it comes from.
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert first["machine"] == summary["machine"]
    assert first["machine"].items() <= result["machine"].items()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_ends_at_once_and_keeps_what_it_has(tmp_path, number):
    file = tmp_path / "summary.json"
    # A part that ends, two that go on, each with a child, and one that waits for its turn.
    going = "import subprocess; print('begun', flush=True); "
    going += f"subprocess.run({python('import time; time.sleep(60)')})"
    script = f"""
import sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import gpu
codes = dict(short="pass", one={going!r}, two={going!r}, late="pass")
gpu.parts = lambda *_: [gpu.Part(name, [sys.executable, "-c", code], 20, 60) for name, code in codes.items()]
gpu._machine = lambda device: (dict(device="a machine"), "")
sys.exit(gpu.main(["--device", "cpu", "--workers", "2", "--out", {str(tmp_path)!r}]))
"""
    running = subprocess.Popen(python(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def statuses():
        parts = json.loads(file.read_text())["parts"] if file.exists() else []
        return [part["status"] for part in parts]

    def begun():
        logs = [tmp_path / "one.log", tmp_path / "two.log"]
        return statuses()[:1] == ["passed"] and all(log.exists() and log.read_text() for log in logs)

    deadline = time.monotonic() + 30
    while not begun() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert statuses() == ["passed", "running", "running", "not reached"]
    before = time.monotonic()
    running.send_signal(number)
    # The pipes close when the last of all processes that hold them has ended.
    _, errors = running.communicate(timeout=20)
    assert time.monotonic() - before < 2
    assert running.returncode == 128 + number
    assert f"Interrupted by {number.name}" in errors
    assert statuses() == ["passed", "interrupted", "interrupted", "not reached"]
    assert json.loads(file.read_text())["machine"] == {"device": "a machine"}
    assert not _alive(str(tmp_path))


def _alive(word):
    """Processes that hold a file open below a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            found += [link] if word in str(link.readlink()) else []
        except OSError:
            continue
    return found


def test_a_closed_terminal_is_ignored_where_it_was_asked_to_be():
    processes = gpu.Processes()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.listening():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == processes.interrupt
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_pipe_that_is_closed_does_not_end_the_run(tmp_path):
    script = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "tools")!r})
import gpu
codes = dict(first="import time; time.sleep(1)", second="pass")
gpu.parts = lambda *_: [gpu.Part(name, [sys.executable, "-c", code], 20, 60) for name, code in codes.items()]
gpu._machine = lambda device: (dict(device="a machine"), "")
sys.exit(gpu.main(["--device", "cpu", "--workers", "1", "--out", {str(tmp_path)!r}]))
"""
    running = subprocess.Popen(python(script), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    running.stdout.readline()
    running.stdout.close()
    assert running.wait(timeout=30) == 0
    parts = json.loads((tmp_path / "summary.json").read_text())["parts"]
    assert [part["status"] for part in parts] == ["passed", "passed"]


def test_what_a_part_remarks_last_is_said_beside_its_end(tmp_path):
    code = "print('remark: early'); print('x'); print('remark: 3 of 5 cells left out (a, b)'); exit({})"
    for status, said in ((0, "passed"), (1, "failed with 1")):
        outcome = gpu.Processes().run(gpu.Part("p", python(code.format(status)), 9, 9), 9, tmp_path)
        assert outcome.status == f"{said}, 3 of 5 cells left out (a, b)"
        assert outcome.passed == (status == 0)
    ends = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert gpu.Processes().run(gpu.Part("p", python(ends), 9, 9), 9, tmp_path).status == "ended by SIGSEGV"


def test_the_interpreter_never_reaches_a_part_that_did_not_ask_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    show = python("import os; print('remark:', os.environ.get('TRITON_INTERPRET'))")
    planned = [
        gpu.Part("compiled", show, 9, 9),
        gpu.Part("interpreted", show, 9, 9, environment={"TRITON_INTERPRET": "1"}),
    ]
    monkeypatch.setattr(gpu, "parts", lambda *_: planned)
    monkeypatch.setattr(gpu, "_machine", lambda device: ({"device": "a GPU"}, ""))
    assert gpu.main(["--device", "cuda", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "TRITON_INTERPRET is set; it is left out of what runs here" in shown
    assert "passed, None" in shown
    assert "passed, 1" in shown


def test_nothing_of_an_earlier_run_is_left_and_nothing_else_is_deleted(tmp_path):
    part = gpu.Part("checks short_conv", [], 9, 9)
    result = {"operator": "short_conv", "clock": "device", "machine": {"device": "NVIDIA T4"}}
    (tmp_path / "bench").mkdir()
    old = ["summary.json", "summary.json.part", "checks-short_conv.log", "checks-short_conv.jsonl"]
    old += ["bench/short_conv-nvidia-t4.json", "bench/short_conv-nvidia-t4.json.part"]
    # Of the same kinds, by another hand.
    mine = ["notes.log", "checks-mine.jsonl", "bench/short_conv-before.json", "bench/other-nvidia-t4.json"]
    mine += ["short_conv-nvidia-t4.json", "bench/short_conv-mine.json"]
    for name in old + mine:
        (tmp_path / name).write_text(json.dumps(result))
    (tmp_path / "bench/short_conv-mine.json").write_text("not a result")
    gpu_record.clear(tmp_path, [part], ["short_conv"])
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(mine)
    # Nor does it mind that there is nothing.
    gpu_record.clear(tmp_path / "new", [part], ["short_conv"])


def test_a_run_of_some_parts_leaves_no_old_result_of_the_others(tmp_path, monkeypatch):
    planned = [gpu.Part(name, python("print('new')"), 9, 9) for name in ("checks one", "checks two")]
    monkeypatch.setattr(gpu, "parts", lambda *_: planned)
    monkeypatch.setattr(gpu, "_machine", lambda device: ({"device": "a CPU"}, ""))
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path), "checks one"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench", "checks-one.log", "summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text())["machine"] == {"device": "a CPU"}


def test_the_summary_is_whole_at_any_time(tmp_path, monkeypatch):
    seen = []
    replace = Path.replace
    monkeypatch.setattr(
        Path,
        "replace",
        lambda self, target: seen.append(json.loads(self.read_text())) or replace(self, target),
    )
    gpu.run_all([gpu.Part("p", python("pass"), 9, 9)], tmp_path, "cpu", 20, 1)
    assert [summary["parts"][0]["status"] for summary in seen] == ["not reached", "running", "passed"]
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_without_a_gpu_the_run_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "_machine", lambda device: ({}, "RuntimeError: Found no NVIDIA driver"))
    assert gpu.main([]) == 2
    assert "No CUDA device here: RuntimeError: Found no NVIDIA driver" in capsys.readouterr().err
    assert gpu.main(["nothing", "--device", "cpu"]) == 2
    assert "No part's name begins with nothing." in capsys.readouterr().err


def test_the_machine_is_asked_in_a_process_of_its_own():
    machine, reason = gpu._machine("cpu")
    assert machine.keys() == {"device", "python", "numpy", "torch", "triton", "date", "commit"}
    assert reason == ""
    assert gpu_process.ask("raise RuntimeError('no driver')") == (1, "", "RuntimeError: no driver")
