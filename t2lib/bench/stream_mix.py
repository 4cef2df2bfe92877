"""stream_mix, mix and write with weights a token: its rungs, and what one would use without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2lib.bench._case import BACKWARD, BEST, Bar, Draw, Peer, Setting, missing, normal, on_cuda, optional
from t2lib.ops import stream_mix
from t2lib.ops.stream_mix import cost

NAME = "stream_mix"
GROWTH = {"T": "tokens", "n": "streams", "d": "width"}
BARS = (
    Bar("einsum", BEST, at_least=1),
    Bar("einsum", BEST, at_least=1, of=BACKWARD),
    *on_cuda("einsum, compiled"),
)


@dataclass(frozen=True)
class Shape:
    tokens: int = 2048
    width: int = 512
    streams: int = 4


ON_CUDA = Shape(tokens=16384, width=2048)


def inputs(shape: Shape, draw: Draw = normal) -> tuple[Any, ...]:
    """Streams (T, n, d), mix (T, n, n), write (T, n), branch (T, d)."""
    t, n, d = shape.tokens, shape.streams, shape.width
    streams, mix, write, branch = draw((t, n, d), (t, n, n), (t, n), (t, d))
    # In operators that arrays and tensors share.
    return streams, abs(mix) / abs(mix).sum(-1)[..., None], write, branch


def call(shape: Shape, rung: str) -> Callable[..., Any]:
    return lambda streams, mix, write, branch: stream_mix(
        streams, mix=mix, write=write, branch=branch, rung=rung
    )


def bytes_moved(shape: Shape, itemsize: int, backward: bool) -> int:
    """n streams and the branch in, n streams out; backward also these and their gradients, in and out."""
    n, d = shape.streams, shape.width
    once = cost.forward_bytes(n, d, itemsize=itemsize, tokens=shape.tokens, read=False)
    # X, y and dX' in, dX and dy out, with coefficients in and their gradients out.
    again = (3 * n + 2) * d + 2 * n * (n + 1)
    return once + (again * shape.tokens * itemsize if backward else 0)


def flops(shape: Shape) -> int:
    return cost.forward_flops(shape.streams, shape.width, tokens=shape.tokens, read=False)


def state_bytes(shape: Shape, itemsize: int) -> int:
    return shape.tokens * shape.streams * shape.width * itemsize


def peers(shape: Shape, setting: Setting) -> dict[str, Peer | str]:
    return {
        "numba, loops": missing("numba") or Peer(_numba_loops(), "numpy"),
        "Liger-Kernel": missing("liger_kernel", setting) or Peer(_liger()),
        "NumPy einsum": Peer(_numpy_einsum, "numpy"),
        "einsum": Peer(_einsum),
        "matmul": Peer(_matmul),
        "einsum, compiled": Peer(_einsum, compiled=True),
    }


def _numpy_einsum(streams: Any, mix: Any, write: Any, branch: Any) -> Any:
    return np.einsum("toi,tid->tod", mix, streams) + write[..., None] * branch[:, None]


def _einsum(streams: Any, mix: Any, write: Any, branch: Any) -> Any:
    import torch

    return torch.einsum("toi,tid->tod", mix, streams) + write[..., None] * branch[:, None]


def _matmul(streams: Any, mix: Any, write: Any, branch: Any) -> Any:
    import torch

    return torch.baddbmm(write[..., None] * branch[:, None], mix, streams)


def _liger() -> Callable[..., Any]:
    package: Any = optional("liger_kernel.transformers.functional")
    return lambda streams, mix, write, branch: package.liger_mhc_post_res(streams, branch, write, mix)


def _numba_loops() -> Callable[..., Any]:
    """The definition as scalar loops, compiled by numba."""
    numba: Any = optional("numba")

    @numba.njit(fastmath=True)  # type: ignore[untyped-decorator]
    def loops(streams: Any, mix: Any, write: Any, branch: Any) -> Any:
        tokens, n, width = streams.shape
        result = np.empty_like(streams)
        for t in range(tokens):
            for o in range(n):
                for c in range(width):
                    result[t, o, c] = write[t, o] * branch[t, c]
                for i in range(n):
                    weight = mix[t, o, i]
                    for c in range(width):
                        result[t, o, c] += weight * streams[t, i, c]
        return result

    return loops  # type: ignore[no-any-return]
