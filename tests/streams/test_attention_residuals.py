"""Attention Residuals: golden vectors, the plain decoder at zero queries, convex weights."""

import pytest
import torch
from sublayers import close, load, tensors

from t2lib.decoder import Decoder
from t2lib.ops import depth_attention, depth_attention_partial
from t2lib.streams import build, cost
from t2lib.streams.mixing import mix
from t2lib.streams.stream import run

CASES = {"full": 1, "block4": 4, "block3": 3}
PHASES = [{}, {"two_phase": True}, {"two_phase": True, "schedule": 3}]


@pytest.fixture
def vectors():
    return tensors("attnres")


def branches(vectors):
    """y = tanh(RMS(h) A) B, with a norm of its own."""

    def branch(first, second):
        def forward(h):
            unit = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + vectors["eps"])
            return torch.tanh(unit @ first) @ second

        return forward

    return [branch(a, b) for a, b in zip(vectors["A"], vectors["Bm"], strict=True)]


def stream_of(vectors, **options):
    stream = build(
        "attention_residuals", width=8, blocks=4, norm_eps=float(vectors["eps"]), **options
    ).double()
    load(stream.pseudo_queries, vectors["W"])
    load(stream.gains, vectors["G"])
    return stream


@pytest.mark.parametrize("phases", PHASES, ids=["one phase", "two phases", "two phases by three"])
@pytest.mark.parametrize("case", CASES)
def test_golden_network_and_gradients(vectors, case, phases):
    stream = stream_of(vectors, block_size=CASES[case], **phases)
    record = run(stream, vectors["x"], branches(vectors))
    close(record.out, vectors[f"{case}_out"])
    close(torch.stack([*record.reads, record.out]), vectors[f"{case}_reads"])
    (record.out * vectors["cot"]).sum().backward()
    close(vectors["x"].grad, vectors[f"{case}_grad_x"])
    close(stream.pseudo_queries.grad, vectors[f"{case}_grad_W"])


@pytest.mark.parametrize("case", CASES)
def test_golden_softmax_weights(vectors, case):
    stream = stream_of(vectors, block_size=CASES[case])
    state = stream.start(vectors["x"])
    for i, branch in enumerate([*branches(vectors), None]):
        weights = stream.weights(state.content.sources, i).movedim(-1, 0)
        want = vectors[f"{case}_alpha"][i]
        close(weights, want[: len(weights)])
        assert not want[len(weights) :].any()
        if branch is not None:
            state = stream.write(state, i, branch(stream.read(state, i)))


def test_golden_intermediates_of_the_two_phases(vectors):
    """The recorded triple (o, m, l) is the read times its sum of exponentials: o/l, and m + log l."""
    stream = stream_of(vectors, block_size=4, two_phase=True)
    state = stream.start(vectors["x"])
    for i, branch in enumerate(branches(vectors)[:6]):
        state = stream.write(state, i, branch(stream.read(state, i)))
    content, place = state.content, 6
    recorded = {
        part: vectors[f"tp_l6_{part}"] for part in ("o1", "m1", "l1", "o2", "m2", "l2", "partial", "h")
    }
    close(content.live, recorded["partial"])
    close(content.phase.reads[place - 4], recorded["o1"] / recorded["l1"][..., None])
    close(content.phase.lses[place - 4], recorded["m1"] + recorded["l1"].log())
    partial, lse = depth_attention(
        [content.live],
        stream.pseudo_queries[place],
        gain=stream.gains[place],
        eps=stream.eps,
        return_lse=True,
    )
    close(partial, recorded["o2"] / recorded["l2"][..., None])
    close(lse, recorded["m2"] + recorded["l2"].log())
    close(stream.read(state, place), recorded["h"])


def test_zero_queries_give_the_mean_of_the_sources(vectors):
    """With eps in each norm the branches see the pre-norm directions up to about 1e-5."""
    for case, count in (("full", 9), ("block4", 3)):
        stream = build("attention_residuals", width=8, blocks=4, block_size=CASES[case]).double()
        stream.eps = float(vectors["eps"])
        out = run(stream, vectors["x"], branches(vectors)).out
        close(out, vectors[f"zeroq_{case}_out"])
        close(out * count, vectors["prenorm_out"], 1e-4)


@pytest.mark.parametrize("options", [{}, {"block_size": 3}, {"block_size": 4, "two_phase": True}])
def test_the_decoder_starts_as_the_plain_one_without_eps(options):
    torch.manual_seed(0)
    plain = Decoder(blocks=3, width=16, heads=2, hidden=24, norm_eps=1e-30).double()
    torch.manual_seed(0)
    mine = Decoder(
        blocks=3, width=16, heads=2, hidden=24, norm_eps=1e-30,
        stream="attention_residuals", stream_options={"norm_eps": 1e-30, **options},
    ).double()  # fmt: skip
    tokens = torch.randint(256, (2, 9))
    ours, theirs = mine(tokens), plain(tokens)
    close(ours, theirs, 1e-12)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    gradients = {name: weight.grad for name, weight in mine.named_parameters()}
    for name, weight in plain.named_parameters():
        close(gradients[name], weight.grad, 1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_two_phases_change_nothing(size):
    torch.manual_seed(1)
    one = build("attention_residuals", width=6, blocks=3, block_size=size).double()
    torch.nn.init.normal_(one.pseudo_queries)
    x, ys = torch.randn(2, 4, 6).double(), [lambda h, a=a: torch.sin(a * h) for a in range(1, 7)]
    want = run(one, x, ys)
    for schedule in (1, 2, 4, 6):
        two = build(
            "attention_residuals", width=6, blocks=3, block_size=size, two_phase=True, schedule=schedule
        ).double()
        two.load_state_dict(one.state_dict())
        got = run(two, x, ys)
        for a, b in zip([*got.reads, got.out], [*want.reads, want.out], strict=True):
            close(a, b, 1e-12)


def test_a_first_phase_serves_the_sublayers_of_its_schedule_only():
    stream = build("attention_residuals", width=6, blocks=3, two_phase=True, schedule=4)
    state = stream.start(torch.randn(1, 2, 6))
    assert state.content.phase.reads.shape == (4, 1, 2, 6)
    queries = depth_attention_partial(
        [torch.randn(1, 2, 6)], stream.pseudo_queries[:4], gains=stream.gains[:4]
    )
    assert queries[0].shape == (4, 1, 2, 6)


@pytest.mark.parametrize(
    "options", [{}, {"block_size": 3}, {"block_size": 3, "two_phase": True}, {"input_query": True}]
)
def test_mixing_matrix_is_convex_and_says_what_was_read(options):
    torch.manual_seed(2)
    stream = build("attention_residuals", width=6, blocks=3, **options).double()
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter)
    ys = [lambda h, a=a: torch.sin(a * h) for a in range(1, 7)]
    record = run(stream, torch.randn(2, 4, 6).double(), ys)
    x = record.reads[0]
    matrix = stream.mixing_matrix(x, record.branches)
    assert matrix.shape == (7, 7, 2, 4)
    close(mix(matrix, torch.stack([x, *record.branches])), torch.stack([*record.reads, record.out]))
    assert (matrix >= 0).all()
    size = stream.size
    for reader in range(7):
        # The outputs of one block share a weight; the weights of the embedding and the sums add to one.
        sums = [0, *range(1, reader + 1, size)]
        close(matrix[reader, sums].sum(0), torch.ones(2, 4).double(), 1e-12)
        for source in range(1, reader + 1):
            first = 1 + (source - 1) // size * size
            close(matrix[reader, source], matrix[reader, first], 1e-12)
        assert not matrix[reader, reader + 1 :].any()


def test_an_input_query_starts_as_none_and_then_matters():
    torch.manual_seed(3)
    plain = build("attention_residuals", width=6, blocks=2).double()
    torch.nn.init.normal_(plain.pseudo_queries)
    mine = build("attention_residuals", width=6, blocks=2, input_query=True).double()
    mine.load_state_dict(plain.state_dict(), strict=False)
    x, ys = torch.randn(1, 3, 6).double(), [torch.sin] * 4
    close(run(mine, x, ys).out, run(plain, x, ys).out, 1e-14)
    run(mine, x, ys).out.square().sum().backward()
    assert mine.projections.grad[1:].abs().sum() > 0
    torch.nn.init.normal_(mine.projections)
    assert (run(mine, x, ys).out - run(plain, x, ys).out).abs().max() > 1e-3


def test_costs():
    for blocks, width in ((4, 8), (12, 768)):
        full = build("attention_residuals", width=width, blocks=blocks).cost()
        closed, last = cost.attention_residuals(width, blocks), 2 * blocks + 1
        # The closed forms leave out the read of the output.
        assert full.flops == closed.flops + 6 * width * last
        assert full.vectors == closed.vectors + last + 1
        assert full.parameters == closed.parameters + 2 * width
        assert (full.live, full.cache, full.boundary) == (closed.live, 0, closed.boundary)
        for groups in (1, 2, 4, blocks):
            size = 2 * blocks // groups
            if size == 1 or 2 * blocks % groups:
                continue
            block = build(
                "attention_residuals", width=width, blocks=blocks, block_size=size, two_phase=True
            ).cost()
            closed = cost.block_attention_residuals(width, blocks, groups=groups)
            assert block.flops == closed.flops + 6 * width * (groups + 1)
            assert block.vectors == closed.vectors + groups + 2
            assert (block.live, block.boundary) == (closed.live, closed.boundary)
    stream = build("attention_residuals", width=768, blocks=12, block_size=3, two_phase=True)
    assert stream.cost().vectors - 10 == 172
    assert stream.cost().parameters == sum(p.numel() for p in stream.parameters()) == 2 * 25 * 768


def test_bad_input():
    def sentence(**options):
        with pytest.raises((TypeError, ValueError)) as caught:
            build("attention_residuals", width=8, blocks=3, **options)
        return str(caught.value)

    assert sentence(block_size=0) == "block_size must be an integer of at least 1; got 0."
    assert sentence(block_size=7) == "block_size must be at most 2 * blocks = 6, in sublayers; got 7."
    assert sentence(block_size=2.0) == "block_size must be an integer of at least 1; got 2.0."
    assert "schedule is read with two_phase=True only" in sentence(schedule=2)
    assert "two_phase must be False" in sentence(two_phase=True, input_query=True)
