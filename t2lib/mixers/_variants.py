"""Every mixer with the options that make a difference, and the streams that each is checked with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.decoder import Decoder

Named = dict[str, tuple[str, dict[str, Any]]]

SHAPE = {"vocabulary": 31, "width": 16, "blocks": 2, "heads": 2, "hidden": 24, "context": 40}
# A short name, the name in the registry, the options. No mixer is at its plain start.
VARIANTS: Named = {
    "none": ("none", {}),
    "short_conv": ("short_conv", {}),
    "short_conv branch": (
        "short_conv",
        {"placement": "branch", "kernel": 3, "activation": "silu", "bias": True},
    ),
    "canon ABCD": ("canon", {}),
    "canon B without residual": ("canon", {"positions": "B", "residual": False}),
    "short_swa": ("short_swa", {"window": 3, "initial": "normal"}),
    "short_swa grouped": ("short_swa", {"window": 5, "initial": "normal", "key_heads": 1, "rope": False}),
    "short_swa chunk": ("short_swa", {"window": 3, "window_type": "chunk", "initial": "normal"}),
    "short_swa branch": ("short_swa", {"window": 3, "placement": "branch", "initial": "normal"}),
}
# Every design, and those options that change its ways or its states along the tokens.
STREAMS: Named = {
    "prenorm": ("prenorm", {}),
    "elc_bert": ("elc_bert", {}),
    "denseformer": ("denseformer", {}),
    "vertical": ("vertical_attention_reconstruction", {}),
    "hc": ("hyper_connections", {}),
    "mhc": ("manifold_hyper_connections", {"iterations": 5}),
    "dca": ("deep_cross_attention", {}),
    "mudd": ("muddformer", {}),
    "attnres": ("attention_residuals", {}),
    "attnres two-phase": ("attention_residuals", {"block_size": 3, "two_phase": True}),
    "window": ("depth_window", {"window": 3}),
    "ddl": ("deep_delta", {}),
    "ddl cc + ec": ("deep_delta", {"value_channels": 2, "expand": "convolution"}),
    "ddl tc + ec": ("deep_delta", {"value_channels": 2, "compressor": "tc", "expand": "convolution"}),
}


def decoder(
    mixer: str, stream: str = "prenorm", dtype: torch.dtype = torch.float64, **fields: Any
) -> Decoder:
    """A decoder in evaluation, its weights moved away from every special value."""
    name, options = VARIANTS[mixer]
    chosen, stream_options = STREAMS[stream]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Decoder(
            **{**SHAPE, **fields},
            mixer=name, mixer_options=options, stream=chosen, stream_options=stream_options,
        )  # fmt: skip
        model = model.to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def text(*shape: int, seed: int = 1) -> Tensor:
    """Random tokens, the same for the same seed."""
    return torch.randint(0, SHAPE["vocabulary"], shape, generator=torch.Generator().manual_seed(seed))
