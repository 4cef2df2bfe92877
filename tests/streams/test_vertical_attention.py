"""The reconstruction of Vertical Attention: vectors of the same reconstruction, all switches."""

import pytest
import torch
from sublayers import close, load, rms_norm, tensors

from t2lib.streams import build
from t2lib.streams.stream import run

NAME = "vertical_attention_reconstruction"
CASES = {
    "default": {},
    "noskip": {"skip": False},
    "branch": {"source": "branch"},
    "l2": {"norm": "l2"},
    "nonorm": {"norm": "none"},
}


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    vectors = tensors("vertical_attention")
    eps = float(vectors["eps"])
    stream = build(NAME, width=8, blocks=4, eps=eps, **CASES[case]).double()
    for read, logits in enumerate(stream.logits):
        load(logits, vectors[f"a_{read}"])
    branches = [
        lambda h, a=a, b=b: torch.tanh(rms_norm(h, None, eps) @ a) @ b
        for a, b in zip(vectors["A"], vectors["Bm"], strict=True)
    ]
    record = run(stream, vectors["x"], branches)
    close(record.out, vectors[f"{case}_out"])
    reads = torch.stack(record.reads[::2])
    recorded = vectors[f"{case}_reads"]
    close(torch.cat([reads, record.out[None]])[: len(recorded)], recorded)
    (record.out * vectors["cot"]).sum().backward()
    close(vectors["x"].grad, vectors[f"{case}_grad_x"])


def test_the_name_says_what_it_is():
    stream = build(NAME, width=4, blocks=2)
    assert type(stream).__name__ == "VerticalAttentionReconstruction"
    assert not stream.identity_at_start


def test_weights_are_static_but_for_the_norm():
    """Without a norm every token mixes alike, in convex rows; with one, the weight is p_j / rms(h_j)."""
    torch.manual_seed(0)
    outputs = list(torch.randn(7, 3, 6).double())
    matrix = build(NAME, width=6, blocks=3, norm="none").double().mixing_matrix(outputs[0], outputs[1:])
    assert torch.equal(matrix, matrix[..., :1].expand_as(matrix))
    matrix = build(NAME, width=6, blocks=3).double().mixing_matrix(outputs[0], outputs[1:])
    close(matrix[0, 0], outputs[0].square().mean(-1).add(1e-6).rsqrt())


def test_start_favours_the_newest_if_asked():
    assert [x[-1].item() for x in build(NAME, width=4, blocks=3, start="last").logits] == [1.0] * 3
    assert not any(logits.any() for logits in build(NAME, width=4, blocks=3).logits)


def test_parameter_counts():
    for source, count in (("block", 78), ("branch", 91)):
        stream = build(NAME, width=4, blocks=12, source=source)
        assert sum(p.numel() for p in stream.parameters()) == count == stream.cost().parameters


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"norm": "l1"}, "norm must be one of 'rms', 'l2', 'none'; got 'l1'"),
        ({"source": "x"}, "source must be one of 'block', 'branch'; got 'x'"),
        ({"start": "x"}, "start must be one of 'uniform', 'last'; got 'x'"),
        ({"eps": -1.0}, "eps must be at least 0; got -1"),
    ],
)
def test_bad_switches(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(NAME, width=4, blocks=2, **options)
