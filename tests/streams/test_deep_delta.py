"""Deep Delta Learning as a stream: both forms of CC, padding and packing, counts, starts, its controls."""

import pytest
import torch
import torch.nn.functional as F
from sublayers import close, load, rms_norm

from t2lib.cache import Cache
from t2lib.decoder import Decoder
from t2lib.streams import build, cost
from t2lib.streams.compressors import ChannelConv, ChannelMix, kernel_of, mixing_of
from t2lib.streams.stream import run
from t2lib.token_pass import Pass

STACKS = {
    "dv1": {},
    "cc": {"value_channels": 4},
    "cc_ec": {"value_channels": 4, "expand": "convolution"},
    "tc": {"value_channels": 4, "compressor": "tc"},
    "tc_ec": {"value_channels": 4, "compressor": "tc", "expand": "convolution"},
}
PAPER = {"value_head": "linear"}


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8])
def test_both_forms_of_cc_are_one_function(channels):
    """c_ij = Σ_m p_m w_{i, j-m+⌊(k-1)/2⌋}, against a same-padded convolution written out, and back again."""
    torch.manual_seed(channels)
    released, paper = ChannelConv(3, channels).double(), ChannelMix(3, channels).double()
    torch.nn.init.normal_(released.kernel)
    torch.nn.init.uniform_(released.pool, 0.5, 1.5)
    load(paper.mixing, mixing_of(released.kernel, released.pool))
    X, left = torch.randn(2, 5, 3, channels).double(), (channels - 1) // 2
    padded = F.pad(X, (left, channels - 1 - left))
    convolved = torch.stack(
        [(padded[..., m : m + channels] * released.kernel).sum(-1) for m in range(channels)], -1
    )
    close(released(X, Pass(), "u"), convolved @ released.pool, 1e-13)
    close(paper(X, Pass(), "u"), convolved @ released.pool, 1e-13)
    uniform = torch.full((channels,), 1 / channels).double()
    close(kernel_of(mixing_of(released.kernel, uniform), uniform), released.kernel, 1e-12)


def test_the_map_at_a_uniform_pool_of_four():
    """4 c_i = R w_i, with a determinant of one and a condition number of about 7.2."""
    R = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]]).double()
    close(mixing_of(torch.eye(4).double(), torch.full((4,), 0.25).double()) * 4, R.mT, 1e-15)
    assert abs(torch.linalg.det(R) - 1) < 1e-12
    assert abs(torch.linalg.cond(R) - 7.172) < 1e-3
    with pytest.raises(ValueError, match="pool must make the map from kernel to mixing invertible"):
        kernel_of(torch.ones(3, 2), torch.zeros(2))


@pytest.mark.parametrize(("blocks", "width"), [(12, 768), (24, 1024)])
def test_a_two_layer_gate_at_the_published_sizes(blocks, width):
    """128 hidden units take (d + 1) 128 + 1 parameters a sublayer in place of d + 1."""
    with torch.device("meta"):
        one, two = (
            build("deep_delta", width=width, blocks=blocks, gate=gate) for gate in ("linear", "two_layer")
        )
    extra = 2 * blocks * (128 * (width + 1) + 1 - (width + 1))
    assert two.cost().parameters == one.cost().parameters + extra == sum(p.numel() for p in two.parameters())


@pytest.mark.parametrize("case", STACKS)
def test_costs(case):
    blocks, d = 12, 768
    d_v, tokens = STACKS[case].get("value_channels", 1), case.startswith("tc")
    found = build("deep_delta", width=d, blocks=blocks, **STACKS[case]).cost()
    closed = cost.deep_delta(d, blocks, channels=d_v, compressor=None if d_v == 1 else case[:2], kernel=4)
    expands = case.endswith("ec")
    # The closed forms leave out the last read and the convolution of the embedding.
    readout = (2 * d_v + 2 * 4 * d_v * tokens) * d * (d_v > 1)
    assert found.flops == closed.flops + readout + 2 * 4 * d_v * d * expands
    assert found.vectors == closed.vectors + (d_v + 1) * ((d_v > 1) + expands)
    assert found.parameters == closed.parameters + 4 * d * d_v * expands
    assert found.cache == closed.cache + 3 * d * expands
    assert (found.live, found.boundary) == (d_v, closed.boundary)


def test_the_second_reader_sees_the_embedding_through_a_projection():
    """I - β k kᵀ: d - 1 eigenvalues of one, one of 1 - β."""
    torch.manual_seed(0)
    stream = build("deep_delta", width=5, blocks=2).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 5).double()
    norms = [lambda u: rms_norm(u, None, 1e-5)] * 4
    record = run(stream, x, [lambda c, a=a: torch.sin(a * c.roll(1, -1)) for a in range(1, 5)], norms)
    matrix = stream.mixing_matrix(x, record.branches, record.normed)
    assert matrix.shape == (5, 5, 2, 3, 5, 5)
    gate = 1 - stream.heads[0].beta(record.normed[0])
    want = torch.cat([torch.ones(2, 3, 4).double(), gate[..., None]], -1).sort(-1).values
    close(torch.linalg.eigvalsh(matrix[1, 0]), want, 1e-8)


def test_streams_that_mix_tokens_have_no_matrix_of_one_token():
    stream = build("deep_delta", width=4, blocks=1, value_channels=2, compressor="tc")
    with pytest.raises(ValueError, match="mixes tokens"):
        stream.mixing_matrix(torch.zeros(1, 2, 4), torch.zeros(2, 1, 2, 4), torch.zeros(2, 1, 2, 4))


# Caches: the token states of TC and of the convolution of the embedding.
CACHED = [{}]
CACHED += [
    {"value_channels": 3, "compressor": compressor, "expand": expand}
    for compressor in ("cc", "tc")
    for expand in ("repeat", "convolution")
]
NORMS = [lambda u: rms_norm(u, None, 1e-5)] * 4
BRANCHES = [lambda c, a=a: torch.sin(a * c) for a in range(1, 5)]


def walk(stream, embedding, cache=None, **labels):
    tokens = Pass(cache, tuple(embedding.shape[:-2]), embedding.shape[-2], **labels)
    state = stream.start(embedding, tokens)
    for i, (norm, branch) in enumerate(zip(NORMS, BRANCHES, strict=True)):
        normed = norm(stream.read(state, i))
        state = stream.write(state, i, branch(normed), normed)
    out = stream.finish(state)
    tokens.finish(embedding)
    return out


@pytest.mark.parametrize("options", CACHED)
def test_left_padding_and_packing_equal_the_single_texts(options):
    torch.manual_seed(2)
    stream = build("deep_delta", width=4, blocks=2, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    first, second = torch.randn(1, 5, 4).double(), torch.randn(1, 3, 4).double()
    alone = [walk(stream, first), walk(stream, second)]
    packed = walk(stream, torch.cat([first, second], 1), documents=torch.tensor([[0] * 5 + [1] * 3]))
    close(packed, torch.cat(alone, 1), 1e-12)
    padded = torch.cat([first, torch.cat([torch.full((1, 2, 4), 7.0).double(), second], 1)])
    cache, valid = Cache(stream), torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    close(walk(stream, padded, cache, valid=valid)[1:, 2:], alone[1], 1e-12)
    # And on from there, one token at a time.
    extra = torch.randn(2, 2, 4).double()
    going = [walk(stream, step, cache) for step in extra.split(1, 1)]
    longer = walk(stream, torch.cat([second, extra[1:]], 1))
    close(torch.cat(going, 1)[1:], longer[:, 3:], 1e-12)


def test_a_pass_is_a_pass():
    with pytest.raises(TypeError, match=r"tokens must be a t2lib\.token_pass\.Pass, or None; got list"):
        build("deep_delta", width=4, blocks=2).start(torch.zeros(1, 1, 4), [])


def test_released_start_is_far_from_the_identity_and_ours_is_near():
    torch.manual_seed(0)
    x, far, near = torch.randn(2, 4, 256) * 0.02, {}, {}
    for case, options in STACKS.items():
        for initial, ratios in (("released", far), ("near_identity", near)):
            stream = build("deep_delta", width=256, blocks=2, initial=initial, **options)
            state = stream.start(x)
            ratios[case] = stream.level(state)
            for i, (norm, branch) in enumerate(zip(NORMS, BRANCHES, strict=True)):
                normed = norm(stream.read(state, i))
                before = state.content.X.norm()
                state = stream.write(state, i, branch(normed), normed)
                if i == 0:
                    growth = state.content.X.norm() / before
            if initial == "released":
                assert growth > 2
            else:
                assert growth < 1.1
    for level in near.values():
        # Compressors that return the mean of the channels, all of which are the embedding.
        close(level, x, 1e-5)
    assert (far["cc"] - x).abs().max() > 0.01


@pytest.mark.parametrize("case", STACKS)
def test_gate_and_value_start_as_released(case):
    torch.manual_seed(0)
    stream = build("deep_delta", width=64, blocks=3, gate_start=1.0, **STACKS[case])
    for heads in stream.heads:
        assert not heads.gate.bias.any()
        assert heads.value.bias.abs().max() <= 1 / 8
        assert 0.03 < heads.gate.weight.std() < 0.1
        beta = heads.beta(rms_norm(torch.randn(500, 64), None, 1e-5))
        assert (beta.detach().mean() - 1).abs() < 0.15
    for gate_start in (0.1, 1.9):
        gate = build("deep_delta", width=64, blocks=1, gate_start=gate_start).heads[0].gate
        assert abs(2 * float(gate.bias.detach().sigmoid()) - gate_start) < 1e-6


def test_write_only_differs_by_the_erase_alone():
    torch.manual_seed(0)
    both = [
        build("deep_delta", width=6, blocks=2, value_channels=2, erase=erase).double()
        for erase in (True, False)
    ]
    both[1].load_state_dict(both[0].state_dict())
    x, y = torch.randn(1, 3, 6).double(), torch.randn(1, 3, 6).double()
    states = [stream.write(stream.start(x), 0, y, x).content.X for stream in both]
    heads, k = both[0].heads[0], y / (y.square().sum(-1, keepdim=True) + 1e-10).sqrt()
    X = both[0].start(x).content.X
    erased = heads.beta(x)[..., None, None] * k[..., None] * (k[..., None, :] @ X)
    close(states[1] - states[0], erased, 1e-12)


def test_the_decoder_trains_with_and_without_rewind():
    tokens, losses = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(0)), []
    for rewind in (False, True):
        torch.manual_seed(0)
        options = {"value_channels": 2, "rewind": rewind}
        model = Decoder(
            blocks=2, width=16, heads=2, hidden=24, stream="deep_delta", stream_options=options
        ).double()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    assert losses[2] < losses[0]
    assert abs(losses[2] - losses[5]) < 1e-12


def test_bad_input():
    def sentence(**options):
        with pytest.raises((TypeError, ValueError)) as caught:
            build("deep_delta", width=8, blocks=2, **options)
        return str(caught.value)

    assert sentence(value_channels=0) == "value_channels must be an integer of at least 1; got 0."
    assert sentence(gate_start=0.0) == "gate_start must lie strictly between 0 and 2; got 0.0."
    assert sentence(gate_start=2) == "gate_start must lie strictly between 0 and 2; got 2."
    wrong = sentence(value_channels=4, kernel=3)
    assert wrong == "kernel of compressor='cc' must be value_channels=4; got 3."
    assert sentence(value_channels=4, compressor="tc", kernel=9) == "kernel must lie in 2 to 8; got 9."
    assert (
        sentence(value_channels=4, compressor="tc", kernel=1)
        == "kernel must be an integer of at least 2; got 1."
    )
    assert sentence(expand="convolution", expand_kernel=12) == "expand_kernel must lie in 2 to 8; got 12."
    assert "compressor must be one of 'cc', 'cc_paper', 'tc'" in sentence(compressor="dc")
    assert "value_head must be one of" in sentence(value_head="tanh")
    assert "guard must be one of 'eager', 'kernel'" in sentence(guard="none")
