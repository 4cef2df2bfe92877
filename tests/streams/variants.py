"""Every design with the options that change what it does: what the tests of all streams run over."""

import torch

from t2lib.streams import build

# A short name, the name in the registry, the options.
VARIANTS = {
    "prenorm": ("prenorm", {}),
    "elc_bert base": ("elc_bert", {"variant": "base"}),
    "elc_bert zero": ("elc_bert", {"variant": "zero"}),
    "elc_bert normalized": ("elc_bert", {"variant": "normalized"}),
    "elc_bert weighted_output": ("elc_bert", {"variant": "weighted_output"}),
    "denseformer 1x1": ("denseformer", {}),
    "denseformer 2x1": ("denseformer", {"dilation": 2}),
    "denseformer 1x2": ("denseformer", {"period": 2}),
    "vertical": ("vertical_attention_reconstruction", {}),
    "vertical noskip l2": ("vertical_attention_reconstruction", {"skip": False, "norm": "l2"}),
    "vertical branch none": ("vertical_attention_reconstruction", {"source": "branch", "norm": "none"}),
    "vertical last": ("vertical_attention_reconstruction", {"start": "last"}),
    "window 2": ("depth_window", {"window": 2}),
    "window 3 owned": ("depth_window", {"window": 3, "shared": False}),
    "window 3 replace": ("depth_window", {"window": 3, "enter": "replace"}),
    "hc static": ("hyper_connections", {"dynamic": False}),
    "hc": ("hyper_connections", {}),
    "hc n=2 rms no tanh": ("hyper_connections", {"streams": 2, "norm": "rms", "tanh": False}),
    "mhc": ("manifold_hyper_connections", {}),
    "mhc released": ("manifold_hyper_connections", {"numerics": "released", "head": "learned", "streams": 3}),
}


def built(variant, width=6, blocks=3, dtype=torch.float64, spread=0.5, seed=0):
    """A stream away from its start: noise of size `spread` on every parameter."""
    name, options = VARIANTS[variant]
    torch.manual_seed(seed)
    stream = build(name, width=width, blocks=blocks, **options).to(dtype)
    with torch.no_grad():
        for parameter in stream.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return stream


def toy(stream, seed=1, scale=1.0):
    """Branches of any kind, one a sublayer: sines of whatever is read."""
    generator = torch.Generator().manual_seed(seed)

    def branch(matrix):
        def apply(read):
            x = sum(read.values()) if isinstance(read, dict) else read
            return torch.sin(x @ matrix.to(x.dtype))

        return apply

    shape = (stream.width, stream.width)
    return [branch(scale * torch.randn(shape, generator=generator)) for _ in range(stream.sublayers)]
