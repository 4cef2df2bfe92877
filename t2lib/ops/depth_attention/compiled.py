"""torch.compile of the read as one expression: the scores of all states, one softmax, one fused sum.

A compilation is for one number of states and queries, and serves all lengths. The backward pass is compiled
as well. First order only.
"""

from __future__ import annotations

from torch import Tensor

from t2lib.ops._compile import run
from t2lib.ops.depth_attention import eager
from t2lib.ops.depth_attention.eager import folded, plain


def depth_attention(
    states: tuple[Tensor, ...],
    pseudo_query: Tensor | None,
    gain: Tensor | None,
    query: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The same reads as in `loops`, compiled on first use; arguments as the contract passes them."""
    z, lse = run(plain, states, folded(pseudo_query, gain), folded(query, gain), eps)
    return z, lse


def merge(reads: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """A softmax over the log-sum-exps weights the reads of the parts."""
    z, lse = run(eager.merge, reads, lses)
    return z, lse
