"""All that wants a GPU, in one run of less than 8 minutes: python tools/gpu.py, or `make gpu`.

Needs torch and triton; the library may lie beside this folder uninstalled. No Jupyter, no network.
Parts run in processes of their own, each with seconds of its own, and write as they go: a part that is cut
short leaves what it had, and `summary.json` says how far each came. In this order:

    checks       kernels in three precisions against `eager` in float64, opcheck, full-graph compile
    bench        every operator and the streams at the sizes of the bench, one after the other
    notebooks    the code cells of every chapter, from top to bottom

    python tools/gpu.py --device cpu      the same path here: small sizes, kernels interpreted

To publish what was measured, copy OUT/bench/*.json to t2lib/bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = ("short_swa", "depth_mix", "depth_attention", "stream_mix", "delta_rewrite", "short_conv")
# Sizes at which a CPU is done in seconds.
SMALL = {"tokens": 64, "width": 32, "heads": 2, "window": 8, "states": 4, "blocks": 5, "rounds": 2}


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


@dataclass
class Outcome:
    """How far a part came."""

    name: str
    status: str = "not reached"
    seconds: float = 0.0
    log: str = ""


def parts(device: str, out: Path, notebooks: Sequence[Path]) -> list[Part]:
    """All parts, in the order they start."""
    tools, python = ROOT / "tools", sys.executable
    interpreted = {} if device == "cuda" else {"TRITON_INTERPRET": "1"}
    # The interpreter is slow, the small sizes are fast.
    check, time_one = (45, 34) if device == "cuda" else (70, 20)
    where = ["--device", device]
    found = [
        Part(
            f"checks {name}",
            [python, str(tools / "gpu_checks.py"), name, *where, "--out", str(out / f"checks-{name}.jsonl")],
            sure=check,
            most=150,
            environment=interpreted,
        )
        for name in OPERATORS
    ]
    small = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
    sizes = [] if device == "cuda" else [*small, "--no-compile"]
    bench = [python, "-m", "t2lib.bench"]
    for name in (*OPERATORS, "streams"):
        file = ["--json", str(out / "bench")]
        found.append(Part(f"bench {name}", [*bench, name, *where, *sizes, *file], time_one, 100, alone=True))
    # Last: of all parts, they are the ones that do not need this machine.
    for path in notebooks:
        command = [python, str(tools / "plain_notebook.py"), str(path)]
        found.append(Part(f"notebook {path.stem}", command, 20, 100))
    return found


def allowed(part: Part, later: Sequence[Part], left: float, workers: int) -> float:
    """The seconds that a part may take of those left, with later parts sure of theirs."""
    kept = sum(other.sure / (1 if other.alone else workers) for other in later)
    return min(left, max(part.sure, min(part.most, left - kept)))


def run(part: Part, limit: float, out: Path) -> Outcome:
    """Run one part for at most `limit` seconds; what it prints goes to a file at once."""
    log = out / f"{part.name.replace(' ', '-')}.log"
    # One thread a process while several share the machine.
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "MPLBACKEND": "Agg",
        "PYTHONUNBUFFERED": "1",
        **part.environment,
    }
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limit)
            status = "passed" if code == 0 else f"failed with {code}"
        except subprocess.TimeoutExpired:
            _end(process)
            status = f"cut short after {limit:.0f} s"
    return Outcome(part.name, status, round(time.monotonic() - started, 1), log.name)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and what it started, which is a process group of its own."""
    import signal

    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Record:
    """`summary.json`, rewritten whenever a part ends, so that it is there however the run ends."""

    def __init__(self, file: Path, device: str, planned: Sequence[Part]) -> None:
        self.file, self.device = file, device
        self.outcomes = {part.name: Outcome(part.name) for part in planned}
        self.lock = threading.Lock()
        self.started = time.monotonic()
        self.write()

    def add(self, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes[outcome.name] = outcome
            print(f"{outcome.name:<44}{outcome.status:<24}{outcome.seconds:>7.1f} s", flush=True)
            self.write()

    def write(self) -> None:
        content = {
            "device": self.device,
            "seconds": round(time.monotonic() - self.started, 1),
            "parts": [asdict(outcome) for outcome in self.outcomes.values()],
        }
        self.file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def run_all(planned: Sequence[Part], out: Path, device: str, seconds: float, workers: int) -> list[Outcome]:
    """Part after part, neighbours that can share the machine several at once; all before the deadline."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench").mkdir(exist_ok=True)
    record = Record(out / "summary.json", device, planned)
    deadline = record.started + seconds

    def one(place: int) -> None:
        part = planned[place]
        limit = allowed(part, planned[place + 1 :], deadline - time.monotonic(), workers)
        if limit > 1:
            record.add(run(part, limit, out))

    for alone, places in groupby(range(len(planned)), lambda place: planned[place].alone):
        with ThreadPoolExecutor(1 if alone else workers) as pool:
            list(pool.map(one, places))
    return list(record.outcomes.values())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "only", nargs="*", help="run parts whose name begins so, such as: checks 'bench depth'"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "gpu", help="folder for what comes out")
    parser.add_argument("--minutes", type=float, default=7.5, help="in all (default 7.5)")
    parser.add_argument("--workers", type=int, default=min(8, max(2, (os.cpu_count() or 2) - 2)))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not _has_gpu():
        print("No CUDA device here; `python tools/gpu.py --device cpu` shows the same path.", file=sys.stderr)
        return 2
    out = options.out.resolve()
    planned = [
        part
        for part in parts(options.device, out, sorted((ROOT / "book").glob("ch*.ipynb")))
        if not options.only or part.name.startswith(tuple(options.only))
    ]
    if not planned:
        print(f"No part's name begins with {' or '.join(options.only)}.", file=sys.stderr)
        return 2
    outcomes = run_all(planned, out, options.device, 60 * options.minutes, options.workers)
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    print(f"{passed} of {len(outcomes)} parts passed; all of it is in {out}")
    return 0 if passed == len(outcomes) else 1


def _has_gpu() -> bool:
    ask = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", ask]).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
