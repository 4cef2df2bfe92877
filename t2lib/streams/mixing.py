"""The depth-mixing matrix that a pass realised: which earlier outputs each sublayer read, and how much.

Whatever a design does, once its coefficients are known for a token, a read is linear in the embedding and in
the branch outputs. The matrix is taken as the derivative of the reads with the coefficients held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from t2lib.streams.stream import Read, Stream, every_way


def mixing_matrix(
    stream: Stream,
    embedding: Tensor,
    branch_outputs: Sequence[Tensor] | Tensor,
    normed: Sequence[Any] | None = None,
) -> Read:
    """The weights M of one realised pass, with read_k = Σ_j M[k, j] y_j.

    Source 0 is the embedding, source j the output of sublayer j - 1; reader k is sublayer k, the last one
    `finish`. Nothing above the diagonal is ever read: M[k, j] = 0 for j > k.

    Shapes   embedding (..., T, d), branch_outputs 2L of these
             number a source:   (2L+1, 2L+1, ..., T)
             number a channel:  (2L+1, 2L+1, ..., T, d)
             matrix a source:   (2L+1, 2L+1, ..., T, d, d), acting as M y on columns
             which of them: `stream.mixing`. A design with ways gives a dict of one such M a way, in which a
             sublayer with a single read has that read in every way.
    Dtypes   those of the embedding; float64 makes the law exact to rounding
    Errors   ValueError for the wrong number of outputs, or for a stream that mixes tokens
    Cost     2L+1 backward passes through the stream, d times as many for matrices
    """
    if len(branch_outputs) != stream.sublayers:
        raise ValueError(
            f"branch_outputs must be {stream.sublayers}, one a sublayer; got {len(branch_outputs)}."
        )
    if normed is not None and len(normed) != stream.sublayers:
        raise ValueError(f"normed must be {stream.sublayers}, one a sublayer; got {len(normed)}.")
    if stream.mixing not in _ROWS:
        raise ValueError(f"stream must have weights a token, to have a mixing matrix; it {stream.mixing}.")
    row = _ROWS[stream.mixing]
    # Also within inference mode, whose tensors take part in no gradient: of those only copies do.
    with torch.inference_mode(False), torch.enable_grad(), stream.holding():
        sources = [source.detach().clone().requires_grad_() for source in (embedding, *branch_outputs)]
        state = stream.start(sources[0])
        reads: list[Read] = []
        for i in range(stream.sublayers):
            reads.append(stream.read(state, i))
            state = stream.write(state, i, sources[i + 1], None if normed is None else _detached(normed[i]))
        reads.append(stream.finish(state))
        ways = list(dict.fromkeys(way for read in reads if isinstance(read, dict) for way in read))
        if not ways:
            return torch.stack([row(read, sources) for read in reads if isinstance(read, Tensor)])
        return {way: torch.stack([row(every_way(read, way), sources) for read in reads]) for way in ways}


def mix(matrix: Tensor, sources: Tensor) -> Tensor:
    """Σ_j M[k, j] y_j for every reader k: matrix as above, sources (2L+1, ..., T, d) -> (2L+1, ..., T, d)."""
    extra = matrix.ndim - sources.ndim
    if extra == 0:
        return torch.einsum("kj...,j...d->k...d", matrix, sources)
    if extra == 1:
        return torch.einsum("kj...d,j...d->k...d", matrix, sources)
    return torch.einsum("kj...ce,j...e->k...c", matrix, sources)


def _gradients(of: Tensor, sources: list[Tensor]) -> Tensor:
    """d of / d source for every source; zero for those that it does not depend on."""
    if not of.requires_grad:
        return torch.stack([torch.zeros_like(source) for source in sources])
    found = torch.autograd.grad(of, sources, retain_graph=True, allow_unused=True)
    pairs = zip(found, sources, strict=True)
    return torch.stack([torch.zeros_like(source) if g is None else g for g, source in pairs])


def _numbers(read: Tensor, sources: list[Tensor]) -> Tensor:
    # Every channel has the same weight, so the first one tells it.
    return _gradients(read[..., 0].sum(), sources)[..., 0]


def _channels(read: Tensor, sources: list[Tensor]) -> Tensor:
    return _gradients(read.sum(), sources)


def _matrices(read: Tensor, sources: list[Tensor]) -> Tensor:
    return torch.stack([_gradients(channel.sum(), sources) for channel in read.unbind(-1)], dim=-2)


_ROWS = {"number": _numbers, "channel": _channels, "matrix": _matrices}


def _detached(normed: Any) -> Any:
    if isinstance(normed, dict):
        return {way: x.detach().clone() for way, x in normed.items()}
    return normed.detach().clone()
