"""The rung "kernels" of all operators in one import statement, as in `_eager`; needs Triton."""

from t2lib.ops.delta_rewrite import kernels as delta_rewrite
from t2lib.ops.depth_attention import kernels as depth_attention
from t2lib.ops.depth_mix import kernels as depth_mix
from t2lib.ops.short_conv import kernels as short_conv
from t2lib.ops.short_swa import kernels as short_swa
from t2lib.ops.stream_mix import kernels as stream_mix

MODULES = {
    "short_swa": short_swa,
    "depth_mix": depth_mix,
    "depth_attention": depth_attention,
    "stream_mix": stream_mix,
    "delta_rewrite": delta_rewrite,
    "short_conv": short_conv,
}
