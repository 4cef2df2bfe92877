"""Operators: pure functions, one folder each, one file a rung of the ladder.

`from t2lib.ops import short_swa` is the function; `from t2lib.ops.short_swa import eager` is a rung of it.
"""

from t2lib.ops._registry import RungUnavailable
from t2lib.ops.depth_attention import depth_attention, depth_attention_partial, merge
from t2lib.ops.depth_mix import depth_mix
from t2lib.ops.short_swa import short_swa

__all__ = [
    "RungUnavailable",
    "depth_attention",
    "depth_attention_partial",
    "depth_mix",
    "merge",
    "short_swa",
]
