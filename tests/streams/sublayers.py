"""Sublayers as the golden vectors of the routed designs and of Deep Delta Learning have them."""

import torch
import torch.nn.functional as F

from t2lib import golden
from t2lib.decoder import rotate

torch.set_num_threads(1)


def tensors(name):
    """The arrays of one golden vector; floating ones as float64 leaves that ask for a gradient."""
    arrays = {key: torch.tensor(x) for key, x in golden.load(name).items()}
    return {key: x.requires_grad_() if x.is_floating_point() and x.ndim else x for key, x in arrays.items()}


def close(got, want, tolerance=1e-10):
    """Equal to the recorded values, relative to the largest of them."""
    assert got.shape == want.shape
    error = (got - want).abs().max() / want.abs().max().clamp_min(1e-300)
    assert error <= tolerance, f"relative error {float(error):.2e}"


def rms_norm(x, gain, eps):
    return F.rms_norm(x, x.shape[-1:], gain, float(eps))


def attention(q, k, v, output, heads, rope=False, head_norms=None):
    """Causal attention of projected q, k, v (..., T, d), and the output projection, [out, in]."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(-2, -3) for x in (q, k, v))
    if rope:
        q, k = rotate(q, 10000.0), rotate(k, 10000.0)
    if head_norms is not None:
        q, k = (rms_norm(x, gain, 1e-5) for x, gain in zip((q, k), head_norms, strict=True))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(mixed.transpose(-2, -3).flatten(-2), output)


def swiglu(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def load(parameter, values):
    """Put recorded values into a parameter; returns it."""
    with torch.no_grad():
        assert parameter.shape == values.shape, (parameter.shape, values.shape)
        parameter.copy_(values)
    return parameter
