"""Every design with the options that change what it does: one list, over which claims and tests run.

Also streams and sublayers of toy size to walk them with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib.streams import build
from t2lib.streams.stream import Read, Stream


class Variant(NamedTuple):
    """A name in the registry, options, and as many blocks as show what they do."""

    design: str
    options: dict[str, Any]
    blocks: int = 3

    def build(self, width: int, blocks: int | None = None) -> Stream:
        return build(self.design, width=width, blocks=blocks or self.blocks, **self.options)


def _named(design: str, short: str, options: dict[str, dict[str, Any]]) -> dict[str, Variant]:
    return {f"{short} {name}".rstrip(): Variant(design, chosen) for name, chosen in options.items()}


LINEAR = {"value_head": "linear"}
DELTA = _named(
    "deep_delta",
    "ddl",
    {
        "": {},
        "cc": {"value_channels": 4},
        "cc + ec": {"value_channels": 4, "expand": "convolution"},
        "cc of the paper": {"value_channels": 4, "compressor": "cc_paper"},
        "tc": {"value_channels": 4, "compressor": "tc"},
        "tc + ec": {"value_channels": 4, "compressor": "tc", "expand": "convolution"},
        "cc a sublayer": {"value_channels": 4, "shared": "sublayer"},
        "tc a sublayer": {"value_channels": 2, "compressor": "tc", "shared": "sublayer"},
        "two-layer gate": {"gate": "two_layer", "gate_hidden": 5},
        "cc two-layer gate": {"value_channels": 4, "gate": "two_layer", "gate_hidden": 5},
        "linear value": LINEAR,
        "cc linear value": {"value_channels": 4, "value_bias": True, **LINEAR},
        "write-only": {"erase": False, **LINEAR},
        "cc write-only": {"value_channels": 4, "erase": False, **LINEAR},
        "cc kernel guard": {"value_channels": 4, "guard": "kernel"},
        "cc near identity": {"value_channels": 4, "initial": "near_identity"},
        "cc rewind": {"value_channels": 4, "rewind": True},
    },
)

VARIANTS: dict[str, Variant] = {
    "prenorm": Variant("prenorm", {}),
    **_named(
        "elc_bert",
        "elc_bert",
        {name: {"variant": name} for name in ("base", "zero", "normalized", "weighted_output")},
    ),
    # Dilation x period.
    "denseformer 1x1": Variant("denseformer", {}),
    "denseformer 2x1": Variant("denseformer", {"dilation": 2}),
    "denseformer 1x2": Variant("denseformer", {"period": 2}),
    "denseformer 2x3": Variant("denseformer", {"dilation": 2, "period": 3}),
    "denseformer 4x5": Variant("denseformer", {"dilation": 4, "period": 5}, 5),
    **_named(
        "vertical_attention_reconstruction",
        "vertical",
        {
            "": {},
            "no skip": {"skip": False},
            "branch": {"source": "branch"},
            "l2": {"norm": "l2"},
            "no norm": {"norm": "none"},
            "from the last": {"start": "last"},
        },
    ),
    **_named(
        "depth_window",
        "window",
        {
            "1": {"window": 1},
            "2": {"window": 2},
            "all": {"window": 4},
            "3 owned": {"window": 3, "shared": False},
            "3 replace": {"window": 3, "enter": "replace"},
        },
    ),
    **_named(
        "hyper_connections",
        "hc",
        {
            "static": {"dynamic": False},
            "": {},
            "rms": {"norm": "rms"},
            "no tanh": {"streams": 2, "norm": "rms", "tanh": False},
        },
    ),
    **_named(
        "manifold_hyper_connections",
        "mhc",
        {
            "": {},
            "released": {"numerics": "released", "head": "learned"},
            "no spread": {"streams": 3, "spread": 0.0},
        },
    ),
    **_named(
        "deep_cross_attention",
        "dca",
        {
            "": {},
            "v1": {"version": "v1"},
            "v2": {"version": "v2"},
            "one way": {"version": "v1", "multiway": False},
            "inner norm": {"inner_norm": True},
            "half gate": {"gate": "half"},
            "k=1": {"window": 1},
            "k=2": {"window": 2},
            "k=2 first+last": {"window": 2, "selection": "first_last", "inner_norm": True},
        },
    ),
    **_named(
        "muddformer",
        "mudd",
        {
            "": {},
            "prepost code": {"variant": "prepost_code"},
            "prepost paper": {"variant": "prepost_paper"},
        },
    ),
    **_named(
        "attention_residuals",
        "attnres",
        {
            "": {},
            "block 4": {"block_size": 4},
            "block 3": {"block_size": 3},
            "two-phase": {"two_phase": True, "schedule": 4},
            "block 4 two-phase": {"block_size": 4, "two_phase": True},
            "block 3 two-phase": {"block_size": 3, "two_phase": True},
            "input query": {"block_size": 2, "input_query": True},
        },
    ),
    **DELTA,
}


def built(
    variant: str,
    width: int = 6,
    blocks: int | None = None,
    dtype: torch.dtype = torch.float64,
    spread: float = 0.5,
    seed: int = 0,
) -> Stream:
    """A stream away from its start: noise of size `spread` on every parameter."""
    # A generator of its own would not reach the modules: they draw from the global one.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stream = VARIANTS[variant].build(width, blocks).to(dtype)
        with torch.no_grad():
            for parameter in stream.parameters():
                parameter.add_(spread * torch.randn_like(parameter))
    return stream


Branches = list[Callable[..., Tensor]]


def toy(stream: Stream, seed: int = 1, scale: float = 1.0) -> tuple[Branches, Branches]:
    """Branches and norms, one a sublayer: sines of whatever is read."""
    generator = torch.Generator().manual_seed(seed)

    def norm(read: Read) -> Tensor:
        x = torch.stack(list(read.values())).sum(0) if isinstance(read, dict) else read
        return F.rms_norm(x, x.shape[-1:], None, 1e-5)

    def branch(matrix: Tensor) -> Callable[[Any], Tensor]:
        return lambda normed: torch.sin(normed @ matrix.to(normed.dtype))

    shape = (stream.width, stream.width)
    branches = [branch(scale * torch.randn(shape, generator=generator)) for _ in range(stream.sublayers)]
    return branches, [norm] * stream.sublayers


def embedding(
    stream: Stream, dtype: torch.dtype = torch.float64, leading: tuple[int, ...] = (2, 3)
) -> Tensor:
    """The same random embedding (*leading, width) whenever it is asked for."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*leading, stream.width, generator=generator, dtype=torch.float64).to(dtype)
