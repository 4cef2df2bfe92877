"""Operators: pure functions, one folder each, one file a rung of the ladder.

`from t2lib.ops import short_swa` is the function; `from t2lib.ops.short_swa import eager` is a rung of it.
"""

from t2lib.ops._registry import RungUnavailable
from t2lib.ops.delta_rewrite import Tape, delta_rewrite, rewind
from t2lib.ops.depth_attention import depth_attention, depth_attention_partial, merge
from t2lib.ops.depth_mix import depth_mix
from t2lib.ops.short_conv import short_conv
from t2lib.ops.short_swa import short_swa
from t2lib.ops.stream_mix import sinkhorn, stream_mix

__all__ = [
    "RungUnavailable",
    "Tape",
    "delta_rewrite",
    "depth_attention",
    "depth_attention_partial",
    "depth_mix",
    "merge",
    "rewind",
    "short_conv",
    "short_swa",
    "sinkhorn",
    "stream_mix",
]
