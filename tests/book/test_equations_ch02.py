"""The labelled equations of chapter 2: the unrolled stream, its growth, the parts of a logit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.exercises.ch02 import stall
from t2lib.lab.analysis import depth_mixing, expected_rms, logit_parts, random_stream, rms, unroll

CONFIG = DecoderConfig(vocabulary=11, width=8, blocks=3, heads=2, hidden=12, context=16)


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(1)
    model = Decoder(CONFIG).double().eval()
    torch.nn.init.uniform_(model.final_norm.gain, 0.5, 1.5)
    return model


@pytest.fixture(params=[(7,), (2, 5)], ids=["one text", "a batch"])
def tokens(request: pytest.FixtureRequest) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 11, request.param))


@pytest.mark.equation("eq-unrolled")
@torch.no_grad()
def test_a_level_is_the_embedding_and_all_branches_so_far(decoder: Decoder, tokens: torch.Tensor) -> None:
    levels = decoder.hidden_states(tokens, unit="sublayer")
    embedding, branches = decoder.embed(tokens), decoder.branches(tokens)
    torch.testing.assert_close(unroll(embedding, branches), levels, rtol=1e-12, atol=1e-13)
    for k in (0, 1, 4, 6):
        torch.testing.assert_close(levels[k], embedding + branches[:k].sum(0), rtol=1e-12, atol=1e-13)


@pytest.mark.equation("eq-unrolled")
def test_the_unrolling_of_the_page_done_by_hand() -> None:
    branches = torch.tensor([[0.0, 2.0], [-1.0, 1.0], [3.0, 0.0]])
    levels = unroll(torch.tensor([1.0, 0.0]), branches)
    assert levels.tolist() == [[1, 0], [1, 2], [0, 3], [3, 3]]


def test_the_mixing_matrix_is_a_triangle_of_ones() -> None:
    assert depth_mixing(2).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


@pytest.mark.equation("eq-sqrt-growth")
def test_the_law_by_hand() -> None:
    assert expected_rms(0) == 1
    assert expected_rms(3) == 2
    assert expected_rms(48) == 7
    assert expected_rms(3, correlation=1) == pytest.approx(math.sqrt(10))
    assert expected_rms(4, size=2, correlation=0) == pytest.approx(math.sqrt(17))


@pytest.mark.equation("eq-sqrt-growth")
@pytest.mark.parametrize(("size", "correlation"), [(1.0, 0.0), (0.25, 0.0), (1.0, 0.5), (2.0, 1.0)])
def test_sums_of_correlated_vectors_grow_by_the_law(size: float, correlation: float) -> None:
    rng = np.random.default_rng(3)
    start, common = rng.standard_normal((2, 200_000))
    total = start.copy()
    for n in range(1, 13):
        own = rng.standard_normal(len(total))
        total += size * (math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own)
        assert np.sqrt(np.mean(total**2)) == pytest.approx(expected_rms(n, size, correlation), rel=0.01)


@pytest.mark.parametrize(("scale", "shared"), [(1.0, 0.0), (48**-0.5, 0.0), (1.0, 0.25)])
def test_an_untrained_stream_follows_the_law(scale: float, shared: float) -> None:
    levels, _ = random_stream(48, scale=scale, shared=shared)
    for n in (1, 8, 48):
        size = float(rms(levels[n]).square().mean().sqrt())
        assert size == pytest.approx(expected_rms(n, scale, shared), rel=0.08)


@pytest.mark.equation("eq-logit-parts")
@torch.no_grad()
def test_the_parts_sum_to_the_logits_and_each_is_linear_in_its_term(
    decoder: Decoder, tokens: torch.Tensor
) -> None:
    parts = logit_parts(decoder, tokens)
    assert parts.shape == (2 * CONFIG.blocks + 1, *tokens.shape, CONFIG.vocabulary)
    torch.testing.assert_close(parts.sum(0), decoder(tokens), rtol=1e-10, atol=1e-12)

    last = decoder.hidden_states(tokens)[-1]
    size = (last.square().sum(-1, keepdim=True) / CONFIG.width + CONFIG.norm_eps).sqrt()
    for k, branch in enumerate(decoder.branches(tokens), start=1):
        by_hand = (branch * decoder.final_norm.gain) @ decoder.embedding.weight.T / size
        torch.testing.assert_close(parts[k], by_hand, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("step", [1.0, 0.5, 3.0, 1.5, 7.0])
@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_a_counter_stops_where_the_exercise_says(step: float, dtype: torch.dtype, bits: int) -> None:
    value, previous = torch.zeros((), dtype=dtype), None
    while previous is None or value != previous:
        value, previous = value + torch.tensor(step, dtype=dtype), value
    assert value.item() == stall(step, bits)
