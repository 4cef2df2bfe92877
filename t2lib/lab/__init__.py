"""A small trained decoder to look at, and all that made it: corpus, baseline, training loop.

`load_decoder`, `encode`, `decode`, `validation_text` and `card` load torch only when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2lib.lab.shipped import card, decode, encode, load_decoder, validation_text

__all__ = ["card", "decode", "encode", "load_decoder", "validation_text"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from t2lib.lab import shipped

    return getattr(shipped, name)


def __dir__() -> list[str]:
    return __all__
