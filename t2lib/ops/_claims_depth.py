"""What `python -m t2lib.verify` checks of depth_mix and depth_attention, rung by rung."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from t2lib import golden
from t2lib.golden import replay_depth
from t2lib.golden.replay_depth import Operators
from t2lib.ops import _registry
from t2lib.ops._contract import to_torch
from t2lib.ops._laws import error, random
from t2lib.ops._laws_depth import MIX, READ

__all__ = ["OPERATORS", "Check", "checks"]

OPERATORS = ("depth_mix", "depth_attention")

# A tolerance, and what measures an error; or why it is not for this rung.
Check = tuple[float, Callable[[], float] | str]
# float64 on all rungs but the kernels, which compute in float32.
SINGLE = 2e-5
SECONDS = "left out: it would compile for seconds; 'gradients: as eager' compiles one form"


def checks(operator: str, rung: str) -> dict[str, Check]:
    """Every check of one operator on one rung, by name."""
    found: dict[str, Check] = {}
    if operator == "depth_mix":
        found |= {f"law: {name}": (1e-10, partial(_law_of_mix, name, rung)) for name in MIX}
    else:
        found |= {f"law: {name}": (1e-10, partial(_law_of_read, name, rung)) for name in READ}
    for name in replay_depth.names(operator):
        found[f"golden: {name}"] = (1e-10, partial(_golden, rung, name))
    for layout in LAYOUTS:
        found[f"layout: {layout}"] = (1e-12, partial(_layout, operator, rung, layout))
    found["half precision: sums in float32"] = (1.0, partial(_half, operator, rung))
    if rung == "compiled":
        found = {name: (tolerance, SECONDS) for name, (tolerance, _) in found.items()}
    differences: Callable[[], float] | str = "NumPy has no gradients"
    as_eager: Callable[[], float] | str = differences
    if rung not in _registry.NUMPY_RUNGS:
        differences = partial(_gradcheck, operator) if rung == "eager" else "compared with eager instead"
        as_eager = "it is eager" if rung == "eager" else partial(_as_eager, operator, rung)
    found["gradients: finite differences"] = (0.0, differences)
    found["gradients: as eager"] = (1e-10, as_eager)
    if rung == "kernels":
        half = "half precision: sums in float32"
        found = {name: (SINGLE if name != half else 1.0, measure) for name, (_, measure) in found.items()}
    return found


def _operators(rung: str) -> Operators:
    """The operators with their rung chosen; the kernels get float64 in float32, on their device."""
    operators = Operators(rung)
    if rung == "kernels":
        for name, function in vars(operators).items():
            setattr(operators, name, partial(_in_single, function))
    return operators


def _in_single(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    numpy = False

    def narrow(x: Any) -> Any:
        nonlocal numpy
        if isinstance(x, (list, tuple)):
            return [narrow(part) for part in x]
        numpy |= isinstance(x, np.ndarray)
        x = to_torch(x) if isinstance(x, np.ndarray) else x
        if not isinstance(x, torch.Tensor):
            return x
        return (x.float() if x.dtype == torch.float64 else x).to(device)

    def widen(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(widen(part) for part in x)
        x = x.cpu().double()
        return x.detach().numpy() if numpy else x

    return widen(function(*narrow(arrays), **{name: narrow(x) for name, x in options.items()}))


def _law_of_mix(name: str, rung: str) -> float:
    return MIX[name](_operators(rung).depth_mix)


def _law_of_read(name: str, rung: str) -> float:
    return READ[name](_operators(rung))


def _golden(rung: str, name: str) -> float:
    """All the network computes, and on the rungs of torch every gradient, relative to the largest entry."""
    arrays, operators = golden.load(name), _operators(rung)
    if rung in _registry.NUMPY_RUNGS:
        found = replay_depth.replay(name, arrays, operators)
        return max(_relative(x, arrays[key]) for key, x in found.items())
    import torch

    tensors = {key: torch.from_numpy(x) for key, x in arrays.items()}
    recorded = replay_depth.gradients(arrays)
    for _, place in recorded.values():
        tensors[place].requires_grad_()
    found = replay_depth.replay(name, tensors, operators)
    errors = [_relative(x.detach().numpy(), arrays[key]) for key, x in found.items()]
    above = tensors["cotangent" if "cotangent" in tensors else "cot"]
    for key, (out, place) in recorded.items():
        if out not in found:
            # The gradient of a whole network of which only the mixing is replayed.
            continue
        (gradient,) = torch.autograd.grad(
            found[out], tensors[place], above, retain_graph=True, allow_unused=True
        )
        # A weight that the output does not depend on has no gradient, which is a gradient of zero.
        got = np.zeros_like(arrays[key]) if gradient is None else gradient.numpy()
        errors.append(_relative(got, arrays[key]))
    return max(errors)


def _relative(got: Any, want: Any) -> float:
    return error(got, want) / max(1.0, float(np.abs(want).max()))


def call(operator: str, arrays: list[Any], rung: str, *, whole: bool = False) -> tuple[Any, ...]:
    """A call that uses all the operator has: four states, then weights or queries; results as a tuple."""
    op, states, rest = _operators(rung), arrays[:4], arrays[4:]
    if operator == "depth_mix":
        return (op.depth_mix(states, rest[0], rest[1], outputs=2),)
    w, gain, query = rest
    read = op.depth_attention(states, w[0], gain=gain[0], query=query, return_lse=True)
    if whole:
        return tuple(read)
    parts = [op.depth_attention_partial(some, w, gains=gain) for some in (states[:3], states[3:])]
    return (*read, *op.merge(parts, return_lse=True))


def inputs(operator: str, *shape: int) -> list[Any]:
    """Arrays for `call`, with states of the given shape."""
    *tokens, width = shape
    states = [random(*shape, seed=seed) for seed in range(4)]
    if operator == "depth_mix":
        return [*states, random(2, 4, width, seed=4), random(*tokens, 2, 4, seed=5)]
    return [*states, random(2, width, seed=4), random(2, width, seed=5), random(*shape, seed=6)]


def _transposed(x: Any) -> Any:
    return np.ascontiguousarray(x.T).T


def _sliced(x: Any) -> Any:
    buffer = np.full([n + 2 for n in x.shape], np.nan, x.dtype)
    inner = buffer[tuple(slice(1, -1) for _ in x.shape)]
    inner[...] = x
    return inner


LAYOUTS: dict[str, Callable[[Any], Any]] = {"transposed": _transposed, "sliced out of NaN": _sliced}


def _layout(operator: str, rung: str, layout: str) -> float:
    """Several lengths and widths, in a layout that is not contiguous, against loops."""
    worst = 0.0
    for shape in ((5,), (1, 16), (2, 3, 7), (0, 4), (9, 24)):
        plain = inputs(operator, *shape)
        narrow = [x.astype(np.float32) for x in plain] if rung == "kernels" else plain
        got = call(operator, [LAYOUTS[layout](x) for x in narrow], rung)
        want = call(operator, plain, "loops")
        worst = max(worst, *(error(one, other) for one, other in zip(got, want, strict=True)))
    return worst


def _half(operator: str, rung: str) -> float:
    """float16 against float64 on the same rounded inputs, in units of one rounding of the largest entry."""
    rounded = [x.astype(np.float16) for x in inputs(operator, 2, 3, 16)]
    got = call(operator, rounded, rung)
    want = call(operator, [x.astype(np.float64) for x in rounded], "loops")
    # A merge rounds a second time: its parts are float16.
    roundings = 2 if operator == "depth_attention" else 1
    unit = 2.0**-11 * roundings
    return max(error(a, b) / (unit * float(np.abs(b).max())) for a, b in zip(got, want, strict=True))


def _leaves(operator: str) -> list[Any]:
    import torch

    return [torch.from_numpy(x).requires_grad_() for x in inputs(operator, 2, 3, 5)]


def _gradcheck(operator: str) -> float:
    """0 if the analytic gradients agree with finite differences; torch raises where they do not."""
    import torch

    torch.autograd.gradcheck(lambda *leaves: call(operator, list(leaves), "eager"), _leaves(operator))
    return 0.0


def _as_eager(operator: str, rung: str) -> float:
    """Results and every gradient against those of eager."""
    import torch

    found = []
    for one in (rung, "eager"):
        leaves = _leaves(operator)
        # One form only: each would compile for seconds, and the tests have the others.
        results = call(operator, leaves, one, whole=True)
        sum((z * torch.cos(z.detach())).sum() for z in results).backward()
        found.append([z.detach() for z in results] + [x.grad for x in leaves])
    return max(error(a.numpy(), b.numpy()) for a, b in zip(*found, strict=True))
