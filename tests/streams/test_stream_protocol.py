"""What all streams keep: order, ownership, shapes, immutability, gradients."""

import re
import subprocess
import sys

import pytest
import torch
from sublayers import close

from t2lib.streams import STREAMS, build, options_of
from t2lib.streams._variants import VARIANTS, built, embedding, toy
from t2lib.streams.mixing import mixing_matrix
from t2lib.streams.stream import Stream, run
from t2lib.token_pass import Pass

everyone = pytest.mark.parametrize("variant", VARIANTS)


def leaves(content):
    """The tensors of a content, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(content) if isinstance(x, torch.Tensor)]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(leaves(left), leaves(right), strict=True))


def test_names_need_no_torch():
    """Seeing which designs there are does not load torch."""
    code = "import sys, t2lib.streams as s; print(len(s.STREAMS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(STREAMS)), "False"]


def test_every_design_builds_with_its_defaults():
    for name in STREAMS:
        stream = build(name, width=8, blocks=4)
        assert type(stream).__name__ == STREAMS[name].cls
        assert (stream.width, stream.blocks, stream.sublayers) == (8, 4, 8)


def test_unknown_names_and_options_list_the_known_ones():
    with pytest.raises(ValueError, match=r"stream must be one of 'prenorm', .*'deep_delta'; got 'prenom'"):
        build("prenom", width=8, blocks=2)
    with pytest.raises(
        ValueError, match="options of stream 'denseformer' are 'dilation', 'period'; got 'stride'"
    ):
        build("denseformer", width=8, blocks=2, stride=2)
    with pytest.raises(ValueError, match="options of stream 'prenorm' are none; got 'stride'"):
        build("prenorm", width=8, blocks=2, stride=2)
    assert options_of("denseformer") == {"dilation": 1, "period": 1}


@everyone
def test_a_mixing_matrix_has_the_shape_that_the_stream_names(variant):
    """And a stream that mixes tokens says that it has none."""
    stream = built(variant, blocks=VARIANTS[variant].blocks)
    x = embedding(stream)
    y = [x] * stream.sublayers
    if stream.mixing == "mixes tokens":
        with pytest.raises(ValueError, match="it mixes tokens"):
            mixing_matrix(stream, x, y, y)
        return
    matrices = stream.mixing_matrix(x, y, y)
    extra, readers = {"number": 0, "channel": 1, "matrix": 2}[stream.mixing], stream.sublayers + 1
    for matrix in matrices.values() if isinstance(matrices, dict) else [matrices]:
        assert matrix.shape == (readers, readers, 2, 3, *(6,) * extra)


# With rewind a state can be written once only, as its docstring says.
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if not variant.endswith("rewind")])
def test_a_state_is_never_changed(variant):
    """Reading twice and writing twice from one state gives the same, and leaves its tensors as they were."""
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
        assert equal(stream.read(state, i), read)
        assert equal(stream.write(state, i, y, normed).content, first.content)
        assert all(torch.equal(leaf, value) for leaf, value in before)
        state = first
    assert torch.equal(stream.finish(state), stream.level(state))


@everyone
@pytest.mark.parametrize("shape", [(4,), (2, 1, 3)])
def test_any_leading_axes_do(variant, shape):
    """And texts do not meet, nor do tokens where the design does not say so."""
    stream = built(variant)
    x = embedding(stream, leading=shape)
    out = run(stream, x, *toy(stream)).out
    assert out.shape == x.shape
    apart = x.reshape(-1, shape[-1], 6) if stream.mixing == "mixes tokens" else x.reshape(-1, 1, 6)
    alone = torch.cat([run(stream, text[None], *toy(stream)).out for text in apart])
    close(out.reshape(alone.shape), alone, 1e-12)


# One of each kind: the operators below have been differentiated in every form by their own tests.
KINDS = (
    "elc_bert normalized", "denseformer 2x1", "vertical l2", "vertical branch", "window 3 owned", "hc",
    "hc no tanh", "mhc released", "dca", "dca k=1", "dca k=2 first+last", "mudd", "mudd prepost paper",
    "attnres block 3 two-phase", "attnres input query", "ddl", "ddl cc + ec", "ddl tc a sublayer",
    "ddl cc write-only",
)  # fmt: skip


@pytest.mark.parametrize("variant", KINDS)
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


def refused(error, sentence, call):
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        call()
    assert "\n" not in str(caught.value)


@everyone
def test_what_is_refused_leaves_the_state_as_it_was(variant):
    stream, other = built(variant), built(variant)
    x, count = embedding(stream), stream.sublayers
    state = stream.start(x)
    y = torch.randn_like(x)
    content = state.content
    refused(ValueError, "i must be 0, the next sublayer of the state; got 1", lambda: stream.read(state, 1))
    refused(
        ValueError, "i must be 0, the next sublayer of the state; got -1", lambda: stream.write(state, -1, y)
    )
    refused(TypeError, "i must be an integer, 0 for this state; got True", lambda: stream.read(state, True))
    refused(TypeError, "i must be an integer, 0 for this state; got 0.0", lambda: stream.read(state, 0.0))
    refused(ValueError, "state must come from this", lambda: other.read(state, 0))
    refused(ValueError, "state must come from this", lambda: other.write(state, 0, y, y))
    refused(ValueError, "state must come from this", lambda: other.finish(state))
    refused(TypeError, "state must be what start or write returned; got Tensor", lambda: stream.read(x, 0))
    refused(ValueError, "(2, 3, 6); got (1, 3, 6)", lambda: stream.write(state, 0, y[:1]))
    refused(TypeError, "torch.float64; got torch.float32", lambda: stream.write(state, 0, y.float()))
    refused(
        TypeError, "y must be a tensor of shape (2, 3, 6); got NoneType", lambda: stream.write(state, 0, None)
    )
    refused(
        ValueError, "device of the embedding, cpu; got meta", lambda: stream.write(state, 0, y.to("meta"))
    )
    refused(ValueError, f"all {count} sublayers written before finish; got 0", lambda: stream.finish(state))
    assert all(a is b for a, b in zip(leaves(state.content), leaves(content), strict=True))
    for i in range(count):
        state = stream.write(state, i, y, y)
    refused(ValueError, f"takes finish; got i={count}", lambda: stream.read(state, count))
    assert torch.equal(stream.finish(state), stream.level(state))


def test_embeddings_that_are_refused():
    stream = build("prenorm", width=6, blocks=2)
    refused(
        TypeError, "embedding must be a floating tensor (..., T, 6); got list", lambda: stream.start([1.0])
    )
    refused(TypeError, "got torch.int64", lambda: stream.start(torch.zeros(3, 6, dtype=torch.int64)))
    for shape in ((6,), (3, 5), (0, 6)):
        refused(ValueError, f"with nothing empty; got {shape}", lambda: stream.start(torch.zeros(shape)))  # noqa: B023
    for options in ({"width": 0, "blocks": 2}, {"width": 4, "blocks": 0}):
        with pytest.raises(ValueError, match="must be an integer of at least 1; got 0"):
            build("prenorm", **options)


def test_walks_that_are_refused():
    stream = build("prenorm", width=6, blocks=2)
    x = torch.zeros(3, 6)
    refused(
        ValueError, "branches must be 4, one a sublayer; got 3", lambda: run(stream, x, toy(stream)[0][:3])
    )
    refused(
        ValueError, "branch_outputs must be 4, one a sublayer; got 1", lambda: mixing_matrix(stream, x, [x])
    )
    refused(
        ValueError, "normed must be 4, one a sublayer; got 1", lambda: mixing_matrix(stream, x, [x] * 4, [x])
    )


def test_plain_stream_mixes_with_ones():
    stream = build("prenorm", width=6, blocks=3)
    x = torch.randn(2, 6)
    matrix = stream.mixing_matrix(x, [torch.randn(2, 6) for _ in range(6)])
    assert torch.equal(matrix, torch.ones(7, 7).tril()[..., None].expand(7, 7, 2))


def test_normed_is_checked_where_it_is_read():
    """Deep Delta alone reads it: the sentence names it, and the state can still be written."""
    stream = build("deep_delta", width=6, blocks=1)
    state = stream.start(torch.randn(2, 3, 6))
    y = torch.randn(2, 3, 6)
    takes = "normed must be the normalised read of sublayer 0, torch.float32 of shape (2, 3, 6); got "
    for bad, got in (
        (None, "None"),
        ({"x": y}, "dict"),
        (y.double(), "torch.float64 of shape (2, 3, 6)"),
        (y[:1, :1], "torch.float32 of shape (1, 1, 6)"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(takes + got)):
            stream.write(state, 0, y, bad)
    assert stream.write(state, 0, y, y).place == 1


def test_a_pass_over_other_tokens_is_refused():
    stream = build("prenorm", width=6, blocks=1)
    with pytest.raises(ValueError, match="a pass over the 5 tokens of the embedding; got one over 3"):
        stream.start(torch.randn(2, 5, 6), Pass(length=3))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("muddformer", {"norm_eps": -1.0}, "norm_eps must be a number of at least 0; got -1.0"),
        ("attention_residuals", {"norm_eps": "x"}, "norm_eps must be a finite real number; got 'x'"),
        (
            "deep_cross_attention",
            {"norm_eps": -1.0, "inner_norm": True},
            "norm_eps must be a number of at least 0; got -1.0",
        ),
        (
            "deep_cross_attention",
            {"version": "v1", "gate": "half"},
            "gate and inner_norm are read with version='v3' only; got version='v1'",
        ),
        ("deep_delta", {"eps": 0}, "eps must be a number above 0; got 0"),
        (
            "deep_delta",
            {"compressor": "tc"},
            "compressor must be 'cc' with value_channels=1, unused there; got 'tc'",
        ),
        (
            "deep_delta",
            {"expand_kernel": 4},
            "expand_kernel is read with expand='convolution' only; got 4",
        ),
        ("deep_delta", {"value_input": ""}, "value_input must be one of 'read', 'context'; got ''"),
    ],
)
def test_options_that_nothing_would_read(name, options, sentence):
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        build(name, width=6, blocks=2, **options)


def test_a_design_that_leaves_a_verb_out_cannot_be_made():
    """Where it is made, not in the middle of a pass."""

    class Unfinished(Stream):
        def _start(self, embedding, tokens):
            return embedding

    with pytest.raises(TypeError, match=r"abstract .*'?_finish'?.*'?_read'?.*'?_write'?"):
        Unfinished(6, 2)
