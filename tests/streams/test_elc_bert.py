"""ELC-BERT: golden vectors of the official encoder, convexity, start."""

import pytest
import torch
from sublayers import close, load, rms_norm, tensors

from t2lib import golden
from t2lib.streams import build
from t2lib.streams.stream import run

VARIANTS = ("base", "zero", "normalized", "weighted_output")


def branch(weight, bias):
    return lambda x: torch.tanh(rms_norm(x, None, 1e-6) @ weight.T + bias)


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden(variant):
    vectors = tensors(f"elc_bert_{variant}")
    stream = build("elc_bert", width=8, blocks=4, variant=variant).double()
    for block in range(4):
        close(stream.logits[block], vectors[f"logits_init{block}"])
        load(stream.logits[block], vectors[f"logits{block}"])
    if variant == "weighted_output":
        close(stream.output_logits, vectors["logits_out_init"])
        load(stream.output_logits, vectors["logits_out"])
    pairs = [(f"W{kind}{block}", f"b{kind}{block}") for block in range(4) for kind in "am"]
    record = run(stream, vectors["x0"], [branch(vectors[w], vectors[b]) for w, b in pairs])
    close(record.out, vectors["out"])
    levels = record.levels[::2] if variant != "weighted_output" else record.levels[:1]
    close(torch.stack(levels), vectors["H"][: len(levels)])
    (record.out * vectors["cotangent"]).sum().backward()
    close(vectors["x0"].grad, vectors["grad_x0"])
    for block in range(1, 4):
        close(stream.logits[block].grad, vectors[f"grad_logits{block}"])
    # The one logit of block 1 is dead.
    assert not stream.logits[0].grad.any()


def test_golden_strict_normalisation_in_the_vectors_of_vertical_attention():
    vectors = tensors("vertical_attention")
    eps = vectors["eps"]
    stream = build("elc_bert", width=8, blocks=4, variant="normalized").double()
    for block in range(4):
        load(stream.logits[block], vectors[f"a_{block}"])
    embedding = torch.nn.functional.layer_norm(vectors["x"], (8,), eps=1e-7)
    branches = [
        lambda h, a=a, b=b: torch.tanh(rms_norm(h, None, eps) @ a) @ b
        for a, b in zip(vectors["A"], vectors["Bm"], strict=True)
    ]
    close(torch.stack(run(stream, embedding, branches).levels[::2]), vectors["elc_norm_states"])


def test_reads_are_convex():
    """Weights are positive and sum to 1; block l of a fresh "base" gives its predecessor e/(e + l - 1)."""
    stream = build("elc_bert", width=4, blocks=6, variant="base").double()
    outputs = [torch.zeros(2, 4).double()] * 12
    matrix = stream.mixing_matrix(outputs[0], outputs)[..., 0]
    # Source 2l is what the MLP of block l put out, and it stands for the whole output of the block.
    reads = matrix[:12:2, ::2][:, :6]
    assert (reads >= 0).all()
    close(reads.sum(-1), torch.ones(6).double())
    e = torch.tensor(1.0).exp().double()
    close(reads.diagonal(), torch.stack([e / (e + block) for block in range(6)]), 1e-7)
    # Attention and MLP of a block always have the same weight in what later blocks read.
    assert torch.equal(matrix[2::2, 1::2].tril(), matrix[2::2, 2::2].tril())


def test_only_the_unit_is_the_block():
    stream = build("elc_bert", width=4, blocks=2, variant="base").double()
    x, a = torch.randn(2, 3, 4).double()
    state = stream.write(stream.start(x), 0, a)
    assert torch.equal(stream.read(state, 1), a)
    zero = build("elc_bert", width=4, blocks=2, variant="zero").double()
    state = zero.write(zero.start(x), 0, a)
    assert torch.equal(zero.read(state, 1), x + a)


def test_parameter_counts():
    for variant, count in (("zero", 78), ("weighted_output", 91)):
        stream = build("elc_bert", width=8, blocks=12, variant=variant)
        assert sum(p.numel() for p in stream.parameters()) == count == stream.cost().parameters


def test_unknown_variant():
    with pytest.raises(ValueError, match=r"variant must be one of 'base', .* got 'one'"):
        build("elc_bert", width=8, blocks=2, variant="one")
    assert set(golden.names("elc_bert_")) == {f"elc_bert_{variant}" for variant in VARIANTS}
