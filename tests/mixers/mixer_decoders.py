"""Every mixer with the options that make a difference, none of them at its plain start."""

import torch

from t2lib.decoder import Decoder

SHAPE = {"vocabulary": 31, "width": 16, "blocks": 2, "heads": 2, "hidden": 24, "context": 40}
VARIANTS = {
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


def decoder(variant, dtype=torch.float64, **fields):
    """A decoder of that mixer in evaluation, its weights moved away from every special value."""
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    model = Decoder(**{**SHAPE, "mixer": name, "mixer_options": options, **fields}).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(*shape, seed=1):
    return torch.randint(0, SHAPE["vocabulary"], shape, generator=torch.Generator().manual_seed(seed))
