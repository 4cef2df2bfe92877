"""What a bench is made of: one operator at one shape, its rungs, its peers, and the bars it has to clear."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from t2lib.ops import _registry

Function = Callable[[], Any]
# Arrays or tensors of standard normal numbers, by their shapes.
Draw = Callable[..., tuple[Any, ...]]
FORWARD, BACKWARD = "forward", "forward + backward"
BEST, COPY = "best rung", "copy of as many bytes"


@dataclass(frozen=True)
class Setting:
    """Where a bench runs. `dtype` is that of torch and Triton; NumPy computes in float32."""

    device: str = "cpu"
    dtype: str = "float32"
    compiled: bool = True

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True)
class Peer:
    """What one would write or call instead: a function of the operator's inputs, or of `prepare(inputs)`.

    `prepare` runs before the clock does. `backward` says whether the function is differentiable, `compiled`
    whether torch.compile gets it first.
    """

    function: Callable[..., Any]
    kind: Literal["numpy", "torch"] = "torch"
    prepare: Callable[..., tuple[Any, ...]] | None = None
    backward: bool = True
    compiled: bool = False


class Bar(NamedTuple):
    """A ratio to report: `slower` takes at least so many times what `faster` takes, or at most so many.

    `of` is the pass, or "memory": then `faster` is a number of bytes by name, and `slower` what is held
    beyond the result. `on` is the device that has to clear the bar; elsewhere the ratio is shown without it.
    """

    slower: str
    faster: str
    at_least: float | None = None
    at_most: float | None = None
    of: str = FORWARD
    on: str = "cpu"


class Operator(Protocol):
    """What a module of this package offers for one operator, beside its `Shape` and `ON_CUDA`."""

    @property
    def NAME(self) -> str: ...
    @property
    def GROWTH(self) -> dict[str, str]:
        """The sizes whose growth is shown, by their letters."""
        ...

    @property
    def BARS(self) -> tuple[Bar, ...]: ...
    def inputs(self, shape: Any, draw: Draw = ...) -> tuple[Any, ...]:
        """What `draw` gives (by default arrays in float32), all of which take a gradient."""
        ...

    def call(self, shape: Any, rung: str) -> Callable[..., Any]: ...
    def peers(self, shape: Any, setting: Setting) -> dict[str, Peer | str]:
        """What stands beside the rungs, or why it cannot."""
        ...

    def bytes_moved(self, shape: Any, itemsize: int, backward: bool) -> int:
        """What has to move at least, forward or forward and backward."""
        ...

    def flops(self, shape: Any) -> int:
        """Forward, in the products that no program can leave out."""
        ...

    def state_bytes(self, shape: Any, itemsize: int) -> int: ...


class Case(NamedTuple):
    """One row of the table, as calls without arguments; `backward` is forward and all gradients.

    `itemsize` is that of the numbers it computes with: NumPy stays in float32 whatever torch does.
    """

    forward: Function
    backward: Function | None
    rung: bool
    itemsize: int = 4


def on_cuda(naive: str) -> tuple[Bar, ...]:
    """What the kernels have to clear on a GPU: nearly the bandwidth of a copy, and torch.compile."""
    return tuple(
        bar
        for which in (FORWARD, BACKWARD)
        for bar in (
            Bar(COPY, "kernels", at_least=0.8, of=which, on="cuda"),
            # Both things that torch.compile may be given: the form one first writes, and the library's rung.
            Bar(naive, "kernels", at_least=1, of=which, on="cuda"),
            Bar("compiled", "kernels", at_least=1, of=which, on="cuda"),
        )
    )


def optional(package: str) -> ModuleType | None:
    """A package if it can be imported here; a broken installation counts as none."""
    try:
        return importlib.import_module(package)
    except Exception:
        # Whatever a package does when it does not fit the others that are installed.
        return None


def missing(package: str, setting: Setting | None = None) -> str | None:
    """Why a peer of that package cannot run: not installed, or (given a setting) made for CUDA devices."""
    if setting is not None and setting.device != "cuda":
        return f"{package} needs a CUDA device"
    return None if optional(package) else f"{package} is not installed"


def cases(
    operator: Operator, shape: Any, setting: Setting, *, only_rungs: bool = False
) -> tuple[dict[str, Case], dict[str, str]]:
    """All rungs and peers that can run here, on the same numbers; and why the others cannot."""
    arrays, tensors = _inputs(operator, shape, setting)
    found: dict[str, Case] = {}
    left_out: dict[str, str] = {}
    for rung, why in rungs(operator.NAME, setting).items():
        if why:
            left_out[rung] = why
        elif rung in _registry.NUMPY_RUNGS:
            found[rung] = Case(partial(operator.call(shape, rung), *arrays), None, True)
        else:
            found[rung] = _of_tensors(operator.call(shape, rung), tensors, True, True, setting)
    for name, peer in ({} if only_rungs else operator.peers(shape, setting)).items():
        if isinstance(peer, str):
            left_out[name] = peer
        elif peer.kind == "numpy" and setting.device != "cpu":
            left_out[name] = "runs on the CPU"
        elif peer.kind == "numpy":
            given = arrays if peer.prepare is None else peer.prepare(*arrays)
            found[name] = Case(partial(peer.function, *given), None, False)
        elif not tensors:
            left_out[name] = "torch is not installed"
        elif peer.compiled and (why := rungs(operator.NAME, setting)["compiled"]):
            left_out[name] = why
        else:
            given = tensors if peer.prepare is None else peer.prepare(*tensors)
            function = _compiled(peer.function) if peer.compiled else peer.function
            found[name] = _of_tensors(function, given, peer.backward, False, setting)
    return found, left_out


def _inputs(operator: Operator, shape: Any, setting: Setting) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arrays for NumPy and tensors for torch, as far as they are wanted."""
    if setting.device == "cuda":
        # Drawn there: at the sizes of a GPU, NumPy takes minutes for what the GPU draws at once.
        return (), operator.inputs(shape, normal_on(setting.device, setting.dtype))
    arrays = operator.inputs(shape)
    return arrays, to_tensors(arrays, setting) if _registry.installed("torch") else ()


def rungs(operator: str, setting: Setting) -> dict[str, str]:
    """Every rung with why it is left out, or "" if it is timed."""
    reasons: dict[str, str] = {}
    for rung, runs_here, why in _registry.ladder(operator):
        reasons[rung] = "" if runs_here else why
        if rung == "loops":
            reasons[rung] = "the definition, element by element: not made to be timed"
        elif rung == "compiled" and not setting.compiled:
            reasons[rung] = "left out by --no-compile"
        elif rung in _registry.NUMPY_RUNGS and setting.device != "cpu":
            reasons[rung] = "NumPy runs on the CPU"
        elif rung == "kernels" and setting.device != "cuda" and rung not in _registry.OPERATORS[operator]:
            reasons[rung] = "Triton needs a CUDA device; its interpreter is for checks, not for timing"
    return reasons


def to_tensors(arrays: tuple[Any, ...], setting: Setting) -> tuple[Any, ...]:
    """The same numbers on the device, in the dtype of the bench."""
    import torch

    dtype = getattr(torch, setting.dtype)
    # Copied: torch aligns its memory to 64 bytes, NumPy to 16, and a vector across two lines takes two reads.
    return tuple(torch.from_numpy(x).to(setting.device, dtype, copy=True) for x in arrays)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    return torch.compile(function, dynamic=False)


def _of_tensors(
    function: Callable[..., Any], given: tuple[Any, ...], backward: bool, rung: bool, setting: Setting
) -> Case:
    forward = partial(_without_graph, function, given)
    return Case(forward, _with_gradients(function, given) if backward else None, rung, setting.itemsize)


def _without_graph(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    import torch

    with torch.no_grad():
        return function(*given)


def _with_gradients(function: Callable[..., Any], given: tuple[Any, ...]) -> Function:
    """A call for the result and the gradient of its sum by every input, as a training step wants them."""
    import torch

    # Made in the first call, which is not timed: a step is given it, so writing it is none of its work.
    upstream: list[Any] = []

    def call() -> Any:
        leaves = [x.detach().requires_grad_() for x in given]
        result = function(*leaves)
        if not upstream:
            upstream.append(torch.ones_like(result))
        return result, torch.autograd.grad(result, leaves, upstream[0])

    return call


def normal(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    """Standard normal numbers in float32, the same in every run."""
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal(shape, dtype=np.float32) for shape in shapes)


def normal_on(device: str, dtype: str) -> Draw:
    """The same as `normal` with tensors drawn on the device, in the dtype of the bench."""
    import torch

    generator = torch.Generator(device).manual_seed(0)

    def draw(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
        kind = getattr(torch, dtype)
        return tuple(torch.randn(shape, generator=generator, device=device, dtype=kind) for shape in shapes)

    return draw
