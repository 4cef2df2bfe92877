"""The trained decoder in the package, the text it was validated on, and text as bytes.

`weights/decoder.safetensors` holds float16 weights, `weights/decoder.json` how they were made,
`weights/validation.txt` the held-out text (see `weights/NOTICE.txt` for its licence).
"""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from typing import Any

import torch
from torch import Tensor

from t2lib.decoder import Decoder, DecoderConfig

WEIGHTS = files("t2lib.lab") / "weights"


def encode(text: str) -> Tensor:
    """The UTF-8 bytes of `text` as int64 tokens (T,).

    >>> encode("if")
    tensor([105, 102])
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}.")
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def decode(tokens: Tensor) -> str:
    """Byte tokens (T,) as text; bytes that are not UTF-8 become the replacement character.

    >>> decode(encode("if"))
    'if'
    """
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim != 1:
        got = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"tokens must be an int64 tensor of shape (T,), got {got}.")
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < 256:
        raise ValueError(
            f"tokens must lie in 0..255, got values from {int(tokens.min())} to {int(tokens.max())}."
        )
    return bytes(tokens.tolist()).decode(errors="replace")


def load_decoder() -> Decoder:
    """The shipped model: float32, on the CPU, in eval mode, no gradients asked of its weights."""
    from safetensors.torch import load_file

    decoder = Decoder(DecoderConfig(**card()["config"]))
    with as_file(WEIGHTS / "decoder.safetensors") as path:
        weights = load_file(path)
    decoder.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return decoder.requires_grad_(False).eval()


def card() -> dict[str, Any]:
    """How the shipped model was made: command, versions, machine, date, seed, loss curve, results."""
    text = (WEIGHTS / "decoder.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def validation_text() -> str:
    """The held-out text, about 20 kB, that the losses in `card()` refer to."""
    return (WEIGHTS / "validation.txt").read_bytes().decode()
