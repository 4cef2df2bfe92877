"""python -m t2lib.bench [operator ... | streams] [--tokens 2048 ...] [--json FILE] [--plot DIR]

Times every rung of an operator and every peer that is installed, interleaved in one run. Sizes are given by
name; an operator that does not have a size ignores it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

OPERATORS = ("short_swa", "depth_mix", "depth_attention", "stream_mix", "delta_rewrite", "short_conv")
STREAMS = "streams"
SIZES = ("batch", "tokens", "width", "heads", "window", "states", "streams", "channels", "taps", "blocks")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def main(arguments: list[str] | None = None) -> int:
    """Time the operators that were named, print their tables, and write or draw what was asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    stored = [_read(parser, file) for file in options.read or ()]
    before = _read(parser, options.compare) if options.compare else None
    _check_stored(parser, options, stored, before)
    # Before NumPy and torch load: afterwards it would be too late for their thread pools.
    for variable in THREADS:
        os.environ[variable] = str(options.threads)
    # The profiler that counts memory would otherwise announce itself at every start.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if not stored:
        _check_machine(parser, options)

    if options.tune:
        return _tune(options)
    shown = []
    for result in stored or (_measure(name, options) for name in options.operators):
        _print(result, before)
        if not options.read:
            _write(result, options)
        shown.append(result)
        print(flush=True)
    if options.plot:
        from t2lib.bench import _plot

        for file in _plot.draw(shown, options.plot):
            print(file)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m t2lib.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join((*OPERATORS, STREAMS))
    parser.add_argument(
        "operators", nargs="*", default=list(OPERATORS), help=f"of {known} (default: operators)"
    )
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU (default 1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16"), help="default: what suits the device"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave out what compiles for seconds first")
    parser.add_argument("--no-growth", action="store_true", help="one size only")
    parser.add_argument(
        "--json", type=Path, help="write all numbers to this file, or to a file each in this folder"
    )
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show ratios to this earlier result")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="show these results, time nothing"
    )
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw growth and roofline as PNG")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="time the kernels' configurations on this GPU and rewrite the library's table with the fastest, "
        "or the table that --json names",
    )
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    known = (*OPERATORS, STREAMS)
    unknown = [name for name in options.operators if name not in known]
    if unknown:
        parser.error(f"takes operators of {', '.join(known)}; got {unknown}.")
    sizes = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    numbers = sizes | {"rounds": options.rounds, "threads": options.threads}
    wrong = {name: size for name, size in numbers.items() if size < 1}
    if wrong:
        parser.error(f"takes sizes, rounds and threads of at least 1; got {wrong}.")
    if options.tune and options.device != "cuda":
        parser.error("--tune times kernels, so it takes --device cuda.")
    if options.tune and STREAMS in options.operators:
        parser.error(
            f"--tune takes operators, which have kernels; got {STREAMS!r}, which has none of its own."
        )
    if options.json and not options.tune and options.json.is_file() and len(options.operators) > 1:
        parser.error(f"--json takes a folder for several operators; got the file {str(options.json)!r}.")


def _check_table(parser: argparse.ArgumentParser, table: Path) -> None:
    from t2lib.ops._configs import rewrite

    try:
        # Read, and written back as it is: whatever is wrong with the file shows before anything is timed.
        rewrite(table, [])
    except OSError as error:
        parser.error(f"--tune takes a table that can be written; got {str(table)!r}: {error.strerror}.")
    except ValueError as error:
        parser.error(str(error))


def _check_stored(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    stored: list[dict[str, Any]],
    before: dict[str, Any] | None,
) -> None:
    shown = [result["operator"] for result in stored] or options.operators
    if before and set(shown) != {before["operator"]}:
        parser.error(f"--compare takes a result of {', '.join(shown)}; got one of {before['operator']}.")
    names = [_name(result) for result in stored]
    twice = sorted({name for name in names if names.count(name) > 1})
    if options.plot and twice:
        parser.error(f"--plot takes one result an operator and device; got several of {', '.join(twice)}.")


def _check_machine(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Whether the device is there, and every operator has the sizes asked for."""
    if options.device == "cuda":
        from t2lib.bench._case import optional

        torch: Any = optional("torch")
        if torch is None or not torch.cuda.is_available():
            parser.error("--device cuda takes a machine with torch and a CUDA device; this one has none.")
    for name in options.operators:
        try:
            _shape(importlib.import_module(f"t2lib.bench.{name}"), options)
        except ValueError as error:
            parser.error(f"{name}: {error}")
    if options.tune:
        _check_table(parser, _table_of(options))


def _setting(options: argparse.Namespace) -> Any:
    from t2lib.bench._case import Setting
    from t2lib.environment import dtype_for

    dtype = options.dtype
    if dtype is None and options.device == "cuda":
        import torch

        dtype = dtype_for(torch.cuda.get_device_capability())
    return Setting(options.device, dtype or "float32", not options.no_compile)


def _shape(module: Any, options: argparse.Namespace) -> Any:
    default = module.ON_CUDA if options.device == "cuda" else module.Shape()
    names = [field.name for field in fields(default)]
    given = {name: getattr(options, name) for name in names if getattr(options, name, None) is not None}
    return replace(default, **given)


def _measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    module = importlib.import_module(f"t2lib.bench.{name}")
    setting, shape = _setting(options), _shape(module, options)

    def whole(result: dict[str, Any]) -> dict[str, Any]:
        command = f"{result['command']} --threads {options.threads}"
        return result | {"threads": options.threads, "command": command}

    # Written as it comes, so that a run that is cut short leaves what it had.
    keep = (lambda result: _write(whole(result), options)) if options.json else None
    if name == STREAMS:
        return whole(module.measure(shape, setting, rounds=options.rounds, keep=keep))
    from t2lib.bench._runner import measure

    growth = not options.no_growth
    return whole(measure(module, shape, setting, rounds=options.rounds, growth=growth, keep=keep))


def _print(result: dict[str, Any], before: dict[str, Any] | None) -> None:
    from t2lib.bench import _table

    if result["operator"] == STREAMS:
        from t2lib.bench import streams

        lines = list(streams.lines(result))
    else:
        lines = list(_table.lines(result))
    if before:
        lines += _table.compared(result, before)
    print("\n".join(lines))


def _write(result: dict[str, Any], options: argparse.Namespace) -> None:
    path = options.json
    if path is None:
        return
    if path.is_dir() or not path.suffix or len(options.operators) > 1:
        path = path / f"{_name(result)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # In one step, so that a run that is cut short here leaves a whole file.
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _name(result: dict[str, Any]) -> str:
    from t2lib.bench._table import where

    return f"{result['operator']}-{where(result)}"


def _read(parser: argparse.ArgumentParser, file: Path) -> dict[str, Any]:
    try:
        result: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        parser.error(f"takes files that can be read; got {str(file)!r}: {error.strerror}.")
    except ValueError:
        result = None
    # What every result has, whatever was measured.
    if not (isinstance(result, dict) and {"operator", "machine", "shape", "clock"} <= result.keys()):
        parser.error(f"takes results that --json wrote; got {str(file)!r}, which is none.")
    return result


def _table_of(options: argparse.Namespace) -> Path:
    from t2lib.ops._configs import TABLE

    return options.json or TABLE


def _tune(options: argparse.Namespace) -> int:
    from t2lib.bench._tune import tune
    from t2lib.ops._configs import rewrite

    table = _table_of(options)
    for name in options.operators:
        module = importlib.import_module(f"t2lib.bench.{name}")
        records = tune(module, _shape(module, options), _setting(options), rounds=options.rounds)
        # After each operator, so that a run that is cut short leaves what it had.
        rewrite(table, records)
        print(f"{name}: {len(records)} written to {table}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
