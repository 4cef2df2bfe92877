"""What is checked of kernels on a GPU, by the same path on the CPU."""

import json

import gpu_checks
import gpu_sizes
import pytest
import torch

from t2lib.ops import RungUnavailable, _kernel_cases, _registry


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_checks_that_could_not_run_have_failed(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(_registry._CHECKS, "kernels", lambda: (False, "triton is not installed"))
    assert gpu_checks.run("short_conv", "cpu", tmp_path / "checks.jsonl") == 1
    assert "not run: triton is not installed" in capsys.readouterr().out
    assert rows_of(tmp_path / "checks.jsonl")[-1]["ok"] is False


def test_a_refusal_is_a_failure(monkeypatch, tmp_path, capsys):
    def refused():
        raise RungUnavailable("it needs 81920 of shared memory")

    monkeypatch.setitem(_registry._CHECKS, "kernels", lambda: (True, ""))
    rows = [("one", "float32", 1e-5, lambda: {"z": 1e-6}), ("two", "float16", 1e-3, refused)]
    monkeypatch.setattr(gpu_checks, "checks", lambda operator, device: rows)
    assert gpu_checks.run("short_conv", "cpu", tmp_path / "checks.jsonl") == 1
    assert "FAILED    0.0e+00  float16   two RungUnavailable: it needs" in capsys.readouterr().out


def test_every_check_is_written_below_the_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(_registry._CHECKS, "kernels", lambda: (True, ""))
    good, bad = ("one", "float32", 1e-5, lambda: {"z": 1e-6}), ("two", "float32", 1e-5, lambda: {"z": 1.0})
    monkeypatch.setattr(gpu_checks, "checks", lambda operator, device: [good, bad])
    assert gpu_checks.run("short_conv", "cpu", tmp_path / "checks.jsonl") == 1
    first, *rows = rows_of(tmp_path / "checks.jsonl")
    assert first["machine"].keys() >= {"device", "torch", "triton", "date", "commit"}
    assert [row["ok"] for row in rows] == [True, False]
    assert capsys.readouterr().out.splitlines()[-1] == "remark: 1 of 2 checks"


def test_all_operators_are_checked_at_the_sizes_of_the_bench():
    dtype = gpu_sizes.dtype_of_the_bench("cpu")
    found = list(gpu_sizes.all_sized("cpu", dtype))
    assert [sized.what.split(",")[0] for sized in found[:-2]] == list(_registry.OPERATORS)
    # Along depth: all levels, and the last alone.
    lengths = [len(sized.example(4).inputs["q"]) for sized in found[-2:]]
    assert lengths == [gpu_sizes.DEPTH["cpu"][0], 1]
    assert gpu_sizes.DEPTH["cuda"][0] > 40
    assert all(x.dtype == dtype for x in found[0].example(4).inputs.values())


def wrong_at(where):
    """An operator whose kernels are wrong at one of 4096 tokens."""

    def call(rung, given):
        result = 2 * given["x"]
        if rung == "kernels":
            result = result.index_fill(0, torch.tensor([where]), 0)
        return result

    return _kernel_cases.Example("doubled", {"x": torch.randn(4096, 64)}, call)


def test_one_wrong_token_of_thousands_is_found():
    found = gpu_sizes.compared(wrong_at(4000), "cpu", torch.float16)
    assert found.keys() == {"result", "gradient of x"}
    assert min(found.values()) > 10 * gpu_checks.TOLERANCE[torch.float16]
    right = wrong_at(0)._replace(call=lambda rung, given: 2 * given["x"])
    assert max(gpu_sizes.compared(right, "cpu", torch.float16).values()) < 1e-3


@pytest.mark.parametrize("count", [1, 1023, 1024, 5000])
def test_the_worst_of_neighbours_is_of_all_numbers(count):
    truth = torch.ones(count)
    assert gpu_sizes.worst(truth, truth) == 0
    for place in (0, count - 1):
        got = truth.clone()
        got[place] = float("nan")
        assert gpu_sizes.worst(got, truth) == float("inf")
        got[place] = 3
        assert gpu_sizes.worst(got, truth) >= 2 / 32
    assert gpu_sizes.worst(torch.ones(count + 1), truth) == float("inf")


def test_what_has_no_room_is_halved_along_the_tokens(monkeypatch):
    asked = []

    def example(tokens):
        asked.append(tokens)
        if tokens > 2048:
            raise torch.OutOfMemoryError("no room")
        return wrong_at(0)._replace(call=lambda rung, given: given["x"])

    found = gpu_sizes.errors(gpu_sizes.Sized("all", 8192, example), "cpu", torch.float16)
    assert asked == [8192, 4096, 2048]
    assert all(name.endswith(", at 2048 tokens") for name in found)
    monkeypatch.setattr(gpu_sizes, "FEWEST", 4096)
    with pytest.raises(torch.OutOfMemoryError):
        gpu_sizes.errors(gpu_sizes.Sized("all", 8192, example), "cpu", torch.float16)
