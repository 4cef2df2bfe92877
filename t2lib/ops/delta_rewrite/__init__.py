"""The delta rewrite of Deep Delta Learning: read a state along a direction, compare, write the difference.

The contract all its rungs keep, the way back (`rewind`), and the `Tape` that lets a chain of rewrites be
trained without keeping its states.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from t2lib.ops._checks import (
    bridge,
    check_array,
    check_choice,
    check_flag,
    check_like,
    check_like_or_wide,
    check_number,
    check_shape,
    dtype,
    kind,
    pick,
)
from t2lib.ops._registry import NUMPY_RUNGS
from t2lib.ops.depth_mix import depth_mix

__all__ = ["GUARDS", "Rule", "Tape", "delta_rewrite", "rewind"]

GUARDS = ("eager", "kernel", "none")


class Rule(NamedTuple):
    """How a rung is to compute.

    `floor` stands beside |k|² under the root; None takes k as it is. `parts`: the caller wants the reading.
    """

    floor: float | None
    erase: bool
    parts: bool


def delta_rewrite(
    X: Any,
    k: Any,
    v: Any,
    beta: Any,
    *,
    rung: str = "auto",
    guard: str = "eager",
    eps: float = 1e-5,
    erase: bool = True,
    return_parts: bool = False,
    tape: Tape | None = None,
    compress: Any = None,
) -> Any:
    """X + β k̂ (vᵀ − k̂ᵀX): replace what the state holds along one direction, by the share β.

        k̂ = k / sqrt(|k|² + floor)       floor = eps² ("eager"), d·eps² ("kernel"); "none": k̂ = k
        r = k̂ᵀX                          the reading
        ρ = β (v − r)                    the correction; with erase=False it is β v
        X' = X + k̂ ρᵀ
        u_i = Σ_j C_ij X'_ij             with compress=C: what the next sublayer reads

    Shapes
        X (..., d, d_v), k (..., d), v (..., d_v), beta (...), compress (d, d_v); the result is shaped as X.
        An ordinary stream is d_v = 1.

    Arguments
        rung          "auto", "loops", "arrays", "eager", "compiled" or "kernels": see t2lib.ladder()
        guard         the released modules divide by sqrt(|k|² + eps²), their fused kernel by
                      sqrt(|k|² + d·eps²); "none" takes directions that are normalised already, as the delta
                      rule over tokens does
        erase         False is the write-only control: it adds β k̂ vᵀ and subtracts nothing
        return_parts  also return the reading and the correction, (..., d_v) each, in the dtype of the sums
        tape          a `Tape` shared by a chain of rewrites, each of which starts from the result of the
                      one before: the backward pass then keeps k and the correction in place of the state
        compress      weights of a channel compressor: also return, last, what it reads of the new state as it
                      is returned, (..., d); "kernels" does it in the same pass over the state, without a tape

    A zero direction gives a zero update and finite gradients (not with guard="none", where nothing divides),
    for every eps: the floor is at least the smallest normal number of the dtype of the sums.
    Gradients are the closed-form vector-Jacobian product, of first order.

    Dtypes  float64, float32, float16, bfloat16; v and beta may be float32 if X is in half precision. Sums are
            float64 for float64 and float32 for all others. The result has the kind, dtype and device of X.
    Errors  TypeError or ValueError in one sentence, the same on every rung; RungUnavailable if the rung
            cannot run.
    Cost    (4 d_v + 3) d FLOPs a token; (2 d_v + 1) d elements moved, which is what it takes: memory-bound.
            Backward (3 d_v + 2) d. The rung "kernels" moves just these, and takes d_v up to 8.
    Source  arXiv 2601.00417; yifanzhang-pro/deep-delta-learning.
    """
    check_array("X", X)
    if X.ndim < 2 or 0 in X.shape[-2:]:
        takes = "two last axes (d, d_v), each of at least 1"
        raise ValueError(f"X must have {takes}; got shape {tuple(X.shape)}.")
    check_like("k", k, "X", X)
    check_like_or_wide("v", v, "X", X)
    check_like_or_wide("beta", beta, "X", X)
    leading, (d, d_v) = tuple(X.shape[:-2]), X.shape[-2:]
    check_shape("k", k, (*leading, d))
    check_shape("v", v, (*leading, d_v))
    check_shape("beta", beta, leading)
    if compress is not None:
        check_like_or_wide("compress", compress, "X", X)
        check_shape("compress", compress, (d, d_v))
    rule = Rule(_floor(guard, eps, X), check_flag("erase", erase), check_flag("return_parts", return_parts))
    _check_tape(tape, X)
    rung, module = pick("delta_rewrite", rung, X)
    # A tape is there for the backward pass, and the rungs of NumPy have none.
    shared: dict[str, Any] = {} if rung in NUMPY_RUNGS else {"tape": tape}
    fused = compress is not None and rung == "kernels" and tape is None

    def channels(state: Any) -> tuple[Any, ...]:
        return tuple(state[..., j] for j in range(d_v))

    def call(X: Any, k: Any, v: Any, beta: Any, compress: Any) -> Any:
        options = shared | ({"compress": compress} if fused else {})
        result = module.delta_rewrite(X, k, v, beta, rule=rule, **options)
        found = result[:3] if return_parts else result[:1]
        if compress is not None:
            # The channels are a list of d_v states, mixed with a weight for each of the d entries.
            read = result[3] if fused else depth_mix(channels(result[0]), compress.T)
            found = (*found, read)
        return found if len(found) > 1 else found[0]

    arrays = {"X": X, "k": k, "v": v, "beta": beta, "compress": compress}
    return bridge(rung, call, arrays, wide=(1, 2) if return_parts else ())


def rewind(X: Any, k: Any, correction: Any, *, guard: str = "eager", eps: float = 1e-5) -> Any:
    """The state before a rewrite, from the state after it: X − k̂ ρᵀ. Nothing is inverted.

    It undoes X' = X + k̂ ρᵀ for every β, also β = 1, where I − β k̂ k̂ᵀ has no inverse, and with erase=False. It
    is exact up to the rounding of one addition in the dtype of X.

    Shapes  X (..., d, d_v), k (..., d), correction (..., d_v) as `return_parts` gives it; guard and eps as in
            the rewrite.
    Errors  as delta_rewrite.
    Cost    2 d d_v + 3 d FLOPs a token; d + d_v numbers a token are all that a rewrite has to keep.
    Source  ρ is the correction of delta_rewrite; see there.
    """
    check_array("X", X)
    if X.ndim < 2 or 0 in X.shape[-2:]:
        takes = "two last axes (d, d_v), each of at least 1"
        raise ValueError(f"X must have {takes}; got shape {tuple(X.shape)}.")
    check_like("k", k, "X", X)
    check_like_or_wide("correction", correction, "X", X)
    check_shape("k", k, tuple(X.shape[:-1]))
    check_shape("correction", correction, (*X.shape[:-2], X.shape[-1]))
    return _rewound(X, k, correction, _floor(guard, eps, X))


class Tape:
    """What the backward passes of a chain of rewrites share in place of their states.

    Hand the same tape to the rewrites of a chain, from the first sublayer to the last. Only the last state is
    kept. Going backward, the state before each rewrite is rebuilt from the one after it with `rewind`, so a
    rewrite keeps d + d_v numbers a token (and v, β, r) instead of d·d_v. In half precision a rebuilt state
    is off by a rounding a sublayer.

    Between two rewrites the state may be read, not changed. One tape serves one forward pass.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Any, Any, float | None]] = []
        self._last: Any = None
        self._version = 0
        # The state rebuilt last and its place; nothing before the first backward pass.
        self._at: tuple[int, Any] | None = None

    def __len__(self) -> int:
        """The number of rewrites on the tape."""
        return len(self._steps)

    def follows(self, X: Any) -> bool:
        """Whether X is the state that the last rewrite returned, unchanged; any state begins a tape."""
        last = self._last
        return last is None or (
            X.data_ptr() == last.data_ptr()
            and X.shape == last.shape
            and X.stride() == last.stride()
            and X._version == self._version
        )

    def record(self, after: Any, k: Any, correction: Any, floor: float | None) -> int:
        """Add a rewrite that led to the state `after`; returns its place on the tape."""
        self._steps.append((k.detach(), correction.detach(), floor))
        # Detached: the graph holds the tape, so the tape must not hold the graph.
        self._last = after.detach()
        self._version, self._at = after._version, None
        return len(self._steps) - 1

    def state(self, place: int) -> Any:
        """The state before rewrite number `place`, or the last state for place = len(tape)."""
        if self._last._version != self._version:
            raise RuntimeError("The last state on the tape was changed in place before its backward pass.")
        if self._at is None or self._at[0] < place:
            self._at = (len(self._steps), self._last)
        at, state = self._at
        while at > place:
            at -= 1
            state = _rewound(state, *self._steps[at])
        self._at = (at, state)
        return state


def _floor(guard: str, eps: float, X: Any) -> float | None:
    eps = check_number("eps", eps)
    if eps <= 0:
        raise ValueError(f"eps must be a number above 0; got {eps!r}.")
    guard = check_choice("guard", guard, GUARDS)
    # The smallest normal number of the sums: below it the square may be 0, and so would be the guard.
    least = 2.0**-1022 if dtype(X) == "float64" else 2.0**-126
    return None if guard == "none" else max(least, eps * eps * (X.shape[-2] if guard == "kernel" else 1))


def _check_tape(tape: Any, X: Any) -> None:
    if tape is None:
        return
    if not isinstance(tape, Tape):
        raise TypeError(f"tape must be a Tape or None; got {kind(tape)}.")
    if not isinstance(X, np.ndarray) and not tape.follows(X):
        raise ValueError(
            "X must be the state that the last rewrite on the tape returned, unchanged; got another."
        )


def _rewound(X: Any, k: Any, correction: Any, floor: float | None) -> Any:
    if isinstance(X, np.ndarray):
        wide = np.promote_types(X.dtype, np.float32)
        unit = k.astype(wide)
        if floor is not None:
            unit /= np.sqrt((unit * unit).sum(-1, keepdims=True) + floor)
        return (X - unit[..., :, None] * correction[..., None, :]).astype(X.dtype)
    import torch

    unit = k if k.dtype == torch.float64 else k.float()
    if floor is not None:
        unit = unit / torch.sqrt((unit * unit).sum(-1, keepdim=True) + floor)
    return torch.addcmul(X, unit[..., :, None], correction.to(unit.dtype)[..., None, :], value=-1).to(X.dtype)
