"""The labelled equation of chapter 1, and its claim about who reaches whom."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from t2lib.decoder import Block, Decoder, DecoderConfig
from t2lib.lab.analysis import change_per_cell

CONFIG = DecoderConfig(vocabulary=11, width=8, blocks=3, heads=2, hidden=12, context=16)


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    model = Decoder(CONFIG).double().eval()
    # Gains away from one, so that the two norms of a block cannot be mistaken for each other.
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 11, 7))


def rms_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + CONFIG.norm_eps).sqrt() * gain


@pytest.mark.equation("eq-block")
@torch.no_grad()
def test_a_block_is_two_additions_each_of_a_branch_that_read_a_normalised_copy(
    decoder: Decoder, tokens: torch.Tensor
) -> None:
    levels = decoder.hidden_states(tokens)
    halfway = decoder.hidden_states(tokens, unit="sublayer")[1::2]
    for number, block in enumerate(decoder.blocks):
        assert isinstance(block, Block)
        h = levels[number]
        u = h + block.attention(rms_norm(h, block.attention_norm.gain))
        after = u + block.mlp(rms_norm(u, block.mlp_norm.gain))
        torch.testing.assert_close(u, halfway[number], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(after, levels[number + 1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(block(h), after, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("position", [0, 3, 6])
def test_a_byte_reaches_its_column_and_all_that_is_above_and_to_the_right(
    decoder: Decoder, tokens: torch.Tensor, position: int
) -> None:
    other = (int(tokens[position]) + 1) % CONFIG.vocabulary
    changed = change_per_cell(decoder, tokens, position, other) > 0
    expected = torch.zeros(CONFIG.blocks + 1, len(tokens), dtype=torch.bool)
    expected[0, position] = True
    expected[1:, position:] = True
    assert torch.equal(changed, expected)


def test_no_change_of_the_byte_changes_no_cell(decoder: Decoder, tokens: torch.Tensor) -> None:
    assert not change_per_cell(decoder, tokens, 2, int(tokens[2])).any()
