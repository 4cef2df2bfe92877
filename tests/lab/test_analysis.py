"""Laws of the functions that look at a recorded stack."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.lab.analysis import (
    branch_gram,
    branch_ratios,
    consecutive_cosines,
    lens_ranks,
    random_stream,
    rms,
    unroll,
)


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape))


def test_rms_is_the_norm_over_the_root_of_the_width() -> None:
    x = normal(4, 3, 9)
    torch.testing.assert_close(rms(x), x.norm(dim=-1) / 3)


def test_a_branch_at_a_right_angle_makes_a_right_triangle() -> None:
    # Legs sqrt(3) and 1, hypotenuse 2.
    stack = torch.tensor([[[math.sqrt(3), 0.0]], [[math.sqrt(3), 1.0]]])
    branches = stack[1:] - stack[:1]
    assert branch_ratios(stack, branches).item() == pytest.approx(0.5)
    assert consecutive_cosines(stack).item() == pytest.approx(math.sqrt(3) / 2)


def test_ratios_refuse_a_stack_in_blocks() -> None:
    with pytest.raises(ValueError, match="stack must have one level more than there are branches"):
        branch_ratios(normal(3, 5, 4), normal(4, 5, 4))


def test_the_gram_of_all_terms_sums_to_the_mean_square_of_the_last_level() -> None:
    embedding, branches = normal(5, 4), normal(6, 5, 4) + 0.3
    gram = branch_gram(embedding, branches)
    assert gram.shape == (7, 7)
    torch.testing.assert_close(gram.diag()[1:], branches.square().mean((1, 2)))
    torch.testing.assert_close(gram.sum(), unroll(embedding, branches)[-1].square().mean())


def test_random_streams_are_sums_of_their_branches_and_the_same_each_time() -> None:
    levels, branches = random_stream(6, width=16, tokens=3, seed=4)
    torch.testing.assert_close(unroll(levels[0], branches), levels)
    assert torch.equal(levels, random_stream(6, width=16, tokens=3, seed=4)[0])
    assert not torch.equal(levels, random_stream(6, width=16, tokens=3, seed=5)[0])


@pytest.mark.parametrize("shared", [0.0, 0.25, 1.0])
def test_branches_correlate_by_what_they_share(shared: float) -> None:
    _, branches = random_stream(8, shared=shared)
    rows = branches.flatten(1)
    cosines = torch.corrcoef(rows)[~torch.eye(8, dtype=torch.bool)]
    assert cosines.mean().item() == pytest.approx(shared, abs=0.03)


@pytest.mark.parametrize("shared", [-0.1, 1.1])
def test_shared_is_a_share(shared: float) -> None:
    with pytest.raises(ValueError, match=r"shared must lie in \[0, 1\]"):
        random_stream(2, shared=shared)


def test_the_rank_of_the_best_byte_is_zero_and_of_the_worst_the_last() -> None:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(vocabulary=11, width=8, blocks=2, heads=2, hidden=12)).eval()
    tokens = torch.arange(6)
    stack = decoder.hidden_states(tokens).detach()
    logits = decoder.unembed(stack)
    assert not lens_ranks(decoder, stack[-1:], logits[-1].argmax(-1)).any()
    assert (lens_ranks(decoder, stack[-1:], logits[-1].argmin(-1)) == 10).all()
    assert lens_ranks(decoder, stack, tokens).shape == (3, 6)
