"""A part of the GPU run as a process of its own, with a limit; and the end of all of them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
# The library may lie here uninstalled.
sys.path.insert(0, str(ROOT))
# What a part prints at the head of its last line, to have it said beside how the part ended.
REMARK = "remark: "
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Part:
    """One process, alone on the machine or not.

    It may take `sure` seconds whatever came before, and up to `most` if the parts after it keep theirs.
    """

    name: str
    command: list[str]
    sure: float
    most: float
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> str:
        """The name of the file that takes what the part prints."""
        return f"{self.name.replace(' ', '-')}.log"


@dataclass
class Outcome:
    """How far a part came."""

    name: str
    status: str = "not reached"
    seconds: float = 0.0
    log: str = ""

    @property
    def passed(self) -> bool:
        return self.status.startswith("passed")


class Processes:
    """Those that are running, each with its children a process group; none starts after an interruption."""

    def __init__(self) -> None:
        # Re-entrant: a second signal may come while the first is being handled.
        self.lock = threading.RLock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.interrupted: signal.Signals | None = None

    def run(self, part: Part, limit: float, out: Path) -> Outcome:
        """Run one part for at most `limit` seconds; what it prints goes to a file at once."""
        log, started = out / part.log, time.monotonic()
        with log.open("wb") as file:
            process = self._start(part.command, environment(part.environment), file.fileno())
            if process is None:
                return Outcome(part.name)
            try:
                code = process.wait(timeout=limit)
                status = said(code, log)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.wait()
                status = f"cut short after {limit:.0f} s"
            with self.lock:
                self.running.remove(process)
                if self.interrupted and status == f"ended by {signal.SIGKILL.name}":
                    status = "interrupted"
        return Outcome(part.name, status, round(time.monotonic() - started, 1), part.log)

    def _start(
        self, command: Sequence[str], variables: Mapping[str, str], output: int
    ) -> subprocess.Popen[bytes] | None:
        with self.lock:
            if self.interrupted:
                return None
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.running.add(process)
            return process

    def interrupt(self, number: int, frame: FrameType | None = None) -> None:
        """A handler of signals: end all that is running, and let nothing start."""
        with self.lock:
            self.interrupted = signal.Signals(number)
            for process in self.running:
                _kill(process)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the signals that ask a program to end are handled here."""
        # Under nohup a closed terminal is to be ignored.
        heard = [one for one in SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
        before = {one: signal.signal(one, self.interrupt) for one in heard}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process: those here, with the library on the path, and `more`."""
    # One thread a process while several share the machine. Interpreted is what is asked to be and no more:
    # on a GPU nothing would be, without a word.
    here = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {
        "OMP_NUM_THREADS": "1",
        **here,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "MPLBACKEND": "Agg",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def said(code: int, log: Path) -> str:
    """How a part ended by itself, with the remark it made last."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1] if lines else ""
    remark = f", {last.removeprefix(REMARK)}" if last.startswith(REMARK) else ""
    return ("passed" if code == 0 else f"failed with {code}") + remark


def say(text: str, *, error: bool = False) -> None:
    """Print a line; a terminal or a pipe that is gone is no reason to end a run."""
    stream = sys.stderr if error else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        # What is still to be written there goes nowhere, also at the end of this process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def ask(code: str, *arguments: str) -> tuple[int, str, str]:
    """The status, the last line and the last line of errors of a few lines of Python."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
    )
    printed, errors = (text.strip().rpartition("\n")[2] for text in (done.stdout, done.stderr))
    return done.returncode, printed, errors
