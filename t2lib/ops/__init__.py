"""Operators: pure functions, one folder each, one file a rung of the ladder.

`from t2lib.ops import short_swa` is the function; `from t2lib.ops.short_swa import eager` is a rung of it.
"""

from t2lib.ops._registry import RungUnavailable
from t2lib.ops.short_swa import short_swa

__all__ = ["RungUnavailable", "short_swa"]
