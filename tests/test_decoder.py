"""The decoder: the golden vectors, its laws, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from t2lib import golden
from t2lib.decoder import Block, Decoder, DecoderConfig, RMSNorm, rotate

TINY = DecoderConfig(vocabulary=31, width=16, blocks=3, heads=2, hidden=24, context=12)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(TINY).double().eval()


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, TINY.vocabulary, (2, 10), generator=torch.Generator().manual_seed(1))


# What the reference calls its parameters, and what this decoder calls them.
REFERENCE_NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def golden_blocks() -> tuple[dict[str, torch.Tensor], list[Block]]:
    arrays = {name: torch.from_numpy(array) for name, array in golden.load("prenorm").items()}
    setting = golden.sidecar("prenorm")["setting"]
    config = DecoderConfig(
        width=setting["d"],
        blocks=setting["L"],
        heads=setting["heads"],
        hidden=setting["d_ff"],
        rope_base=None,
        norm_eps=setting["rms_eps"],
    )
    blocks = []
    for index in range(config.blocks):
        weights = {
            f"{ours}.weight": arrays[f"l{index}.{theirs}.weight"] for theirs, ours in REFERENCE_NAMES.items()
        }
        weights["attention_norm.gain"] = arrays[f"l{index}.input_layernorm.weight"]
        weights["mlp_norm.gain"] = arrays[f"l{index}.post_attention_layernorm.weight"]
        block = Block(config).double()
        block.load_state_dict(weights)
        blocks.append(block)
    return arrays, blocks


def test_golden_prenorm_through_the_real_blocks() -> None:
    """The stack, each branch, the output and the gradient of the input, to 1e-10 in float64."""
    arrays, blocks = golden_blocks()
    close = {"rtol": 0.0, "atol": 1e-10}
    first = arrays["x0"].clone().requires_grad_()
    h = first
    for index, block in enumerate(blocks):
        torch.testing.assert_close(h, arrays["H"][index], **close)
        written = block.attention(block.attention_norm(h))
        torch.testing.assert_close(written, arrays["attn_out"][index], **close)
        u = h + written
        torch.testing.assert_close(u, arrays["U"][index], **close)
        torch.testing.assert_close(block.mlp(block.mlp_norm(u)), arrays["mlp_out"][index], **close)
        h = block(h)
    torch.testing.assert_close(h, arrays["out"], **close)
    (h * arrays["cotangent"]).sum().backward()
    torch.testing.assert_close(first.grad, arrays["grad_x0"], **close)


def test_golden_prenorm_stack_by_the_decoder_itself() -> None:
    """`hidden_states` and `branches` give the golden stack when the embedding rows are the golden input."""
    arrays, blocks = golden_blocks()
    config = DecoderConfig(vocabulary=3, width=8, blocks=4, heads=2, hidden=16, rope_base=None, norm_eps=1e-6)
    decoder = Decoder(config).double()
    decoder.blocks = torch.nn.ModuleList(blocks)
    with torch.no_grad():
        decoder.embedding.weight.copy_(arrays["x0"][0])
    tokens = torch.arange(3)[None]
    close = {"rtol": 0.0, "atol": 1e-10}
    torch.testing.assert_close(decoder.hidden_states(tokens), arrays["H"], **close)
    torch.testing.assert_close(decoder.branches(tokens)[::2], arrays["attn_out"], **close)
    torch.testing.assert_close(decoder.branches(tokens)[1::2], arrays["mlp_out"], **close)


@pytest.mark.parametrize("position", [0, 4, 9])
def test_causal(decoder: Decoder, tokens: torch.Tensor, position: int) -> None:
    """The logits at t have a gradient of exactly zero with respect to every later embedding."""
    h = decoder.embed(tokens).detach().requires_grad_()
    out = h
    for block in decoder.blocks:
        out = block(out)
    decoder.unembed(out)[:, position].square().sum().backward()
    assert h.grad is not None
    assert (h.grad[:, position + 1 :] == 0).all()
    assert (h.grad[:, : position + 1].abs().sum(-1) > 0).all()


def test_stack_telescopes(decoder: Decoder, tokens: torch.Tensor) -> None:
    """H[k+1] - H[k] is what sublayer k wrote; the last level is the embedding plus all of it."""
    stack, branches = decoder.hidden_states(tokens, unit="sublayer"), decoder.branches(tokens)
    torch.testing.assert_close(stack[1:] - stack[:-1], branches, rtol=0, atol=1e-14)
    torch.testing.assert_close(stack[-1], stack[0] + branches.sum(0), rtol=0, atol=1e-14)
    assert torch.equal(stack[::2], decoder.hidden_states(tokens))
    assert torch.equal(stack[0], decoder.embedding.weight[tokens])
    assert torch.equal(decoder.unembed(stack[-1]), decoder(tokens))


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 7), (2, 3, 7)])
def test_shapes(decoder: Decoder, shape: tuple[int, ...]) -> None:
    tokens = torch.zeros(shape, dtype=torch.int64)
    assert decoder(tokens).shape == (*shape, 31)
    assert decoder.hidden_states(tokens).shape == (4, *shape, 16)
    assert decoder.hidden_states(tokens, unit="sublayer").shape == (7, *shape, 16)
    assert decoder.branches(tokens).shape == (6, *shape, 16)


def test_rows_of_a_batch_do_not_meet(decoder: Decoder, tokens: torch.Tensor) -> None:
    torch.testing.assert_close(decoder(tokens)[1], decoder(tokens[1]), rtol=0, atol=1e-12)


def test_rotation_depends_on_the_distance_alone() -> None:
    """<rotate(q)_t, rotate(k)_s> is a function of t - s, lengths are kept, and position 0 stays."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    turned_q, turned_k = rotate(q.expand(9, 8), 10000.0), rotate(k.expand(9, 8), 10000.0)
    scores = turned_q @ turned_k.T
    for distance in range(-8, 9):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)
    assert (scores[0, 1:] - scores[0, 0]).abs().min() > 1e-3
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(9), rtol=0, atol=1e-12)
    assert torch.equal(turned_q[0], q)


def test_rotation_is_half_split() -> None:
    """Channel i turns with channel i + D/2, by base^(-2i/D) radians a position."""
    unit = torch.zeros(2, 4, dtype=torch.float64)
    unit[:, 1] = 1.0
    angle = torch.tensor(100.0, dtype=torch.float64) ** (-2 / 4)
    expected = torch.stack([torch.zeros_like(angle), angle.cos(), torch.zeros_like(angle), angle.sin()])
    torch.testing.assert_close(rotate(unit, 100.0)[1], expected)


def test_norm_in_float16_is_computed_in_float32() -> None:
    """The squares of 1000 overflow float16; the norm of the row must not."""
    x = torch.full((1, 8), 1000.0, dtype=torch.float16)
    assert torch.equal(RMSNorm(8, 1e-6).half()(x), torch.ones(1, 8, dtype=torch.float16))


def test_one_matrix_embeds_and_unembeds(decoder: Decoder) -> None:
    """Tied: one parameter serves both ends, and its gradient gathers from both."""
    matrices = [name for name, weight in decoder.named_parameters() if 31 in weight.shape]
    assert matrices == ["embedding.weight"]
    states = torch.randn(5, 16, dtype=torch.float64)
    expected = decoder.final_norm(states) @ decoder.embedding.weight.T
    torch.testing.assert_close(decoder.unembed(states), expected)


def test_initialisation() -> None:
    torch.manual_seed(0)
    decoder = Decoder()
    block = decoder.blocks[3]
    assert block.attention.query.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05)
    assert block.attention.output.weight.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05)
    assert decoder.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert (block.mlp_norm.gain == 1).all()


def test_generate(decoder: Decoder, tokens: torch.Tensor) -> None:
    """A seed decides the text; temperature 0 and top_k = 1 both take the most likely token."""
    drawn = decoder.generate(tokens, 8, temperature=2.0, seed=3)
    assert torch.equal(drawn, decoder.generate(tokens, 8, temperature=2.0, seed=3))
    assert not torch.equal(drawn, decoder.generate(tokens, 8, temperature=2.0, seed=4))
    assert drawn.shape == (2, 18)
    assert torch.equal(drawn[:, :10], tokens)
    greedy = decoder.generate(tokens, 8, temperature=0)
    assert torch.equal(greedy, decoder.generate(tokens, 8, top_k=1, seed=9))
    assert torch.equal(greedy[:, 10], decoder(tokens)[:, -1].argmax(-1))
    assert torch.equal(greedy[:, 17], decoder(greedy[:, 5:17])[:, -1].argmax(-1))
    assert torch.equal(decoder.generate(tokens, 0), tokens)


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(width=16, blocks=1, heads=2, hidden=16, dropout=0.5))
    tokens = torch.arange(6)
    assert not torch.equal(decoder(tokens), decoder(tokens))
    decoder.eval()
    assert torch.equal(decoder(tokens), decoder(tokens))


@pytest.mark.parametrize(
    ("bad", "error", "sentence"),
    [
        (torch.tensor([1.0, 2.0]), TypeError, "tokens must be int64, got torch.float32"),
        ([1, 2], TypeError, "tokens must be an int64 tensor, got list"),
        (torch.tensor([1, 31]), ValueError, r"tokens must lie in 0\.\.30, got values from 1 to 31"),
        (torch.tensor([-1, 3]), ValueError, r"tokens must lie in 0\.\.30, got values from -1 to 3"),
        (torch.zeros(13, dtype=torch.int64), ValueError, "at most context=12 long, got 13"),
        (torch.zeros(0, dtype=torch.int64), ValueError, r"nothing empty, got \(0,\)"),
        (torch.tensor(3), ValueError, r"shape \(\.\.\., T\)"),
    ],
)
def test_bad_tokens(decoder: Decoder, bad: object, error: type[Exception], sentence: str) -> None:
    for call in (decoder, decoder.hidden_states, decoder.branches):
        with pytest.raises(error, match=sentence):
            call(bad)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"heads": 5}, "heads must divide width: got heads=5, width=96"),
        ({"width": 12}, "width/heads must be even for rotary positions, got 3"),
        ({"blocks": 0}, "blocks must be an integer of at least 1; got 0"),
        ({"width": 96.0}, "width must be an integer of at least 1; got 96.0"),
        ({"context": True}, "context must be an integer of at least 1; got True"),
        ({"rope_base": -1.0}, "rope_base must be positive or None, got -1.0"),
        ({"rope_base": "a"}, "rope_base must be a finite real number; got 'a'"),
        ({"norm_eps": 0.0}, "norm_eps must be positive, got 0.0"),
        ({"norm_eps": math.inf}, "norm_eps must be a finite real number; got inf"),
        ({"dropout": None}, "dropout must be a finite real number; got None"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_configuration(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        DecoderConfig(**options)


def test_sizes_from_numpy() -> None:
    config = DecoderConfig(blocks=np.int64(3))
    assert config == DecoderConfig(blocks=3)
    assert type(config.blocks) is int


def test_initialise_starts_anew() -> None:
    """Norm gains included: a decoder made without memory has none to keep."""
    with torch.device("meta"):
        empty = Decoder(TINY)
    empty = empty.to_empty(device="cpu")
    fresh = Decoder(TINY)
    for model in (fresh, empty):
        torch.manual_seed(0)
        model.initialise()
    for name, weight in fresh.named_parameters():
        assert torch.equal(weight, empty.get_parameter(name)), name


def test_bad_calls(decoder: Decoder, tokens: torch.Tensor) -> None:
    with pytest.raises(ValueError, match='unit must be "block" or "sublayer", got \'layer\''):
        decoder.hidden_states(tokens, unit="layer")
    with pytest.raises(ValueError, match="length must be an integer of at least 0; got -1"):
        decoder.generate(tokens, -1)
    with pytest.raises(ValueError, match=r"temperature must be at least 0; got -0\.5"):
        decoder.generate(tokens, 1, temperature=-0.5)
    with pytest.raises(ValueError, match=r"top_k must lie in 1\.\.31 or be None; got 32"):
        decoder.generate(tokens, 1, top_k=32)
