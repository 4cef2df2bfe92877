"""DenseFormer: counts, start, what is kept."""

import pytest
import torch
from sublayers import load

from t2lib.streams import build


@pytest.mark.parametrize(("dilation", "period", "count"), [(1, 1, 1224), (4, 1, 324), (4, 5, 62)])
def test_published_parameter_counts(dilation, period, count):
    stream = build("denseformer", width=4, blocks=48, dilation=dilation, period=period)
    assert sum(p.numel() for p in stream.parameters()) == count == stream.cost().parameters


def test_the_period_is_that_of_the_paper():
    """4x5: after block 10 it reads X_2, X_6 and X_10, of which two are no multiples of the period."""
    stream = build("denseformer", width=4, blocks=10, dilation=4, period=5)
    assert set(stream.averages) == {"5", "10"}
    assert list(stream.sources(10)) == [2, 6, 10]
    assert list(stream.sources(5)) == [1, 5]


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (4, 5), (3, 2)])
def test_only_what_a_later_average_reaches_is_kept(dilation, period):
    stream = build("denseformer", width=2, blocks=10, dilation=dilation, period=period)
    state = stream.start(torch.randn(1, 2))
    for i in range(20):
        state = stream.write(state, i, torch.randn(1, 2))
        if i % 2:
            block = i // 2 + 1
            later = range(block + 1, 11)
            wanted = {
                j for n in later if n % period == 0 for j in range(block + 1) if (n - j) % dilation == 0
            }
            # The embedding is kept from the start, whether or not it is read.
            assert set(state.content.outputs) == wanted


def test_starts_as_the_plain_stream():
    stream = build("denseformer", width=4, blocks=4)
    outputs = [torch.zeros(3, 4) for _ in range(8)]
    assert torch.equal(stream.mixing_matrix(outputs[0], outputs)[..., 0], torch.ones(9, 9).tril())


def test_weights_of_any_sign_reach_the_read():
    stream = build("denseformer", width=4, blocks=2)
    load(stream.averages["1"], torch.tensor([-2.0, 0.5]))
    matrix = stream.mixing_matrix(torch.zeros(1, 4), [torch.zeros(1, 4)] * 4)[..., 0]
    # Block 1 wrote x + a + m; the average is -2 x + (x + a + m) / 2.
    assert matrix[2].tolist() == [-1.5, 0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("options", [{"dilation": 5}, {"period": 5}, {"dilation": 4, "period": 3}])
def test_averages_that_select_nothing(options):
    with pytest.raises(ValueError, match="must let an average reach an earlier output of the 4 blocks"):
        build("denseformer", width=4, blocks=4, **options)


@pytest.mark.parametrize("name", ["dilation", "period"])
def test_bad_counts(name):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1; got 0"):
        build("denseformer", width=4, blocks=4, **{name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an integer of at least 1; got 1.0"):
        build("denseformer", width=4, blocks=4, **{name: 1.0})
