"""DeepCrossAttention: the gate that is dead at the prescribed start, and k-DCA."""

import pytest
import torch
import torch.nn.functional as F
from sublayers import close

from t2lib.decoder import Decoder
from t2lib.streams import build
from t2lib.streams.mixing import mix
from t2lib.streams.stream import every_way, run


def decoder(**options):
    torch.manual_seed(0)
    return Decoder(
        blocks=3, width=16, heads=2, hidden=24, stream="deep_cross_attention", stream_options=options
    ).double()


def test_first_and_last_is_not_the_plain_decoder_once_it_drops_outputs():
    stream = build("deep_cross_attention", width=8, blocks=4, window=2, selection="first_last")
    assert not stream.identity_at_start
    kept_all = build("deep_cross_attention", width=8, blocks=3, window=2, selection="first_last")
    assert kept_all.identity_at_start


def train(model, steps=5):
    tokens = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimiser.step()


def gates_of(model):
    return [grn.dynamic for grn in (*model.stream.grns, model.stream.grn_out)]


def test_the_gate_is_dead_at_the_prescribed_start():
    """ReLU'(0) = 0 and w = 0: w gets no gradient at all and stays at zero, while b learns."""
    model = decoder()
    train(model)
    assert all(not w.any() and not w.grad.any() for w in gates_of(model))
    assert all(grn.static.grad.abs().sum() > 0 for grn in model.stream.grns)


def test_half_the_derivative_at_the_tie_brings_the_gate_to_life():
    model = decoder(gate="half")
    train(model)
    assert all(w.abs().max() > 1e-3 for w in gates_of(model))


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 1}, {"window": 2, "selection": "first_last"}, {"inner_norm": True}, {"version": "v1"},
     {"version": "v2", "multiway": False, "window": 1}],
)  # fmt: skip
def test_mixing_matrix_says_what_was_read(options):
    torch.manual_seed(2)
    stream = build("deep_cross_attention", width=6, blocks=4, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    ys = [
        lambda read, a=a: torch.sin(a * sum(read.values()) if isinstance(read, dict) else read)
        for a in range(8)
    ]
    x = torch.randn(2, 3, 6).double()
    record = run(stream, x, ys)
    matrices = stream.mixing_matrix(x, record.branches)
    sources = torch.stack([x, *record.branches])
    ways = matrices if isinstance(matrices, dict) else {"x": matrices}
    assert list(ways) == (["x"] if options.get("multiway") is False else ["query", "key", "value"])
    for way, matrix in ways.items():
        got = mix(matrix, sources)
        close(got, torch.stack([every_way(read, way) for read in [*record.reads, record.out]]))
        # Attention and MLP of a finished block always count alike: they enter as one output.
        for reader in range(0, 9, 2):
            for block in range(reader // 2):
                close(matrix[reader, 2 * block + 1], matrix[reader, 2 * block + 2], 1e-12)
        # The MLP reads the attention output with weight one.
        for reader in range(1, 8, 2):
            close(matrix[reader, reader], torch.ones_like(matrix[reader, reader]), 1e-12)


@pytest.mark.parametrize(
    ("window", "counts"), [(None, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 3, 3]), (2, [1, 2, 3, 4, 4])]
)
def test_how_many_sources_a_window_keeps(window, counts):
    stream = build("deep_cross_attention", width=4, blocks=4, window=window)
    assert [grn.static.shape[1] for grn in (*stream.grns, stream.grn_out)] == counts
    state = stream.start(torch.zeros(1, 1, 4))
    for i in range(8):
        assert len(state.content.sources) == counts[i // 2]
        state = stream.write(state, i, torch.zeros(1, 1, 4))


def test_costs():
    L, d = 12, 768
    full = build("deep_cross_attention", width=d, blocks=L)
    assert full.cost().parameters == sum(p.numel() for p in full.parameters())
    assert full.cost().parameters == 3 * d * (L * (L + 1) // 2 + L) + (L + 2) * d
    assert full.cost().flops == 15 * d * L * (L + 1) // 2 + 5 * (L + 1) * d
    assert full.cost().live == L + 1
    assert full.cost().boundary == tuple(range(2, L + 1))
    window = build("deep_cross_attention", width=d, blocks=L, window=2).cost()
    assert window.live == 4
    assert window.boundary == (2, 3, *[4] * 9)
    assert window.flops <= 15 * 4 * d * L + 5 * 4 * d + L * d


def test_bad_input():
    def sentence(**options):
        with pytest.raises((TypeError, ValueError)) as caught:
            build("deep_cross_attention", width=8, blocks=3, **options)
        return str(caught.value)

    assert sentence(window=0) == "window must be an integer of at least 1; got 0."
    assert sentence(version="v4") == "version must be one of 'v1', 'v2', 'v3'; got 'v4'."
    assert "gate must be one of" in sentence(gate="tanh")
    assert "selection must be one of" in sentence(selection="middle")
    assert "multiway must be True or False" in sentence(multiway=1)
