"""Streams and mixers on the kernels, as "auto" takes them on a GPU: results and gradients as in `eager`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from t2lib.mixers import _variants as mixers
from t2lib.ops import _registry, _triton
from t2lib.streams._golden import error
from t2lib.streams._variants import VARIANTS, built, embedding, toy

# The interpreter computes NaN as NumPy does, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
# What the plain stream does is an addition, which needs no operator; with no mixer, nothing is left.
WITHOUT_OPERATORS = {"prenorm"}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ "auto" takes the kernels wherever they do not refuse; filled with the operators that are launched."""
    found: list[str] = []
    launch = _triton.launch

    def choose(operator: str, q: Any) -> str:
        return "kernels" if _registry.load(operator, "kernels").refuses(q) is None else "eager"

    def record(operator: str, *arguments: Any, **keywords: Any) -> None:
        found.append(operator)
        launch(operator, *arguments, **keywords)

    monkeypatch.setattr(_registry, "choose", choose)
    monkeypatch.setattr(_triton, "launch", record)
    return found


def walked(variant: str, dtype: torch.dtype) -> list[Tensor]:
    """What a stream puts out, with the gradients of the embedding and of every parameter."""
    # Drawn in float64 for both: the same numbers.
    stream = built(variant).to(dtype)
    start = embedding(stream, dtype, (1, 2)).requires_grad_()
    state = stream.start(start)
    for i, (branch, norm) in enumerate(zip(*toy(stream), strict=True)):
        normed = norm(stream.read(state, i))
        state = stream.write(state, i, branch(normed), normed)
    out = stream.finish(state)
    leaves = [start, *stream.parameters()]
    upstream = torch.cos(torch.arange(out.numel(), dtype=dtype)).reshape(out.shape)
    gradients = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return [out.detach(), *(torch.zeros(1) if x is None else x for x in gradients)]


def errors(got: list[Tensor], want: list[Tensor]) -> float:
    return max(error(a.double(), b.double()) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stream(variant: str, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    want = walked(variant, torch.float64)
    assert not launched, "no kernel takes float64"
    got = walked(variant, torch.float32)
    assert bool(launched) == (variant not in WITHOUT_OPERATORS)
    monkeypatch.setattr(_registry, "choose", lambda operator, q: "eager")
    # Some of these toys magnify a rounding ten thousand times.
    assert errors(got, want) <= 1e-5 + 5 * errors(walked(variant, torch.float32), want)


def test_what_is_one_launch(launched: list[str]) -> None:
    """Deep Delta Learning reads as it writes, and the second phase of Attention Residuals is one pass."""
    walked("ddl cc", torch.float32)
    # Six sublayers: forward, backward, and backward once more for the compressor.
    assert launched.count("delta_rewrite") == 6 * 3
    # The first read is of a state that no rewrite has made.
    assert launched.count("depth_mix") == 2
    assert len(launched) == 20
    launched.clear()
    walked("attnres block 4 two-phase", torch.float32)
    # Two first phases, backward two launches each; four reads that go on from one, and that of the output.
    assert launched == ["depth_attention"] * (2 * 3 + 5 * 2)


@pytest.mark.parametrize("mixer", mixers.VARIANTS)
def test_a_mixer(mixer: str, launched: list[str]) -> None:
    """In a decoder, two packed documents in a row of tokens."""
    text, documents = mixers.text(1, 7), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    found = []
    for dtype in (torch.float64, torch.float32):
        model = mixers.decoder(mixer, dtype=torch.float64).to(dtype)
        logits = model(text, documents=documents)
        parameters = list(model.parameters())
        upstream = torch.cos(torch.arange(logits.numel(), dtype=dtype)).reshape(logits.shape)
        found.append([logits.detach(), *torch.autograd.grad(logits, parameters, upstream)])
    assert bool(launched) == (mixer != "none")
    assert errors(found[1], found[0]) <= 1e-4
