"""What a GPU run leaves in its folder: `summary.json`, and nothing of the run before it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from gpu_process import Outcome, Part, say

SUMMARY = "summary.json"


class Record:
    """`summary.json`, rewritten whenever a part starts or ends, so that it is there however the run ends."""

    def __init__(self, out: Path, device: str, machine: Mapping[str, str], planned: Sequence[Part]) -> None:
        self.file, self.device, self.machine = out / SUMMARY, device, dict(machine)
        self.outcomes = {part.name: Outcome(part.name) for part in planned}
        self.lock = threading.Lock()
        self.started = time.monotonic()
        self._write()

    def start(self, part: Part) -> None:
        self._put(Outcome(part.name, "running", log=part.log))

    def end(self, outcome: Outcome) -> None:
        self._put(outcome)
        if outcome.log:
            say(f"{outcome.name:<44}{outcome.seconds:>7.1f} s  {outcome.status}")

    def _put(self, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes[outcome.name] = outcome
            self._write()

    def _write(self) -> None:
        content = {
            "device": self.device,
            "machine": self.machine,
            "seconds": round(time.monotonic() - self.started, 1),
            "parts": [asdict(outcome) for outcome in self.outcomes.values()],
        }
        # In one step, so that a run that ends here leaves a whole file.
        draft = self.file.with_name(self.file.name + ".part")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.file)


def clear(out: Path, parts: Iterable[Part], benches: Iterable[str]) -> None:
    """Delete what an earlier run left in its folder, by its name; whatever else lies there stays."""
    for part in parts:
        log = out / part.log
        for file in (log, log.with_suffix(".jsonl")):
            file.unlink(missing_ok=True)
    for file in (out / SUMMARY, out / f"{SUMMARY}.part", *_results(out / "bench", benches)):
        file.unlink(missing_ok=True)


def _results(folder: Path, benches: Iterable[str]) -> Iterator[Path]:
    """The results of benches in a folder: such as have the name that the bench gives to what is in them."""
    from t2lib.bench._table import where

    for name in benches:
        yield from folder.glob(f"{name}-*.json.part")
        for file in folder.glob(f"{name}-*.json"):
            try:
                result = json.loads(file.read_text(encoding="utf-8"))
                written = file.stem == f"{result['operator']}-{where(result)}"
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if written:
                yield file
