"""The reconstruction of Vertical Attention: its name, its weights, all switches."""

import pytest
import torch
from sublayers import close

from t2lib.streams import build

NAME = "vertical_attention_reconstruction"


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


@pytest.mark.parametrize("options", [{"source": "branch"}, {"skip": False}])
def test_small_branches_beside_a_large_stream(options):
    """What the next read takes is A + F itself, not what is left of x + A + F once x is taken off again."""
    stream = build("vertical_attention_reconstruction", width=64, blocks=2, **options)
    generator = torch.Generator().manual_seed(0)
    x, a, f = torch.randn(3, 1, 3, 64, generator=generator).bfloat16()
    state = stream.start(x)
    for i, y in enumerate((a * 2.0**-10, f * 2.0**-10)):
        state = stream.write(state, i, y)
    assert torch.equal(state.content.sources[-1], a * 2.0**-10 + f * 2.0**-10)
