"""The costs of depth_mix and depth_attention: closed forms of whole networks, and what the counters count."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from t2lib.ops.depth_attention import cost as attention
from t2lib.ops.depth_mix import cost as mix


def test_elc_bert_and_denseformer_of_twelve_blocks():
    """2d · L(L + 1)/2 and 2d · L(L + 3)/2 for L = 12, d = 768."""
    assert sum(mix.forward_flops(n, 768) for n in range(1, 13)) == 119_808
    assert sum(mix.forward_flops(n + 1, 768) for n in range(1, 13)) == 138_240


def test_full_attention_residuals_of_twelve_blocks():
    """6d · R(R + 1)/2 for R = 24 sublayers, d = 768."""
    assert sum(attention.forward_flops(n, 768) for n in range(1, 25)) == 1_382_400


def test_a_gated_residual_costs_five_a_source_and_channel():
    """The scores 2 · n · d, then the sum with weights a channel and a token 3 · n · d."""
    assert 2 * 4 * 8 + mix.forward_flops(4, 8, channel_and_token=True) == 5 * 4 * 8


def test_many_queries_share_the_norm_and_the_traffic():
    one, four = attention.forward_flops(9, 64), attention.forward_flops(9, 64, queries=4)
    assert four == 4 * one - 3 * 2 * 9 * 64
    assert attention.forward_bytes(9, 64, itemsize=2, queries=4) == 2 * (9 + 4) * 64
    assert attention.merge_flops(2, 64, tokens=5) == 2 * 2 * 64 * 5


def test_bytes_are_the_sizes_of_the_arrays():
    states, tokens, width, outputs = 6, 10, 8, 3
    arrays = [np.ones((tokens, width), np.float32)] * states + [np.ones((outputs, tokens, width), np.float32)]
    own = np.ones((tokens, outputs, states), np.float32)
    got = mix.forward_bytes(states, width, itemsize=4, tokens=tokens, outputs=outputs)
    assert got == sum(x.nbytes for x in arrays)
    with_own = mix.forward_bytes(
        states, width, itemsize=4, tokens=tokens, outputs=outputs, token_weights=True
    )
    assert with_own == got + own.nbytes


def test_gradients_that_nobody_needs_move_nothing():
    sizes = {"states": 8, "width": 64, "itemsize": 2, "tokens": 10, "backward": True}
    row, number, vector = 10 * 64 * 2, 10 * 4, 64 * 4
    full = attention.kernel_bytes(**sizes)
    assert full == (2 * 8 + 2) * row + (8 + 2) * number + 2 * vector
    assert attention.kernel_bytes(**sizes, needed=["shared"]) == full - 8 * row
    assert attention.kernel_bytes(**sizes, needed=["states"]) == full - vector
    assert attention.kernel_bytes(**sizes, needed=[]) == 0
    # Several queries: their second launch reads the states and the slopes that the first one writes.
    both, *each = (
        attention.kernel_bytes(**sizes, queries=3, needed=some)
        for some in (["states", "shared"], ["states"], ["shared"])
    )
    assert [both - one for one in each] == [8 * (6 * number + row) + 3 * vector, 8 * row]
    with pytest.raises(ValueError, match="needed must name some of states, shared"):
        attention.kernel_bytes(**sizes, needed=["weights"])


def test_flops_are_those_of_a_counter_on_the_matrix_form():
    stack, weights = torch.ones(6, 10 * 8), torch.ones(3, 6)
    with FlopCounterMode(display=False) as counter:
        weights @ stack
    assert counter.get_total_flops() == mix.forward_flops(6, 8, tokens=10, outputs=3)


@pytest.mark.parametrize("function", [mix.forward_flops, attention.forward_flops, attention.merge_flops])
def test_bad_sizes(function):
    with pytest.raises(ValueError, match="must be an integer of at least 1; got 0"):
        function(0, 8)
    with pytest.raises(TypeError, match=r"must be an integer of at least 1; got 2\.5"):
        function(2, 2.5)
