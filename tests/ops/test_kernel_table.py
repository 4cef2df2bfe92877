"""The table of the kernels: two processes joined, and what there is to say where one cannot run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from t2lib import verify
from t2lib.ops import _kernel_table, _registry

ROW = {"operator": "kernels, compiled", "check": "short_conv.forward", "rung": "sm_75", "error": 0.0}


class Process:
    """In place of a process that runs one part."""

    started: list[tuple[list[str], dict[str, str]]]
    returncode = 0

    def __init__(self, command: list[str], *, env: dict[str, str], stderr: Any, **rest: Any) -> None:
        self.started.append((command, env))
        self.stdout = iter(["a warning\n", json.dumps(ROW | {"check": command[3]}) + "\n"])
        stderr.write("first\nKilled: out of memory\n")

    def wait(self) -> int:
        return self.returncode

    def kill(self) -> None:
        pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    Process.started = []
    Process.returncode = 0
    monkeypatch.setattr(_kernel_table.subprocess, "Popen", Process)
    monkeypatch.setattr(_registry, "installed", lambda package: True)
    return Process.started


def test_both_parts_run_apart_and_are_joined(started, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rows = list(_kernel_table.rows(["short_conv"]))
    assert [row["check"] for row in rows] == ["interpret", "build"]
    assert [command[3:] for command, _ in started] == [["interpret", "short_conv"], ["build", "short_conv"]]
    assert [environment.get("TRITON_INTERPRET") for _, environment in started] == ["1", None]
    assert len({environment["TRITON_CACHE_DIR"] for _, environment in started}) == 1
    assert not any(verify.Cell(**row).red for row in rows)


def test_a_process_that_dies_is_red_and_says_its_last_words(started):
    Process.returncode = -9
    cells = [verify.Cell(**row) for row in _kernel_table.rows(["short_conv"])]
    assert [cell.red for cell in cells] == [False, True, False, True]
    assert "RED build, all of it on all: Killed: out of memory" in verify.report(cells)


def test_an_operator_without_kernels_and_a_machine_without_triton_are_skipped(started, monkeypatch):
    monkeypatch.setitem(_registry.OPERATORS, "short_conv", {"kernels": "none in this version"})
    monkeypatch.setattr(_registry, "installed", lambda package: package != "triton")
    cells = [verify.Cell(**row) for row in _kernel_table.rows(["short_conv", "short_swa"])]
    assert [cell.error for cell in cells] == [None, None]
    assert cells[0].reason == "none in this version"
    assert "triton is not installed" in cells[1].reason
    assert started == []


def test_rows_come_while_the_process_still_runs(started, monkeypatch):
    ended = Event()

    def printing() -> Iterator[str]:
        yield json.dumps(ROW) + "\n"
        assert ended.wait(60)

    class Slow(Process):
        def __init__(self, command: list[str], **rest: Any) -> None:
            super().__init__(command, **rest)
            self.stdout = printing()

    monkeypatch.setattr(_kernel_table.subprocess, "Popen", Slow)
    rows = _kernel_table.rows(["short_conv"])
    assert next(rows)["check"] == ROW["check"]
    assert not ended.is_set()
    ended.set()
    assert len(list(rows)) == 1


def test_triton_that_is_there_by_its_name_alone_is_skipped(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "triton", None)
    _kernel_table.main(["build", "short_conv"])
    cell = verify.Cell(**json.loads(capsys.readouterr().out))
    assert cell.error is None
    assert "triton cannot be imported" in cell.reason


def test_every_row_names_the_dtype_of_its_states():
    case = SimpleNamespace(
        what="width 20", arguments={"states": (torch.ones(2).bfloat16(),), "lse": torch.ones(2)}
    )
    assert _kernel_table._what(case) == "width 20, bfloat16"
    case.what = "bfloat16, few tokens"
    assert _kernel_table._what(case) == case.what


def test_what_was_not_built_is_a_dash_with_a_note_below():
    half = verify.Cell(**ROW | {"rung": "sm_80", "check": "in bfloat16"}, note=_kernel_table.NOTE)
    table = verify.report([verify.Cell(**ROW, note=_kernel_table.NOTE), half])
    assert table.count("\n-: not built.") == 1
    assert "unaligned are left to tests/kernels/build" in table
    assert any(line.split() == ["in", "bfloat16", "-", "ok", "0e+00"] for line in table.splitlines())


def test_what_is_shown_stands_in_place_of_an_error_that_is_right():
    right = verify.Cell(**ROW, shown="64/0/8K")
    assert "64/0/8K" in verify.report([right])
    wrong = verify.Cell(**ROW | {"error": 1.0}, shown="255/32/8K", detail="32 bytes spilled")
    assert "RED 1e+00" in verify.report([wrong])
    assert "32 bytes spilled" in verify.report([wrong])
