"""The table of the kernels: two processes joined, and what there is to say where one cannot run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from t2lib import verify
from t2lib.ops import _kernel_table, _registry

ROW = {"operator": "kernels, compiled", "check": "short_conv.forward", "rung": "sm_75", "error": 0.0}


class Process:
    """In place of a process that runs one part."""

    started: list[tuple[list[str], dict[str, str]]]
    returncode = 0

    def __init__(self, command: list[str], *, env: dict[str, str], **rest: Any) -> None:
        self.started.append((command, env))
        self.part = command[3]

    def communicate(self) -> tuple[str, str]:
        return f"a warning\n{json.dumps(ROW | {'check': self.part})}\n", "first\nKilled: out of memory\n"


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


def test_what_is_shown_stands_in_place_of_an_error_that_is_right():
    right = verify.Cell(**ROW, shown="64/0/8K")
    assert "64/0/8K" in verify.report([right])
    wrong = verify.Cell(**ROW | {"error": 1.0}, shown="255/32/8K", detail="32 bytes spilled")
    assert "RED 1e+00" in verify.report([wrong])
    assert "32 bytes spilled" in verify.report([wrong])
