"""t2lib: operators that move information along the two axes of a Transformer, tokens and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from t2lib.ops._registry import Ladder, Ladders

__version__ = "0.1.0"
__all__ = ["__version__", "ladder"]


@overload
def ladder() -> Ladders: ...
@overload
def ladder(operator: str) -> Ladder: ...
def ladder(operator: str | None = None) -> Ladder | Ladders:
    """Which rungs of an operator run on this machine, and why the others do not.

    `ladder("short_swa")` is a list of rows `(rung, runs_here, reason)`; `ladder()` is a dict with one such
    list for every operator. Printing either gives a table. An unknown name is a ValueError.
    """
    # Imported here so that `import t2lib` stays light: no NumPy, no torch, no Triton.
    from t2lib.ops import _registry

    return _registry.ladders() if operator is None else _registry.ladder(operator)
