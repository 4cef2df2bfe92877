"""The GPU run: its parts, its limits, and what it leaves when it is cut short. Nothing here needs a GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import gpu
import gpu_checks
import plain_notebook
import pytest

from t2lib.ops import RungUnavailable, _registry

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
        assert all(part.alone == part.name.startswith("bench") for part in planned)
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
    assert gpu.run(gpu.Part("parent", python(code), 1, 1), 1, tmp_path).status.startswith("cut short")
    assert time.monotonic() - before < 3


def test_one_bench_on_the_cpu_by_the_same_path(tmp_path):
    arguments = ["tools/gpu.py", "bench short_conv", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + (tmp_path / "bench-short_conv.log").read_text()
    result = json.loads((tmp_path / "bench" / "short_conv-cpu.json").read_text())
    assert result["shape"]["tokens"] == 64
    assert "1 of 1 parts passed" in done.stdout


def test_without_a_gpu_the_run_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "_has_gpu", lambda: False)
    assert gpu.main([]) == 2
    assert "No CUDA device here" in capsys.readouterr().err
    assert gpu.main(["nothing", "--device", "cpu"]) == 2
    assert "No part's name begins with nothing." in capsys.readouterr().err


def test_checks_that_could_not_run_have_failed(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(_registry._CHECKS, "kernels", lambda: (False, "triton is not installed"))
    assert gpu_checks.run("short_conv", "cpu", tmp_path / "checks.jsonl") == 1
    assert "not run: triton is not installed" in capsys.readouterr().out
    assert json.loads((tmp_path / "checks.jsonl").read_text())["ok"] is False


def test_a_refusal_is_a_failure(monkeypatch, tmp_path, capsys):
    def refused():
        raise RungUnavailable("it needs 81920 of shared memory")

    monkeypatch.setitem(_registry._CHECKS, "kernels", lambda: (True, ""))
    rows = [("one", "float32", 1e-5, lambda: {"z": 1e-6}), ("two", "float16", 1e-3, refused)]
    monkeypatch.setattr(gpu_checks, "checks", lambda operator, device: rows)
    assert gpu_checks.run("short_conv", "cpu", tmp_path / "checks.jsonl") == 1
    assert "FAILED    0.0e+00  float16   two RungUnavailable: it needs" in capsys.readouterr().out


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def write(*cells):
        content = [{"cell_type": "markdown", "source": ["# Title"]}]
        for source, *tags in cells:
            content.append({"cell_type": "code", "source": source, "metadata": {"tags": tags}})
        path = tmp_path / "pages.ipynb"
        path.write_text(json.dumps({"cells": content}))
        return path

    return write


def test_cells_run_in_one_namespace_and_keep_their_source(notebook, capsys):
    path = notebook(
        (["def f(x):\n", "    return 2 * x"],),
        ("import inspect\nprint(inspect.getsource(f))\nprint(f(21), __name__)",),
        ("1 / 0", "raises-exception"),
    )
    assert plain_notebook.run(path) == 0
    shown = capsys.readouterr().out
    assert "return 2 * x" in shown
    assert "42 __main__" in shown
    assert "3 cells ran" in shown


def test_a_missing_package_leaves_out_what_builds_on_it(notebook, capsys):
    path = notebook(("import a_package_that_is_not\ny = 1",), ("print(y)",), ("print('still here')",))
    assert plain_notebook.run(path) == 0
    shown = capsys.readouterr().out
    assert "still here" in shown
    assert "1 cells ran, 2 left out for want of a_package_that_is_not" in shown


def test_only_what_a_left_out_cell_defines_is_left_out_with_it(notebook, capsys):
    assert (
        plain_notebook.run(notebook(("import a_package_that_is_not",), ("x = 1",), ("print(mistyped)",))) == 1
    )
    assert "cell 3 of 3 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "cell", ["from t2lib.ops import depth_mixx", "import t2lib.not_there", "import torch.not_there"]
)
def test_the_library_and_torch_are_never_left_out(notebook, capsys, cell):
    assert plain_notebook.run(notebook(("x = 1",), (cell,), ("y = 2",))) == 1
    assert "cell 2 of 3 failed" in capsys.readouterr().out


def test_a_notebook_of_which_no_cell_ran_has_failed(notebook, capsys):
    assert plain_notebook.run(notebook(("import a_package_that_is_not",))) == 1
    assert "0 cells ran, 1 left out" in capsys.readouterr().out


def test_a_cell_that_fails_is_named(notebook, capsys):
    assert plain_notebook.run(notebook(("x = 1",), ("assert x == 2",))) == 1
    shown = capsys.readouterr()
    assert "cell 2 of 2 failed" in shown.out
    assert "<pages, cell 2>" in shown.err
