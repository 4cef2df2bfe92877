"""Check what the library claims, on this machine: `python -m t2lib.verify [section ...]`.

One table a section: checks down, rungs across, in each cell the largest error. A cell that cannot run says
why below the table. The exit status is 1 if any cell is red, 2 for an unknown section.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from t2lib import __version__, golden
from t2lib.golden import replay
from t2lib.ops import RungUnavailable, _claims_depth, _claims_streams, _registry, short_swa
from t2lib.ops._laws import LAWS, error

# float64 on all rungs but the kernels, which compute in float32.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5}
INFINITE = float("inf")


@dataclass(frozen=True)
class Cell:
    """One check on one rung: its error, or why it was skipped; `detail` tells what was raised."""

    operator: str
    check: str
    rung: str
    error: float | None
    tolerance: float = 0.0
    reason: str = ""
    detail: str = ""

    @property
    def red(self) -> bool:
        # Written so that NaN is red.
        return self.error is not None and not self.error <= self.tolerance


Section = Callable[[], Iterable[Cell]]
SECTIONS: dict[str, Section] = {}


def section(name: str) -> Callable[[Section], Section]:
    """Register a section: a function that yields cells."""

    def register(function: Section) -> Section:
        SECTIONS[name] = function
        return function

    return register


def cell(operator: str, check: str, rung: str, tolerance: float, measure: Callable[[], float]) -> Cell:
    """Run one check. What raises is red, unless it is the rung that says it cannot run."""
    try:
        # Some checks feed NaN and infinity on purpose; what comes of it is compared, not announced.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return Cell(operator, check, rung, float(measure()), tolerance)
    except RungUnavailable as unavailable:
        return Cell(operator, check, rung, None, reason=str(unavailable))
    except Exception as raised:
        return Cell(operator, check, rung, INFINITE, tolerance, detail=f"{type(raised).__name__}: {raised}")


@section("short_swa")
def _short_swa() -> Iterator[Cell]:
    for rung, runs_here, reason in _registry.ladder("short_swa"):
        make = partial(cell, "short_swa", rung=rung)
        for check, measure in _checks(rung).items():
            if not runs_here:
                yield Cell("short_swa", check, rung, None, reason=reason)
            elif isinstance(measure, str):
                yield Cell("short_swa", check, rung, None, reason=measure)
            else:
                yield make(check, tolerance=TOLERANCE[_dtype(rung)], measure=measure)


def _dtype(rung: str) -> str:
    return "float32" if rung == "kernels" else "float64"


def _checks(rung: str) -> dict[str, Callable[[], float] | str]:
    """Every check of short_swa by name: what measures it on this rung, or why it is not for this rung."""
    checks: dict[str, Callable[[], float] | str] = {}
    few = rung == "compiled"
    for name, law in LAWS.items():
        checks[f"law: {name}"] = partial(law, partial(_read, rung))
        if few and name != "window one returns the values":
            checks[f"law: {name}"] = "left out: it would compile for seconds"
    for name in replay.names():
        checks[f"golden: {name}"] = partial(_golden, rung, name)
        if few and name != "dual_depth_read_K2":
            checks[f"golden: {name}"] = "left out: it would compile for seconds"
    if rung in _registry.NUMPY_RUNGS:
        checks["gradients: finite differences"] = "NumPy has no gradients"
    elif rung == "eager":
        checks["gradients: finite differences"] = _gradcheck
    else:
        checks["gradients: finite differences"] = (
            "first order only: its gradients are checked on the golden vectors"
        )
    for name, layout in _LAYOUTS.items():
        checks[f"layout: {name}"] = partial(_layout, rung, layout)
        if few:
            checks[f"layout: {name}"] = "left out: it would compile for seconds"
    return checks


def _read(rung: str, *arrays: Any, **arguments: Any) -> Any:
    """short_swa on NumPy arrays, in the dtype that the rung has."""
    narrow = [x.astype(_dtype(rung)) for x in arrays]
    if rung == "kernels":
        narrow, arguments = _on_device(narrow, arguments)
    z = short_swa(*narrow, rung=rung, **arguments)
    return z if isinstance(z, np.ndarray) else z.cpu().numpy()


def _on_device(arrays: list[Any], arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    move = partial(torch.as_tensor, device=device)
    labels: dict[str, Any] = {
        name: move(arguments[name]) for name in ("documents", "valid") if name in arguments
    }
    return [move(x) for x in arrays], {**arguments, **labels}


def _golden(rung: str, name: str) -> float:
    """The output, and on the rungs of torch every gradient, relative to the largest entry."""
    arrays = golden.load(name)
    read = partial(short_swa, rung=rung)
    if rung in _registry.NUMPY_RUNGS:
        return _relative(replay.replay(name, arrays, read), arrays["out"])
    import torch

    tensors = {key: torch.from_numpy(x) for key, x in arrays.items()}
    if rung == "kernels":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        tensors = {key: (x.float() if x.is_floating_point() else x).to(device) for key, x in tensors.items()}
    for key, x in tensors.items():
        if x.is_floating_point() and key.startswith(("in__", "par__")):
            x.requires_grad_()
    out = replay.replay(name, tensors, read)
    out.backward(tensors["cotangent"])
    errors = [_relative(out.detach().cpu().numpy(), arrays["out"])]
    for key, want in arrays.items():
        if key.startswith("grad__"):
            place = next(p + key[6:] for p in ("in__", "par__") if p + key[6:] in tensors)
            gradient = tensors[place].grad
            # A weight that the output does not depend on has no gradient, which is a gradient of zero.
            got = np.zeros_like(want) if gradient is None else gradient.cpu().numpy()
            errors.append(_relative(got, want))
    return max(errors)


def _relative(got: Any, want: Any) -> float:
    return error(got, want) / max(1.0, float(np.abs(want).max()))


def _gradcheck() -> float:
    """0 if the gradients of q, k and v agree with finite differences; torch raises where they do not."""
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for axis, window in ((1, 3), (0, 2)):
        torch.autograd.gradcheck(partial(short_swa, window=window, axis=axis, rung="eager"), (q, k, v))
    return 0.0


def _transposed(x: Any) -> Any:
    return np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)


def _sliced(x: Any) -> Any:
    buffer = np.full([n + 2 for n in x.shape], np.nan, x.dtype)
    inner = buffer[tuple(slice(1, -1) for _ in x.shape)]
    inner[...] = x
    return inner


_LAYOUTS: dict[str, Callable[[Any], Any]] = {"transposed": _transposed, "sliced out of NaN": _sliced}


def _layout(rung: str, layout: Callable[[Any], Any]) -> float:
    """Lengths around the window and around a block, in a layout that is not contiguous, against loops."""
    worst = 0.0
    lengths = (70,) if rung in ("compiled", "kernels") else (1, 2, 4, 5, 6, 70)
    for length in lengths:
        generator = np.random.default_rng(length)
        plain = [generator.standard_normal((2, length, 2, 16)).astype(_dtype(rung)) for _ in range(3)]
        got = _read(rung, *(layout(x) for x in plain), window=5, axis=1)
        worst = max(worst, error(got, short_swa(*plain, window=5, axis=1, rung="loops")))
    return worst


def _by_claims(
    operator: str, claims: Callable[[str, str], dict[str, _claims_streams.Check]]
) -> Iterator[Cell]:
    """A section from what a module of claims lists: check -> a tolerance and what measures it, or why not."""
    for rung, runs_here, reason in _registry.ladder(operator):
        for check, (tolerance, measure) in claims(operator, rung).items():
            if not runs_here or isinstance(measure, str):
                why = measure if runs_here and isinstance(measure, str) else reason
                yield Cell(operator, check, rung, None, reason=why)
            else:
                yield cell(operator, check, rung, tolerance, measure)


for _claims in (_claims_depth, _claims_streams):
    for _name in _claims.OPERATORS:
        section(_name)(partial(_by_claims, _name, _claims.checks))


def report(cells: list[Cell]) -> str:
    """The cells as one table an operator: checks down, rungs across, reasons below."""
    lines: list[str] = []
    for operator in dict.fromkeys(c.operator for c in cells):
        mine = [c for c in cells if c.operator == operator]
        rungs, checks = (list(dict.fromkeys(getattr(c, key) for c in mine)) for key in ("rung", "check"))
        wide = max(len(check) for check in checks) + 2
        notes: dict[str, int] = {}
        lines += ["", f"{operator:<{wide}}" + "".join(f"{rung:<12}" for rung in rungs)]
        for check in checks:
            row = f"{check:<{wide}}"
            for rung in rungs:
                found = next((c for c in mine if (c.check, c.rung) == (check, rung)), None)
                row += f"{_shown(found, notes):<12}"
            lines.append(row.rstrip())
        lines += [f"[{number}] {reason}" for reason, number in notes.items()]
        lines += [f"RED {c.check} on {c.rung}: {c.detail or f'{c.error:.1e}'}" for c in mine if c.red]
    return "\n".join(lines)


def _shown(found: Cell | None, notes: dict[str, int]) -> str:
    if found is None:
        return ""
    if found.error is None:
        return f"skip [{notes.setdefault(found.reason, len(notes) + 1)}]"
    return f"RED {found.error:.0e}" if found.red else f"ok {found.error:.0e}"


def main(arguments: list[str] | None = None) -> int:
    """Run the sections and print their tables; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m t2lib.verify", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; all by default")
    chosen = parser.parse_args(arguments).sections or list(SECTIONS)
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        print(f"sections must be of {', '.join(SECTIONS)}; got {', '.join(unknown)}.", file=sys.stderr)
        return 2
    started = time.perf_counter()
    torch = sys.modules.get("torch")
    versions = [f"t2lib {__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    if torch is None and _registry.installed("torch"):
        import torch
    versions.append("no torch" if torch is None else f"torch {torch.__version__}")
    print(", ".join(versions))
    cells = [c for name in chosen for c in SECTIONS[name]()]
    print(report(cells))
    red, skipped = sum(c.red for c in cells), sum(c.error is None for c in cells)
    seconds = time.perf_counter() - started
    passed = len(cells) - red - skipped
    print(f"\n{passed} passed, {red} red, {skipped} skipped, in {seconds:.0f} s")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
