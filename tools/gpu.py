"""All that wants a GPU, in one run of less than 8 minutes: python tools/gpu.py, or `make gpu`.

Needs torch and triton; the library may lie beside this folder uninstalled. No Jupyter, no network.
Parts run in processes of their own, each with seconds of its own, and write as they go: a part that is cut
short leaves what it had, and `summary.json` says how far each came. In this order:

    checks       kernels in three precisions against `eager` in float64, opcheck, full-graph compile; then
                 in the dtype of the bench at its sizes
    bench        every operator and the streams at the sizes of the bench, one after the other
    notebooks    the code cells of every chapter, from top to bottom

    python tools/gpu.py --device cpu      the same path here: small sizes, kernels interpreted

The folder OUT holds one run: what an earlier one left there is deleted first. To publish what was measured,
copy OUT/bench/*.json to t2lib/bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from gpu_process import ROOT, Outcome, Part, Processes, ask, say
from gpu_record import Record, clear

OPERATORS = ("short_swa", "depth_mix", "depth_attention", "stream_mix", "delta_rewrite", "short_conv")
BENCHES = (*OPERATORS, "streams")
# The checks of all operators at the sizes of the bench.
SIZES = "sizes"
# Sizes at which a CPU is done in seconds.
SMALL = {"tokens": 64, "width": 32, "heads": 2, "window": 8, "states": 4, "blocks": 5, "rounds": 2}
MACHINE = """
import json, sys
from t2lib.bench._measure import machine
print(json.dumps(machine(sys.argv[1])))
"""


def parts(device: str, out: Path, notebooks: Sequence[Path]) -> list[Part]:
    """All parts, in the order they start."""
    tools, python = ROOT / "tools", sys.executable
    interpreted = {} if device == "cuda" else {"TRITON_INTERPRET": "1"}
    # The interpreter is slow, the small sizes are fast.
    check, check_sizes, time_one = (40, 40, 32) if device == "cuda" else (65, 40, 20)
    where = ["--device", device]
    found = [
        Part(
            f"checks {name}",
            [python, str(tools / "gpu_checks.py"), name, *where, "--out", str(out / f"checks-{name}.jsonl")],
            sure=check_sizes if name == SIZES else check,
            most=150,
            # Of a size for which a GPU has room once.
            alone=name == SIZES,
            environment=interpreted,
        )
        for name in (*OPERATORS, SIZES)
    ]
    small = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
    sizes = [] if device == "cuda" else [*small, "--no-compile"]
    bench = [python, "-m", "t2lib.bench"]
    for name in BENCHES:
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


def run_all(
    planned: Sequence[Part],
    out: Path,
    device: str,
    seconds: float,
    workers: int,
    *,
    machine: Mapping[str, str] | None = None,
    processes: Processes | None = None,
) -> list[Outcome]:
    """Part after part, neighbours that can share the machine several at once; all before the deadline."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench").mkdir(exist_ok=True)
    processes = processes or Processes()
    record = Record(out, device, machine or {}, planned)
    deadline = record.started + seconds

    def one(place: int) -> None:
        part = planned[place]
        limit = allowed(part, planned[place + 1 :], deadline - time.monotonic(), workers)
        if limit > 1 and not processes.interrupted:
            record.start(part)
            record.end(processes.run(part, limit, out))

    for alone, places in groupby(range(len(planned)), lambda place: planned[place].alone):
        with ThreadPoolExecutor(1 if alone else workers) as pool:
            list(pool.map(one, places))
    return list(record.outcomes.values())


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    out = options.out.resolve()
    every = parts(options.device, out, sorted((ROOT / "book").glob("ch*.ipynb")))
    planned = [part for part in every if not options.only or part.name.startswith(tuple(options.only))]
    if not planned:
        say(f"No part's name begins with {' or '.join(options.only)}.", error=True)
        return 2
    machine, reason = _machine(options.device)
    if not machine:
        what = "No CUDA device here" if options.device == "cuda" else "The library does not load here"
        say(f"{what}: {reason}", error=True)
        if options.device == "cuda":
            say("`python tools/gpu.py --device cpu` shows the same path without one.", error=True)
        return 2
    say(", ".join(f"{name} {value}" for name, value in machine.items()))
    if options.device == "cuda" and os.environ.get("TRITON_INTERPRET"):
        say("TRITON_INTERPRET is set; it is left out of what runs here, so that kernels run on the GPU.")
    clear(out, every, BENCHES)
    processes = Processes()
    seconds, workers = 60 * options.minutes, options.workers
    with processes.listening():
        outcomes = run_all(
            planned, out, options.device, seconds, workers, machine=machine, processes=processes
        )
    passed = sum(outcome.passed for outcome in outcomes)
    say(f"{passed} of {len(outcomes)} parts passed; all of it is in {out}")
    if processes.interrupted:
        say(f"Interrupted by {processes.interrupted.name}.", error=True)
        return 128 + processes.interrupted
    return 0 if passed == len(outcomes) else 1


def _parser() -> argparse.ArgumentParser:
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
    return parser


def _machine(device: str) -> tuple[dict[str, str], str]:
    """The device, versions, date and commit; or none, and why the device cannot be used."""
    status, printed, error = ask(MACHINE, device)
    return ({}, error) if status else (json.loads(printed), "")


if __name__ == "__main__":
    raise SystemExit(main())
