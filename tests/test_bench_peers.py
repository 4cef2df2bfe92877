"""Peers that need a GPU, called through stand-ins that have the signatures of the real packages.

Read in flash-attn 2.8, flash-linear-attention 0.6.0 and Liger-Kernel 0.8.5.
"""

import importlib
import sys
from types import ModuleType

import pytest
import torch

from t2lib.bench._case import Setting, cases
from t2lib.ops import short_swa


class AttnRes(torch.autograd.Function):
    """As in Liger-Kernel, whose function takes the shape of its first argument before anything else."""

    @staticmethod
    def forward(ctx, V, query, gain, eps):
        assert V.dim() == 4, V.shape
        keys = V * torch.rsqrt(V.square().mean(-1, keepdim=True) + eps) * gain
        return torch.einsum("nbt,nbtd->btd", torch.softmax(keys @ query, 0), V)


def liger_attn_res(V, w_query, w_norm, eps=1e-6):
    return AttnRes.apply(V, w_query, w_norm, eps)


def liger_mhc_post_res(x, f_out, h_post, h_res):
    return torch.einsum("toi,tid->tod", h_res, x) + h_post[..., None] * f_out[:, None]


def fused_attnres(
    query, residuals, rms_weight, output_rms_weight=None, rms_eps=1e-6, scale=1.0, return_weights=False
):
    return liger_attn_res(torch.stack(residuals)[:, None], query * scale, rms_weight, rms_eps)[0]


def parallel_attn(q, k, v, g=None, scale=None, window_size=None, cu_seqlens=None):
    return short_swa(q, k, v, window=window_size, axis=1, rung="eager", scale=scale)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
    assert causal
    assert window_size[1] == 0
    return short_swa(q, k, v, window=window_size[0] + 1, axis=1, rung="eager", scale=softmax_scale)


def causal_conv1d(x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False):
    padded = torch.nn.functional.pad(x.mT, (weight.shape[1] - 1, 0))
    return torch.nn.functional.conv1d(padded, weight[:, None], groups=x.shape[-1]).mT, None


LIGER, FLA = "liger_kernel.transformers.functional", "fla.ops.attn"


@pytest.mark.parametrize(
    ("operator", "peer", "package", "function", "sizes"),
    [
        ("depth_attention", "Liger-Kernel, stack given", LIGER, liger_attn_res, {"states": 3}),
        ("depth_attention", "flash-linear-attention", "fla.ops.attnres", fused_attnres, {"states": 3}),
        ("stream_mix", "Liger-Kernel", LIGER, liger_mhc_post_res, {"streams": 3}),
        ("short_swa", "flash-linear-attention", FLA, parallel_attn, {"heads": 2, "window": 5}),
        ("short_swa", "flash-attention", "flash_attn", flash_attn_func, {"heads": 2, "window": 5}),
        ("short_conv", "flash-linear-attention", "fla.modules.causal_conv1d", causal_conv1d, {"taps": 3}),
    ],
)
def test_a_peer_is_called_as_its_package_asks(operator, peer, package, function, sizes, monkeypatch):
    names = package.split(".")
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
    setattr(sys.modules[package], function.__name__, function)
    # All that is left unsaid is that this is no GPU.
    module = importlib.import_module(f"t2lib.bench.{operator}")
    monkeypatch.setattr(module, "missing", lambda name, _=None: None if name in package else "not asked for")
    shape = module.Shape(tokens=12, width=16, **sizes)
    found, _ = cases(module, shape, Setting(compiled=False))
    error = found[peer].forward() - found["eager"].forward()
    assert error.abs().max() < 1e-5
