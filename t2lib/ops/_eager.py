"""The rung "eager" of all operators in one import statement: torch.compile can follow no other."""

from t2lib.ops.delta_rewrite import eager as delta_rewrite
from t2lib.ops.depth_attention import eager as depth_attention
from t2lib.ops.depth_mix import eager as depth_mix
from t2lib.ops.short_conv import eager as short_conv
from t2lib.ops.short_swa import eager as short_swa
from t2lib.ops.stream_mix import eager as stream_mix

MODULES = {
    "short_swa": short_swa,
    "depth_mix": depth_mix,
    "depth_attention": depth_attention,
    "stream_mix": stream_mix,
    "delta_rewrite": delta_rewrite,
    "short_conv": short_conv,
}
