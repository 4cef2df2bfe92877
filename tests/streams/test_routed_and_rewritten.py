"""What the designs with ways, softmax reads and rewrites have in common: states, dtypes, the decoder."""

import io

import pytest
import torch
import torch.nn.functional as F
from sublayers import close

from t2lib.decoder import Decoder
from t2lib.streams import build
from t2lib.streams.mixing import mix
from t2lib.streams.stream import every_way, run

VARIANTS = {
    "dca": ("deep_cross_attention", {}),
    "dca window 1": ("deep_cross_attention", {"window": 1, "gate": "half"}),
    "dca v1 one way": ("deep_cross_attention", {"version": "v1", "multiway": False}),
    "muddformer": ("muddformer", {}),
    "muddformer prepost": ("muddformer", {"variant": "prepost_paper"}),
    "attnres": ("attention_residuals", {}),
    "attnres block 3 two-phase": ("attention_residuals", {"block_size": 3, "two_phase": True}),
    "attnres input query": ("attention_residuals", {"block_size": 2, "input_query": True}),
    "ddl": ("deep_delta", {}),
    "ddl cc ec": ("deep_delta", {"value_channels": 3, "expand": "convolution"}),
    "ddl tc": ("deep_delta", {"value_channels": 2, "compressor": "tc", "shared": "sublayer"}),
    "ddl write-only": ("deep_delta", {"value_channels": 2, "erase": False, "value_head": "linear"}),
}
everyone = pytest.mark.parametrize("variant", VARIANTS)


def built(variant, width=6, blocks=3, dtype=torch.float64, spread=0.5):
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    stream = build(name, width=width, blocks=blocks, **options).to(dtype)
    with torch.no_grad():
        for parameter in stream.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return stream


def toy(stream):
    """Sines of whatever is read, each behind a norm."""
    generator = torch.Generator().manual_seed(1)
    shape = (stream.width, stream.width)

    def branch(matrix):
        return lambda normed: torch.sin(normed @ matrix.to(normed.dtype))

    def norm(read):
        x = sum(read.values()) if isinstance(read, dict) else read
        return F.rms_norm(x, x.shape[-1:], None, 1e-5)

    branches = [branch(torch.randn(shape, generator=generator)) for _ in range(stream.sublayers)]
    return branches, [norm] * stream.sublayers


def embedding(stream, dtype=torch.float64, leading=(2, 3)):
    return torch.randn(*leading, stream.width, generator=torch.Generator().manual_seed(5), dtype=dtype)


def leaves(x):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(x) if isinstance(leaf, torch.Tensor)]


@everyone
def test_a_state_is_never_changed(variant):
    stream = built(variant)
    (branches, norms), state = toy(stream), stream.start(embedding(stream))
    for i, (branch, norm) in enumerate(zip(branches, norms, strict=True)):
        before = [(leaf, leaf.clone()) for leaf in leaves(state.content)]
        read = stream.read(state, i)
        normed = norm(read)
        y = branch(normed)
        first = stream.write(state, i, y, normed)
        stream.write(state, i, 3 * y, normed)
        stream.level(state)
        for a, b in zip(leaves(stream.read(state, i)), leaves(read), strict=True):
            assert torch.equal(a, b)
        again = stream.write(state, i, y, normed)
        for a, b in zip(leaves(again.content), leaves(first.content), strict=True):
            assert torch.equal(a, b)
        assert all(torch.equal(leaf, value) for leaf, value in before)
        state = first
    assert torch.equal(stream.finish(state), stream.level(state))


@everyone
@pytest.mark.parametrize("leading", [(4,), (2, 1, 3)])
def test_any_leading_axes_do(variant, leading):
    stream = built(variant)
    x = embedding(stream, leading=leading)
    out = run(stream, x, *toy(stream)).out
    rows = x.reshape(-1, *x.shape[-2:])
    close(
        out.reshape(rows.shape), torch.cat([run(stream, row[None], *toy(stream)).out for row in rows]), 1e-12
    )


@everyone
def test_gradients_agree_with_finite_differences(variant):
    stream = built(variant, width=3, blocks=2)
    x = embedding(stream, leading=(1, 2)).requires_grad_()
    parameters = dict(stream.named_parameters())

    class Walk(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stream = stream

        def forward(self, x):
            return run(self.stream, x, *toy(self.stream)).out

    def walk(x, *values):
        named = {f"stream.{name}": value for name, value in zip(parameters, values, strict=True)}
        return torch.func.functional_call(Walk(), named, (x,))

    values = [parameter.detach().clone().requires_grad_() for parameter in parameters.values()]
    torch.autograd.gradcheck(walk, (x, *values), fast_mode=True)


@everyone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes_stay_near_float64(variant, dtype):
    # A deep toy of rewrites doubles any difference at every sublayer: rounding its parameters to bfloat16
    # alone moves six of them by half.
    blocks = 3 if dtype == torch.float32 else 1 if variant.startswith("ddl") else 2
    wide, narrow = (built(variant, blocks=blocks, spread=0.1).to(kind) for kind in (torch.float64, dtype))
    x = embedding(wide)
    want, got = run(wide, x, *toy(wide)).out, run(narrow, x.to(dtype), *toy(narrow)).out
    assert got.dtype == dtype
    error = (got.double() - want).abs().max() / want.abs().max()
    assert error < (1e-5 if dtype == torch.float32 else 0.1)


def decoder(variant, **shape):
    name, options = VARIANTS[variant]
    torch.manual_seed(0)
    shape = {"blocks": 3, "width": 16, "heads": 2, "hidden": 24, **shape}
    return Decoder(stream=name, stream_options=options, **shape)


TOKENS = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(3))


def loss_of(model):
    return F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1).float(), TOKENS[:, 1:].flatten())


@everyone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_decoder_trains_saves_and_loads(variant, dtype):
    model = decoder(variant).to(dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        optimiser.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = decoder(variant).to(dtype)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(TOKENS), model(TOKENS))


@everyone
def test_the_decoder_records_its_levels_and_its_mixing_matrix(variant):
    model = decoder(variant).double()
    levels = model.hidden_states(TOKENS, unit="sublayer")
    assert levels.shape == (7, 2, 9, 16)
    close(model.unembed(levels[-1]), model(TOKENS), 1e-13)
    assert model.hidden_states(TOKENS).shape == (4, 2, 9, 16)
    assert model.branches(TOKENS).shape == (6, 2, 9, 16)
    if model.stream.mixing == "mixes tokens":
        return
    seen = model.record(TOKENS)
    sources = torch.stack([seen.embedding, *seen.branches])
    matrices = model.mixing_matrix(TOKENS)
    for way, matrix in matrices.items() if isinstance(matrices, dict) else [("x", matrices)]:
        close(mix(matrix, sources), torch.stack([every_way(read, way) for read in [*seen.reads, seen.out]]))


@pytest.mark.parametrize(
    "variant", ["dca", "muddformer prepost", "attnres block 3 two-phase", "ddl cc ec", "ddl tc"]
)
def test_a_walk_is_one_graph(variant):
    """Forward and backward through the whole depth, traced without a break."""
    # Every variant is traced from this one line, and the compiler counts them.
    torch._dynamo.reset()
    stream = built(variant, blocks=2, dtype=torch.float32)
    branches, norms = toy(stream)
    results = []
    traced = torch.compile(lambda x: run(stream, x, branches, norms).out, fullgraph=True, backend="aot_eager")
    for walk in (lambda x: run(stream, x, branches, norms).out, traced):
        stream.zero_grad()
        x = embedding(stream, torch.float32).requires_grad_()
        out = walk(x)
        out.square().sum().backward()
        parameters = [p.grad for p in stream.parameters() if p.grad is not None]
        results.append((out.detach(), x.grad, *parameters))
    for plain, compiled in zip(*results, strict=True):
        assert (plain - compiled).abs().max() <= 1e-4 * max(1.0, float(plain.abs().max()))
