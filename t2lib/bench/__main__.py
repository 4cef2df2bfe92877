"""python -m t2lib.bench [operator ... | streams] [--tokens 2048 ...] [--json FILE] [--plot DIR]

Times every rung of an operator and every peer that is installed, interleaved in one run. Sizes are given by
name; an operator that does not have a size ignores it. The exit status is 1 if a rung that runs on this
machine failed when it was called, 2 for arguments that it does not take.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from t2lib.bench import _arguments
from t2lib.bench._arguments import OPERATORS, STREAMS

__all__ = ["OPERATORS", "THREADS", "main"]

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def main(arguments: list[str] | None = None) -> int:
    """Time the operators that were named, print their tables, and write or draw what was asked for."""
    parser = _arguments.parser(__doc__ or "")
    options = parser.parse_args(arguments)
    # Before NumPy and torch load: afterwards it would be too late for their thread pools.
    for variable in THREADS:
        os.environ[variable] = str(options.threads)
    # The profiler that counts memory would otherwise announce itself at every start.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    _arguments.check(parser, options)
    stored = [_read(parser, file) for file in options.read or ()]
    before = _read(parser, options.compare) if options.compare else None
    _arguments.check_stored(parser, options, stored, before)
    if not stored:
        _arguments.check_machine(parser, options)
    if options.tune:
        return _tune(options)
    shown, failed = [], False
    for result in stored or (_measure(name, options) for name in options.operators):
        if result is None:
            failed = True
            continue
        print("\n".join(_lines(result, before)) + "\n", flush=True)
        if not options.read:
            _write(result, options)
            failed |= _failed(result)
        shown.append(result)
    if options.plot:
        from t2lib.bench import _plot

        for file in _plot.draw(shown, options.plot):
            print(file)
    return int(failed)


def _measure(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """All of one operator; None, and a sentence, if there was not enough memory for it."""
    from t2lib.bench import _memory
    from t2lib.bench._measure import sentence

    try:
        return _measured(name, options)
    except Exception as error:
        if not _memory.is_too_little(error):
            raise
        print(f"{name}: takes sizes that fit into memory; {sentence(error)}", file=sys.stderr)
        return None


def _measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    from t2lib.bench._table import FRESH, KEPT

    module = importlib.import_module(f"t2lib.bench.{name}")
    setting, shape = _arguments.setting_of(options), _arguments.shape_of(module, options)

    def whole(result: dict[str, Any]) -> dict[str, Any]:
        command = f"{result['command']} --threads {options.threads}"
        found = result | {"threads": options.threads, "command": command}
        if options.device == "cpu":
            found["memory"] = KEPT if options.keep_memory else FRESH
            found["command"] += " --keep-memory" if options.keep_memory else ""
        return found

    # Written as it comes, so that a run that is cut short leaves what it had.
    keep = (lambda result: _write(whole(result), options)) if options.json else None
    if name == STREAMS:
        return whole(module.measure(shape, setting, rounds=options.rounds, keep=keep))
    from t2lib.bench._runner import measure

    growth = not options.no_growth
    return whole(measure(module, shape, setting, rounds=options.rounds, growth=growth, keep=keep))


def _failed(result: dict[str, Any]) -> bool:
    """Say which rungs failed though they run here."""
    for name, why in result["failed"].items():
        print(f"{result['operator']}: {name} failed when it was called: {why}", file=sys.stderr)
    return bool(result["failed"])


def _lines(result: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    from t2lib.bench import _table, streams

    of = streams if result["operator"] == STREAMS else _table
    return [*of.lines(result), *(_table.compared(result, before) if before else ())]


def _write(result: dict[str, Any], options: argparse.Namespace) -> None:
    from t2lib.bench._table import file_name

    path = options.json
    if path is None:
        return
    if path.is_dir() or not path.suffix:
        path = path / f"{file_name(result)}.json"
    # In one step, so that a run that is cut short here leaves a whole file.
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _read(parser: argparse.ArgumentParser, file: Path) -> dict[str, Any]:
    try:
        result: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        parser.error(f"takes files that can be read; got {str(file)!r}: {error.strerror}.")
    except ValueError:
        result = None
    try:
        # Shown, compared with itself, and thrown away: what cannot be shown is no result.
        whole = isinstance(result, dict) and result.keys() >= _arguments.ALWAYS and _lines(result, result)
    except (LookupError, TypeError, ValueError, AttributeError):
        whole = False
    if not whole:
        parser.error(f"takes results that --json wrote; got {str(file)!r}, which is none.")
    return result  # type: ignore[no-any-return]


def _tune(options: argparse.Namespace) -> int:
    from t2lib.bench._tune import tune
    from t2lib.ops._configs import TABLE, rewrite

    table = options.json or TABLE
    setting = _arguments.setting_of(options)
    for name in options.operators:
        module = importlib.import_module(f"t2lib.bench.{name}")
        records = tune(module, _arguments.shape_of(module, options), setting, rounds=options.rounds)
        # After each operator, so that a run that is cut short leaves what it had.
        rewrite(table, records)
        print(f"{name}: {len(records)} written to {table}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
