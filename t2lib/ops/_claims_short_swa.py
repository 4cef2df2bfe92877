"""What `python -m t2lib.verify` checks of short_swa, rung by rung."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from t2lib import golden
from t2lib.golden import replay
from t2lib.ops import _registry, short_swa
from t2lib.ops._laws import LAWS, error

__all__ = ["OPERATORS", "Check", "checks"]

OPERATORS = ("short_swa",)

# A tolerance, and what measures an error; or why it is not for this rung.
Check = tuple[float, Callable[[], float] | str]
# float64 on all rungs but the kernels, which compute in float32.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5}


def checks(operator: str, rung: str) -> dict[str, Check]:
    """Every check of short_swa on one rung, by name."""
    return {name: (TOLERANCE[_dtype(rung)], measure) for name, measure in _checks(rung).items()}


def _dtype(rung: str) -> str:
    return "float32" if rung == "kernels" else "float64"


def _checks(rung: str) -> dict[str, Callable[[], float] | str]:
    """What measures each check on this rung, or why it is not for this rung."""
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
