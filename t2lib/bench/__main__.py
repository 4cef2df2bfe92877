"""python -m t2lib.bench short_swa [--tokens 2048 ...] [--json FILE]"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

OPERATORS = ("short_swa",)


def main(arguments: list[str] | None = None) -> int:
    """Time the rungs of an operator and its peers; print one table, and write JSON if asked."""
    parser = argparse.ArgumentParser(prog="python -m t2lib.bench", description=__doc__)
    parser.add_argument("operators", nargs="*", default=list(OPERATORS), help=f"of {', '.join(OPERATORS)}")
    for name, default in (("batch", 1), ("tokens", 2048), ("width", 512), ("heads", 8), ("window", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU (default 1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave out what compiles for seconds first")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.operators if name not in OPERATORS]
    if unknown or options.width % options.heads or options.rounds < 1:
        takes = f"operators of {', '.join(OPERATORS)}, a width that heads divide, and rounds of at least 1"
        parser.error(f"takes {takes}; got {unknown or (options.width, options.heads, options.rounds)}.")

    # Before NumPy and torch load: afterwards it would be too late for their thread pools.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    # The profiler that counts memory would otherwise announce itself at every start.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    result = _short_swa(options)
    _print(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _short_swa(options: argparse.Namespace) -> dict[str, Any]:
    from t2lib.bench import short_swa as bench
    from t2lib.bench._measure import Progress, interleaved, machine, peak_bytes

    shape = bench.Shape(
        options.batch, options.tokens, options.width, options.heads, options.window, options.device
    )
    names = ["arrays", "eager", "kernels", *([] if options.no_compile else ["compiled"])]
    cases = bench.rungs(shape, names) | bench.peers(shape, compiled=not options.no_compile)
    twice = bench.rungs(replace(shape, tokens=2 * shape.tokens), names)
    longer = {f"{name}, 2T": function for name, function in twice.items()}
    progress = Progress((1 + options.rounds) * (len(cases) + len(longer)) + len(cases))
    # The double lengths stand in the same rounds: growth is a ratio too.
    timings = interleaved(cases | longer, options.rounds, progress)
    memory = {}
    for name, function in cases.items():
        progress.step(f"memory of {name}")
        memory[name] = peak_bytes(function)
    progress.close()

    # Other jobs share a CPU; on a GPU the process only waits.
    clock = "cpu" if options.device == "cpu" else "wall"
    time_of = {name: getattr(timing, clock) for name, timing in timings.items()}
    rungs = list(twice)
    best = min(rungs, key=time_of.__getitem__)
    bars = [*bench.BARS, ("FlexAttention, compiled", best, 1.0)]
    sizes = " ".join(f"--{name} {value}" for name, value in asdict(shape).items())
    return {
        "operator": "short_swa",
        "command": f"python -m t2lib.bench short_swa {sizes} --rounds {options.rounds}"
        f" --threads {options.threads}",
        "machine": machine(options.device),
        "shape": asdict(shape),
        "threads": options.threads,
        "clock": clock,
        "milliseconds": {name: timings[name].as_dict() for name in cases},
        "peak_bytes": memory,
        "growth_in_T": {rung: time_of[f"{rung}, 2T"] / time_of[rung] for rung in rungs},
        "ratios": [
            {
                "slower": slower,
                "faster": faster,
                "ratio": time_of[slower] / time_of[faster],
                "at_least": least,
            }
            for slower, faster, least in bars
            if slower in cases and faster in cases
        ],
    }


def _print(result: dict[str, Any]) -> None:
    print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    shape = ", ".join(f"{name} {value}" for name, value in result["shape"].items())
    print(f"{result['operator']}: {shape}, float32, {result['threads']} thread(s)")
    print(f"\n{'':<28}{'CPU ms':>9}{'quartiles':>18}{'wall ms':>10}{'peak MB':>9}")
    for name, timing in sorted(result["milliseconds"].items(), key=lambda entry: entry[1]["cpu"]):
        spread = f"{timing['cpu_low']:.1f} - {timing['cpu_high']:.1f}"
        memory = result["peak_bytes"][name] / 1e6
        print(f"{name:<28}{timing['cpu']:>9.1f}{spread:>18}{timing['wall']:>10.1f}{memory:>9.1f}")
    print(f"\nratios of {result['clock']} time, median over median")
    for entry in result["ratios"]:
        text = f"{entry['slower']} / {entry['faster']}"
        print(f"  {text:<44}{entry['ratio']:>7.1f}   (at least {entry['at_least']:g})")
    for rung, growth in result["growth_in_T"].items():
        print(f"  {rung + ', twice the tokens':<44}{growth:>7.2f}   (1.6 to 2.4)")


if __name__ == "__main__":
    sys.exit(main())
