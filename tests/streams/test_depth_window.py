"""DepthWindow: the window, and both ways to enter."""

import pytest
import torch
from sublayers import close

from t2lib.ops import short_swa
from t2lib.streams import build
from t2lib.streams.stream import run


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("shared", [True, False])
def test_it_is_the_operator_on_its_own_levels(window, shared):
    """In a closed loop too: what block l reads is short_swa along depth over the levels up to l."""
    torch.manual_seed(0)
    options = {"window": window, "shared": shared, "enter": "replace"}
    stream = build("depth_window", width=6, blocks=3, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 6).double()
    record = run(stream, x, [lambda h, i=i: torch.sin(h + i) for i in range(6)])
    levels = torch.stack(record.levels[::2])
    for block in range(3):
        owner = 0 if shared else block
        q, k, v = (levels[: block + 1] @ weight[owner] for weight in (stream.query, stream.key, stream.value))
        z = short_swa(q, k, v, axis=0, window=window)[-1] @ stream.output[owner]
        close(record.reads[2 * block], z)


def test_add_starts_as_the_plain_stream_and_learns():
    torch.manual_seed(0)
    stream = build("depth_window", width=6, blocks=3).double()
    x = torch.randn(2, 6).double()
    record = run(stream, x, [torch.sin] * 6)
    close(record.out, x + sum(record.branches), 1e-14)
    record.out.square().sum().backward()
    assert stream.output.grad.any()
    assert not stream.value.grad.any()


def test_replace_starts_near_the_mean_of_the_window():
    stream = build("depth_window", width=6, blocks=3, window=2, enter="replace").double()
    torch.nn.init.zeros_(stream.query)
    x = torch.randn(2, 6).double()
    record = run(stream, x, [torch.sin] * 6)
    close(record.reads[2], (x + (x + record.branches[0] + record.branches[1])) / 2)


def test_window_bounds_what_is_kept():
    for window in (1, 2, 3):
        stream = build("depth_window", width=4, blocks=6, window=window)
        state = stream.start(torch.randn(1, 4))
        for i in range(12):
            assert len(state.content.below) <= window - 1
            state = stream.write(state, i, torch.randn(1, 4))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window": 0}, "window must be an integer of at least 1; got 0"),
        ({"window": 5}, "window must be at most 4, the levels of 3 blocks; got 5"),
        ({"enter": "concatenate"}, "enter must be one of 'add', 'replace'; got 'concatenate'"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build("depth_window", width=4, blocks=3, **options)
