"""Every mixer with the options that make a difference, none of them at its plain start."""

import torch

from t2lib.decoder import Decoder
from t2lib.mixers._variants import SHAPE, VARIANTS
from t2lib.mixers._variants import text as tokens

__all__ = ["SHAPE", "VARIANTS", "decoder", "tokens"]


def decoder(variant, dtype=torch.float64, **fields):
    """A decoder of that mixer in evaluation, its weights moved away from every special value."""
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    model = Decoder(**{**SHAPE, "mixer": name, "mixer_options": options, **fields}).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model
