"""What the command line of the bench takes, and one sentence for what it does not."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

OPERATORS = ("short_swa", "depth_mix", "depth_attention", "stream_mix", "delta_rewrite", "short_conv")
STREAMS = "streams"
# What each size means, and what is measured that has it; all others ignore it.
SIZES: dict[str, tuple[str, tuple[str, ...]]] = {
    "batch": ("sequences", ("short_swa", "short_conv", STREAMS)),
    "tokens": ("tokens T of a sequence", (*OPERATORS, STREAMS)),
    "width": ("width d of a state", (*OPERATORS, STREAMS)),
    "heads": ("heads H that share the width", ("short_swa", STREAMS)),
    "window": ("window w on the tokens", ("short_swa",)),
    "layers": ("layers L of the read along depth", ("short_swa",)),
    "depth_window": ("window K of the read along depth", ("short_swa",)),
    "states": ("states N that are read", ("depth_mix", "depth_attention")),
    "streams": ("streams n side by side", ("stream_mix",)),
    "channels": ("value channels d_v", ("delta_rewrite",)),
    "taps": ("taps K of the convolution", ("short_conv",)),
    "blocks": ("blocks of the decoder", (STREAMS,)),
}
# What every result has, whatever was measured.
ALWAYS = {"operator", "machine", "shape", "clock"}


def parser(description: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m t2lib.bench",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join((*OPERATORS, STREAMS))
    found.add_argument("operators", nargs="*", help=f"of {known} (default: all operators)")
    sizes = found.add_argument_group("sizes", "default: those of the tables in the book")
    for name, (meaning, having) in SIZES.items():
        of = "all" if len(having) > len(OPERATORS) else ", ".join(having)
        sizes.add_argument(option(name), type=int, metavar="N", help=f"{meaning} ({of})")
    found.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    found.add_argument("--threads", type=int, default=1, help="threads on the CPU (default 1)")
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    found.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16"), help="default: what suits the device"
    )
    found.add_argument("--no-compile", action="store_true", help="leave out what compiles for seconds first")
    found.add_argument("--no-growth", action="store_true", help="one size only")
    found.add_argument(
        "--keep-memory",
        action="store_true",
        help="let malloc keep freed memory (Linux, CPU), so that no time goes into fresh pages",
    )
    found.add_argument(
        "--json", type=Path, help="write all numbers to this file, or to a file each in this folder"
    )
    found.add_argument("--compare", type=Path, metavar="FILE", help="show ratios to this earlier result")
    found.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="show these results, time nothing"
    )
    found.add_argument("--plot", type=Path, metavar="DIR", help="draw growth and roofline as PNG")
    found.add_argument(
        "--tune",
        action="store_true",
        help="time the kernels' configurations on this GPU and rewrite the library's table with the fastest, "
        "or the table that --json names",
    )
    return found


def option(size: str) -> str:
    """The size as an option of the command line."""
    return f"--{size.replace('_', '-')}"


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """All that can be said without a look at the machine; operators that were not named are filled in."""
    known = (*OPERATORS, STREAMS)
    unknown = [name for name in options.operators if name not in known]
    if unknown:
        parser.error(f"takes operators of {', '.join(known)}; got {unknown}.")
    if options.read and options.operators:
        parser.error(f"--read shows what its files hold and takes no operators; got {options.operators}.")
    options.operators = options.operators or list(OPERATORS)
    sizes = {name: getattr(options, name) for name in SIZES if getattr(options, name) is not None}
    numbers = sizes | {"rounds": options.rounds, "threads": options.threads}
    wrong = {name: size for name, size in numbers.items() if size < 1}
    if wrong:
        parser.error(f"takes sizes, rounds and threads of at least 1; got {wrong}.")
    if options.keep_memory and options.device != "cpu":
        parser.error("--keep-memory is for the CPU; on a GPU torch keeps memory by itself.")
    if options.tune and options.device != "cuda":
        parser.error("--tune times kernels, so it takes --device cuda.")
    if options.tune and STREAMS in options.operators:
        parser.error(
            f"--tune takes operators, which have kernels; got {STREAMS!r}, which has none of its own."
        )
    if options.json and not options.tune and not options.read:
        _check_json(parser, options)
    if options.plot:
        _check_plot(parser, options.plot)


def _check_json(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    path, several = options.json, len(options.operators) > 1
    if several and path.suffix and not path.is_dir():
        parser.error(f"--json takes a folder for several operators; got {str(path)!r}, the name of a file.")
    folder = path if path.is_dir() or not path.suffix else path.parent
    _check_folder(parser, "--json", path, folder)


def _check_plot(parser: argparse.ArgumentParser, folder: Path) -> None:
    from t2lib.bench._case import optional

    _check_folder(parser, "--plot", folder, folder)
    if optional("matplotlib") is None:
        parser.error("--plot takes matplotlib, which is not installed here; `pip install matplotlib`.")


def _check_folder(parser: argparse.ArgumentParser, name: str, path: Path, folder: Path) -> None:
    """Make the folder, and a file in it: whatever is wrong with it shows before anything is timed."""
    trial = folder / ".t2lib-bench"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        parser.error(f"{name} takes a place that can be written; got {str(path)!r}: {error.strerror}.")


def check_stored(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    stored: list[dict[str, Any]],
    before: dict[str, Any] | None,
) -> None:
    """Whether the files that were read go together."""
    from t2lib.bench._table import file_name

    shown = [result["operator"] for result in stored] or options.operators
    if before and set(shown) != {before["operator"]}:
        parser.error(f"--compare takes a result of {', '.join(shown)}; got one of {before['operator']}.")
    names = [file_name(result) for result in stored]
    twice = sorted({name for name in names if names.count(name) > 1})
    if options.plot and twice:
        parser.error(f"--plot takes one result an operator and device; got several of {', '.join(twice)}.")


def check_machine(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Whether the device is there, and every operator has the sizes asked for and room for them."""
    from t2lib.bench._case import optional
    from t2lib.bench._memory import free_bytes, keep_freed
    from t2lib.ops._configs import TABLE

    if options.device == "cuda":
        torch: Any = optional("torch")
        if torch is None or not torch.cuda.is_available():
            parser.error("--device cuda takes a machine with torch and a CUDA device; this one has none.")
    setting = setting_of(options)
    free = free_bytes(options.device)
    for name in options.operators:
        module = importlib.import_module(f"t2lib.bench.{name}")
        try:
            shape = shape_of(module, options)
        except ValueError as error:
            parser.error(f"{name}: {error}")
        held = _held(module, shape, setting, growth=not (options.no_growth or options.tune))
        if free is not None and held > free:
            parser.error(
                f"{name}: takes sizes that fit into memory; these take at least {held / 1e9:.1f} GB, and"
                f" {free / 1e9:.1f} GB are free."
            )
    if options.keep_memory and not keep_freed():
        parser.error("--keep-memory takes a system with glibc, whose malloc can be told to.")
    if options.tune:
        _check_table(parser, options.json or TABLE)


def _held(module: Any, shape: Any, setting: Any, *, growth: bool) -> int:
    from t2lib.bench import _memory

    if module.NAME == STREAMS:
        return int(module.bytes_held(shape, setting))
    return _memory.bytes_held(module, shape, setting, growth=growth)


def _check_table(parser: argparse.ArgumentParser, table: Path) -> None:
    from t2lib.ops._configs import rewrite

    try:
        # Read, and written back as it is: whatever is wrong with the file shows before anything is timed.
        rewrite(table, [])
    except OSError as error:
        parser.error(f"--tune takes a table that can be written; got {str(table)!r}: {error.strerror}.")
    except ValueError as error:
        parser.error(str(error))


def setting_of(options: argparse.Namespace) -> Any:
    from t2lib.bench._case import Setting
    from t2lib.environment import dtype_for

    dtype = options.dtype
    if dtype is None and options.device == "cuda":
        import torch

        dtype = dtype_for(torch.cuda.get_device_capability())
    return Setting(options.device, dtype or "float32", not options.no_compile)


def shape_of(module: Any, options: argparse.Namespace) -> Any:
    default = module.ON_CUDA if options.device == "cuda" else module.Shape()
    names = [field.name for field in fields(default)]
    given = {name: getattr(options, name) for name in names if getattr(options, name, None) is not None}
    return replace(default, **given)
