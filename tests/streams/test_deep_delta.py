"""Deep Delta Learning as a stream: golden vectors, both forms of CC, caches, counts, and its controls."""

import pytest
import torch
import torch.nn.functional as F
from sublayers import attention, close, load, rms_norm, swiglu, tensors

from t2lib.cache import Cache
from t2lib.decoder import Decoder
from t2lib.streams import build, cost
from t2lib.streams.compressors import ChannelConv, ChannelMix, EmbeddingConv, TokenConv, kernel_of, mixing_of
from t2lib.streams.mixing import mix
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
UPDATES = {
    "update_code_dv1": {},
    "update_code_dv1_gate2": {"gate": "two_layer", "gate_hidden": 5},
    "update_code_dv4": {"value_channels": 4},
    "update_code_dv4_gate2": {"value_channels": 4, "gate": "two_layer", "gate_hidden": 5},
    "update_paper_dv1": PAPER,
    "update_paper_dv4": {"value_channels": 4, "value_bias": True, **PAPER},
    "write_only_dv1": {"erase": False, **PAPER},
    "write_only_dv4": {"value_channels": 4, "erase": False, **PAPER},
}


def named(vectors, prefix="par__"):
    return {key.removeprefix(prefix): x for key, x in vectors.items() if key.startswith(prefix)}


def load_heads(heads, recorded):
    """Recorded heads, beta or beta_in and beta_out, into ours; returns (recorded name, our parameter)."""
    pairs = {"v_proj.weight": heads.value.weight}
    if heads.value.bias is not None:
        pairs["v_proj.bias"] = heads.value.bias
    if heads.gate_in is None:
        pairs |= {"beta.weight": heads.gate.weight, "beta.bias": heads.gate.bias}
    else:
        pairs |= {"beta_in.weight": heads.gate_in.weight}
        pairs |= {"beta_out.weight": heads.gate.weight, "beta_out.bias": heads.gate.bias}
    return [(name, load(parameter, recorded[name])) for name, parameter in pairs.items()]


def load_compressor(compressor, recorded):
    kernel = recorded.get("weight", recorded.get("shortconv.weight"))
    name = "weight" if "weight" in recorded else "shortconv.weight"
    return [(name, load(compressor.kernel, kernel)), ("read", load(compressor.pool, recorded["read"]))]


@pytest.mark.parametrize("case", UPDATES)
def test_golden_updates_and_gradients(case):
    """One sublayer from a given state, whose compressed read is given apart where it is."""
    vectors = tensors(f"ddl_{case}")
    stream = build("deep_delta", width=8, blocks=1, **UPDATES[case]).double()
    recorded = named(vectors)
    pairs = load_heads(stream.heads[0], recorded)
    x, direction, context = vectors["in__x"], vectors["in__k_in"], vectors["in__context"]
    content = stream.start(torch.zeros(1, 5, 8).double()).content
    given = vectors.get("in__v_in", x if x.ndim == 3 else None)
    content = content._replace(X=x if x.ndim == 4 else x[..., None], read=given)
    after = stream._write(content, 0, direction, context).X
    after = after if x.ndim == 4 else after[..., 0]
    close(after, vectors["out"])
    (after * vectors["cotangent"]).sum().backward()
    for name in ("x", "k_in", "v_in", "context"):
        if f"grad__{name}" in vectors:
            close(vectors[f"in__{name}"].grad, vectors[f"grad__{name}"])
    for name, parameter in pairs:
        close(parameter.grad, vectors[f"grad__{name}"])


@pytest.mark.parametrize("case", ["compress_cc", "compress_tc", "expand_ec"])
def test_golden_compressors(case):
    vectors = tensors(f"ddl_{case}")
    recorded = named(vectors)
    if case == "expand_ec":
        module = EmbeddingConv(8, 4, 4).double()
        pairs = [("conv.weight", load(module.kernel, recorded["conv.weight"][:, 0]))]
    else:
        module = (ChannelConv(8, 4) if case == "compress_cc" else TokenConv(8, 4, 4)).double()
        pairs = load_compressor(module, recorded)
    out = module(vectors["in__x"], Pass(), "module")
    close(out, vectors["out"])
    (out * vectors["cotangent"]).sum().backward()
    close(vectors["in__x"].grad, vectors["grad__x"])
    for name, parameter in pairs:
        close(parameter.grad, vectors[f"grad__{name}"].reshape(parameter.shape))
    if case == "compress_cc":
        close(mixing_of(module.kernel, module.pool), vectors["w_eff"])


@pytest.mark.parametrize("rewind", [False, True])
@pytest.mark.parametrize("case", STACKS)
def test_golden_stacks_and_gradients(case, rewind):
    vectors = tensors(f"ddl_stack_{case}_L4")
    recorded = named(vectors)
    stream = build("deep_delta", width=8, blocks=4, rewind=rewind, **STACKS[case]).double()
    pairs, branches, norms = [], [], []
    for block in range(4):
        prefix = f"transformer.h.{block}."
        w = named(recorded, prefix)
        for place, name in enumerate(("ddl_attn.", "ddl_mlp.")):
            heads = load_heads(stream.heads[2 * block + place], named(w, name))
            pairs += [(prefix + name + part, parameter) for part, parameter in heads]
        if stream.compressors:
            found = load_compressor(stream.compressors[block], named(w, "compress."))
            pairs += [(prefix + "compress." + part, parameter) for part, parameter in found]

        def attend(c, w=w):
            q, k, v = (F.linear(c, w[f"attn.c_{way}.weight"]) for way in "qkv")
            gains = (w["attn.q_rms.weight"], w["attn.k_rms.weight"])
            return attention(q, k, v, w["attn.c_proj.weight"], heads=2, rope=True, head_norms=gains)

        def mlp(c, w=w):
            return swiglu(c, w["mlp.c_fc1.weight"], w["mlp.c_fc2.weight"], w["mlp.c_proj.weight"])

        branches += [attend, mlp]
        norms += [lambda u, w=w, n=n: rms_norm(u, w[f"ln_{n}.weight"], 1e-5) for n in (1, 2)]
    if stream.compressors:
        found = load_compressor(stream.compressors[-1], named(recorded, "readout."))
        pairs += [("readout." + part, parameter) for part, parameter in found]
    if stream.expands:
        kernel = load(stream.expander.kernel, recorded["input_embed.conv.weight"][:, 0])
        pairs.append(("input_embed.conv.weight", kernel))
    out = rms_norm(run(stream, vectors["in__x_emb"], branches, norms).out, recorded["ln_f.weight"], 1e-5)
    close(out, vectors["out"])
    (out * vectors["cotangent"]).sum().backward()
    close(vectors["in__x_emb"].grad, vectors["grad__x_emb"])
    for name, parameter in pairs:
        close(parameter.grad, vectors[f"grad__{name}"].reshape(parameter.shape))
    for name in ("transformer.h.0.ln_1.weight", "transformer.h.3.mlp.c_proj.weight", "ln_f.weight"):
        close(recorded[name].grad, vectors[f"grad__{name}"])
    assert {name for name, _ in pairs} == set(recorded) - {
        name for name in recorded if ".attn." in name or ".mlp." in name or "ln_" in name
    }


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


@pytest.mark.parametrize(("blocks", "width", "extra"), [
    (12, 768, {"dv1": 36_912, "tc": 252_076, "tc_ec": 264_364, "cc": 132_268, "cc_ec": 144_556}),
    (24, 1024, {"dv1": 98_400, "tc": 655_700, "tc_ec": 672_084, "cc": 348_500, "cc_ec": 364_884}),
])  # fmt: skip
def test_parameters_of_the_published_models(blocks, width, extra):
    for case, count in extra.items():
        stream = build("deep_delta", width=width, blocks=blocks, **STACKS[case])
        assert sum(p.numel() for p in stream.parameters()) == stream.cost().parameters == count
    two = build("deep_delta", width=width, blocks=blocks, gate="two_layer")
    assert two.cost().parameters == extra["dv1"] + 2 * blocks * (128 * width + 128 + 1 - width - 1)


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


MIXED = [
    {},
    {"value_channels": 3},
    {"value_channels": 3, "compressor": "cc_paper"},
    {"value_channels": 2, "erase": False},
    {"guard": "kernel", **PAPER},
    {"value_channels": 2, "shared": "sublayer", "gate": "two_layer"},
]


@pytest.mark.parametrize("options", MIXED)
def test_mixing_matrix_is_a_product_of_projections(options):
    torch.manual_seed(0)
    stream = build("deep_delta", width=5, blocks=2, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 5).double()
    norms = [lambda u: rms_norm(u, None, 1e-5)] * 4
    record = run(stream, x, [lambda c, a=a: torch.sin(a * c.roll(1, -1)) for a in range(1, 5)], norms)
    matrix = stream.mixing_matrix(x, record.branches, record.normed)
    assert matrix.shape == (5, 5, 2, 3, 5, 5)
    close(mix(matrix, torch.stack([x, *record.branches])), torch.stack([*record.reads, record.out]))
    if options == {}:
        # The second reader sees the embedding through I - β k kᵀ: d - 1 eigenvalues of one, one of 1 - β.
        spectrum = torch.linalg.eigvalsh(matrix[1, 0])
        heads = stream.heads[0]
        gate = 1 - heads.beta(record.normed[0])
        want = torch.cat([torch.ones(2, 3, 4).double(), gate[..., None]], -1).sort(-1).values
        close(spectrum, want, 1e-8)


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


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2), (3, 4, 5, 6, 7), (5,)])
@pytest.mark.parametrize("options", CACHED)
def test_any_cut_of_the_text_gives_the_same_result(options, cuts):
    """Prompts shorter than the kernel included."""
    torch.manual_seed(1)
    stream = build("deep_delta", width=4, blocks=2, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 8, 4).double()
    cache = Cache(stream)
    parts = [walk(stream, piece, cache) for piece in x.tensor_split(cuts, 1)]
    close(torch.cat(parts, 1), walk(stream, x), 1e-12)
    numbers = sum(x[0].numel() for store in cache.stores.values() for x in store.tensors)
    assert numbers == stream.cost().cache


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
    stream = build("deep_delta", width=8, blocks=2)
    state = stream.start(torch.zeros(1, 2, 8))
    with pytest.raises(ValueError, match="normed must be the normalised read of sublayer 0; got None"):
        stream.write(state, 0, torch.zeros(1, 2, 8))
