"""python -m t2lib.bench: all peers compute the same, and table and file say what was measured."""

import json

import numpy as np
import pytest

from t2lib.bench import __main__ as command
from t2lib.bench import short_swa as bench
from t2lib.bench._measure import Progress, interleaved

SMALL = ["--tokens", "96", "--width", "32", "--heads", "2", "--window", "8", "--rounds", "2", "--no-compile"]


def test_all_cases_compute_the_same():
    shape = bench.Shape(tokens=96, width=32, heads=2, window=8)
    cases = bench.rungs(shape, ["arrays", "eager"]) | bench.peers(shape, compiled=False)
    want = np.asarray(cases.pop("arrays")())
    assert len(cases) == 5
    for name, function in cases.items():
        assert np.abs(np.asarray(function()) - want).max() < 1e-5, name


def test_the_table_and_the_file(tmp_path, capsys, monkeypatch):
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(variable, "1")
    file = tmp_path / "result.json"
    assert command.main(["short_swa", *SMALL, "--json", str(file)]) == 0
    table = capsys.readouterr().out
    assert "NumPy loop over positions / arrays" in table
    result = json.loads(file.read_text(encoding="utf-8"))
    assert set(result["machine"]) == {"device", "python", "numpy", "torch", "triton", "date"}
    assert result["milliseconds"]["eager"]["rounds"] == 2
    assert result["growth_in_T"].keys() == {"arrays", "eager"}
    assert result["command"].startswith("python -m t2lib.bench short_swa --batch 1 --tokens 96")


def test_rounds_are_interleaved():
    order = []
    cases = {name: lambda name=name: order.append(name) for name in "ab"}
    interleaved(cases, 2, Progress(6))
    assert order == list("ababab")


def test_bad_arguments_exit_with_one_sentence(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["long_swa"])
    assert "got ['long_swa']." in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main(["--width", "30", "--heads", "8"])
