"""What `python -m t2lib.verify` checks of stream_mix, delta_rewrite and short_conv, rung by rung."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from t2lib import golden
from t2lib.golden import replay_streams
from t2lib.ops import _laws_delta, _laws_streams, _registry
from t2lib.ops._contract import to_torch
from t2lib.ops._laws import error, random
from t2lib.ops.delta_rewrite import Tape, delta_rewrite, rewind
from t2lib.ops.short_conv import short_conv
from t2lib.ops.stream_mix import sinkhorn, stream_mix

__all__ = ["OPERATORS", "Check", "checks"]

OPERATORS = ("stream_mix", "delta_rewrite", "short_conv")
LAWS = {**_laws_streams.LAWS, "delta_rewrite": _laws_delta.LAWS}

# A tolerance, and what measures an error; or why it is not for this rung.
Check = tuple[float, Callable[[], float] | str]
# float64 on all rungs but the kernels, which compute in float32.
SINGLE = 2e-5
SECONDS = "left out: it would compile for seconds; 'gradients: as eager' compiles one form of each function"

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "stream_mix": stream_mix,
    "sinkhorn": sinkhorn,
    "delta_rewrite": delta_rewrite,
    "short_conv": short_conv,
}


def checks(operator: str, rung: str) -> dict[str, Check]:
    """Every check of one operator on one rung, by name."""
    found: dict[str, Check] = {}
    for function in (operator, "sinkhorn") if operator == "stream_mix" else (operator,):
        prefix = "law: " if function == operator else f"law of {function}: "
        for name, law in LAWS[function].items():
            found[prefix + name] = (1e-10, partial(law, _at(rung, FUNCTIONS[function])))
    for name in replay_streams.names(operator):
        tolerance = 2e-6 if name.endswith("fp32") else 1e-10
        found[f"golden: {name}"] = (tolerance, partial(_golden, rung, name))
    for layout in LAYOUTS:
        found[f"layout: {layout}"] = (1e-12, partial(_layout, operator, rung, layout))
    if operator == "delta_rewrite":
        found["rewind: the state before"] = (1e-12, partial(_rewind, rung))
    if rung == "compiled":
        found = {name: (tolerance, SECONDS) for name, (tolerance, _) in found.items()}

    differences: Callable[[], float] | str = "NumPy has no gradients"
    as_eager: Callable[[], float] | str = differences
    if rung not in _registry.NUMPY_RUNGS:
        differences = partial(_gradcheck, operator) if rung == "eager" else "compared with eager instead"
        as_eager = "it is eager" if rung == "eager" else partial(_as_eager, operator, rung)
    found["gradients: finite differences"] = (0.0, differences)
    found["gradients: as eager"] = (1e-10, as_eager)
    if operator == "delta_rewrite":
        same = "the tape is that of eager" if rung == "compiled" else differences
        found["gradients: from a tape"] = (1e-12, _tape if rung == "eager" else same)
    if rung == "kernels":
        found = {name: (SINGLE, measure) for name, (_, measure) in found.items()}
    return found


def _at(rung: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator with its rung chosen; the kernels get float64 in float32, on their device."""
    return partial(_in_single, function) if rung == "kernels" else partial(function, rung=rung)


def _in_single(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = [*arrays, *options.values()]
    numpy = any(isinstance(x, np.ndarray) for x in given)

    def narrow(x: Any) -> Any:
        x = to_torch(x) if isinstance(x, np.ndarray) else x
        if not isinstance(x, torch.Tensor):
            return x
        return (x.float() if x.dtype == torch.float64 else x).to(device)

    def widen(x: Any) -> Any:
        x = x.cpu().double()
        return x.detach().numpy() if numpy else x

    narrowed = {name: narrow(x) for name, x in options.items()}
    result = function(*(narrow(x) for x in arrays), rung="kernels", **narrowed)
    return tuple(map(widen, result)) if isinstance(result, tuple) else widen(result)


def _golden(rung: str, name: str) -> float:
    """Everything recorded, and on the rungs of torch every gradient, relative to the largest entry."""
    arrays, operators = golden.load(name), replay_streams.Operators(rung)
    for function in FUNCTIONS:
        setattr(operators, function, _at(rung, FUNCTIONS[function]))
    if rung in _registry.NUMPY_RUNGS:
        found = replay_streams.replay(name, arrays, operators)
        return max(_relative(x, arrays[key]) for key, x in found.items())
    import torch

    tensors = {key: torch.from_numpy(x) for key, x in arrays.items()}
    gradients = replay_streams.gradients(arrays)
    for place in gradients.values():
        tensors[place].requires_grad_()
    found = replay_streams.replay(name, tensors, operators)
    found["out"].backward(tensors["cotangent"])
    errors = [_relative(x.detach().numpy(), arrays[key]) for key, x in found.items()]
    return max(errors + [_relative(_gradient(tensors[of]), arrays[key]) for key, of in gradients.items()])


def _gradient(x: Any) -> Any:
    return x.grad.numpy()


def _relative(got: Any, want: Any) -> float:
    return error(got, want) / max(1.0, float(np.abs(want).max()))


def _inputs(operator: str, length: int = 5) -> tuple[Callable[..., Any], list[Any]]:
    """A call of the operator that uses everything it has, as a function of arrays, and arrays for it."""
    shapes: tuple[tuple[int, ...], ...]
    if operator == "delta_rewrite":
        shapes = ((length, 2, 6, 3), (length, 2, 6), (length, 2, 3), (length, 2))
        return lambda *arrays, rung: _at(rung, delta_rewrite)(*arrays, return_parts=True), _drawn(shapes)
    if operator == "short_conv":
        shapes = ((2, length, 3), (3, 4), (3,), (2, 3, 3))
        use: dict[str, Any] = {"axis": 1, "activation": "silu", "return_state": True}
        return lambda x, w, b, s, rung: _at(rung, short_conv)(x, w, b, initial_state=s, **use), _drawn(shapes)
    shapes = ((length, 2, 4, 6), (length, 2, 4, 4), (length, 2, 4), (length, 2, 6), (4,))

    def mixed(X: Any, logits: Any, write: Any, branch: Any, read: Any, rung: str) -> Any:
        # One step of mHC; two iterations are enough to show that a gradient is wrong.
        mix = _at(rung, sinkhorn)(logits, iterations=2)
        return _at(rung, stream_mix)(X, mix=mix, write=write, branch=branch, read=read)

    return mixed, _drawn(shapes)


def _drawn(shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    return [random(*shape, seed=seed) for seed, shape in enumerate(shapes, 1)]


def _transposed(x: Any) -> Any:
    return np.ascontiguousarray(x.T).T


def _sliced(x: Any) -> Any:
    buffer = np.full([n + 2 for n in x.shape], np.nan, x.dtype)
    inner = buffer[tuple(slice(1, -1) for _ in x.shape)]
    inner[...] = x
    return inner


LAYOUTS: dict[str, Callable[[Any], Any]] = {"transposed": _transposed, "sliced out of NaN": _sliced}


def _layout(operator: str, rung: str, layout: str) -> float:
    """Several lengths, in a layout that is not contiguous, against loops."""
    worst = 0.0
    for length in (1, 2, 3, 4, 9):
        call, plain = _inputs(operator, length)
        wanted = call(*plain, rung="loops")
        narrow = [x.astype(np.float32) for x in plain] if rung == "kernels" else plain
        got = call(*(LAYOUTS[layout](x) for x in narrow), rung=rung)
        worst = max(worst, *(error(one, other) for one, other in zip(got, wanted, strict=True)))
    return worst


def _leaves(operator: str, length: int = 3) -> tuple[Callable[..., Any], list[Any]]:
    import torch

    call, plain = _inputs(operator, length)
    return call, [torch.from_numpy(x).requires_grad_() for x in plain]


def _gradcheck(operator: str) -> float:
    """0 if the analytic gradients agree with finite differences; torch raises where they do not."""
    import torch

    call, leaves = _leaves(operator)
    torch.autograd.gradcheck(partial(call, rung="eager"), leaves)
    return 0.0


def _as_eager(operator: str, rung: str) -> float:
    call, leaves = _leaves(operator)
    found = [_outputs_and_gradients(partial(call, rung=which), leaves) for which in (rung, "eager")]
    return max(error(one, other) for one, other in zip(*found, strict=True))


def _outputs_and_gradients(call: Callable[..., Any], leaves: list[Any]) -> list[Any]:
    import torch

    outputs = call(*leaves)
    total = sum((x * torch.linspace(-1, 2, x.numel()).reshape(x.shape)).sum() for x in outputs)
    gradients = torch.autograd.grad(total, leaves)
    return [x.detach().numpy() for x in (*outputs, *gradients)]


def _tape() -> float:
    """The gradients of a chain on a tape are those of the chain that keeps its states."""
    import torch

    X, k, v, beta = (torch.from_numpy(x) for x in _drawn(((4, 6, 3), (5, 4, 6), (5, 4, 3), (5, 4))))

    def chain(X: Any, k: Any, v: Any, beta: Any, tape: Tape | None = None) -> tuple[Any, ...]:
        for i in range(5):
            X = delta_rewrite(X, k[i], v[i], beta[i], tape=tape)
        return (X,)

    leaves = [x.requires_grad_() for x in (X, k, v, beta)]
    found = [_outputs_and_gradients(partial(chain, tape=tape), leaves) for tape in (Tape(), None)]
    return max(error(one, other) for one, other in zip(*found, strict=True))


def _rewind(rung: str) -> float:
    """Also at β = 1, where the shortcut has no inverse."""
    X, k, v, _ = _inputs("delta_rewrite")[1]
    worst = 0.0
    for guard in ("eager", "kernel", "none"):
        for erase in (True, False):
            use: dict[str, Any] = {"guard": guard, "erase": erase, "return_parts": True}
            after, _, correction = _at(rung, delta_rewrite)(X, k, v, np.ones(X.shape[:2]), **use)
            worst = max(worst, error(rewind(after, k, correction, guard=guard), X))
    return worst
