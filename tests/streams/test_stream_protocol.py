"""What all streams keep: order, ownership, shapes, immutability, and the law of the mixing matrix."""

import re
import subprocess
import sys

import pytest
import torch
from sublayers import close
from variants import VARIANTS, built, toy

from t2lib.streams import STREAMS, build, options_of
from t2lib.streams.mixing import mix, mixing_matrix
from t2lib.streams.stream import run

everyone = pytest.mark.parametrize("variant", VARIANTS)


def embedding(stream, dtype=torch.float64, leading=(2, 3)):
    return torch.randn(*leading, stream.width, generator=torch.Generator().manual_seed(5), dtype=dtype)


def same(left, right):
    """Two contents, tensor by tensor: the very same ones, with the same values."""
    flat = [torch.utils._pytree.tree_leaves(content) for content in (left, right)]
    return len(flat[0]) == len(flat[1]) and all(a is b for a, b in zip(*flat, strict=True))


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
def test_mixing_matrix_times_outputs_is_what_was_read(variant):
    stream = built(variant)
    x = embedding(stream)
    record = run(stream, x, toy(stream))
    matrix = stream.mixing_matrix(x, record.branches, record.normed)
    extra = {"number": 0, "channel": 1, "matrix": 2}[stream.mixing]
    assert matrix.shape == (7, 7, 2, 3, *(6,) * extra)
    close(mix(matrix, torch.stack([x, *record.branches])), torch.stack([*record.reads, record.out]))
    above = torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert not matrix[above].any()


@everyone
def test_a_state_is_never_changed(variant):
    """Reading twice and writing twice from one state gives the same, and leaves its tensors as they were."""
    stream = built(variant)
    state, branches = stream.start(embedding(stream)), toy(stream)
    for i, branch in enumerate(branches):
        leaves = torch.utils._pytree.tree_leaves(state.content)
        before = [(leaf, leaf.clone()) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        read = stream.read(state, i)
        y = branch(read)
        first = stream.write(state, i, y)
        stream.write(state, i, 3 * y)
        stream.level(state)
        assert torch.equal(stream.level(stream.write(state, i, y)), stream.level(first))
        assert torch.equal(stream.read(state, i), read)
        assert all(torch.equal(leaf, value) for leaf, value in before)
        state = first


@everyone
@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), (2, 1, 3)])
def test_tokens_do_not_meet_and_any_leading_axes_do(variant, shape):
    stream = built(variant)
    x = embedding(stream, leading=shape)
    out = run(stream, x, toy(stream)).out
    assert out.shape == x.shape
    rows = [run(stream, row[None], toy(stream)).out for row in x.reshape(-1, 6)]
    close(out.reshape(-1, 6), torch.cat(rows), 1e-12)


@everyone
def test_gradients_agree_with_finite_differences(variant):
    stream = built(variant, width=3, blocks=2)
    x = embedding(stream, leading=(1, 2)).requires_grad_()
    parameters = tuple(stream.parameters())
    # The parameters are changed in place between two calls, so the stream need not be told of them.
    torch.autograd.gradcheck(lambda x, *_: run(stream, x, toy(stream)).out, (x, *parameters), fast_mode=True)


@everyone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes_stay_near_float64(variant, dtype):
    """The same rounded numbers in both, and branches that do not blow differences up."""
    narrow, wide = built(variant, spread=0.1).to(dtype), built(variant, spread=0.1).to(dtype).double()
    x = embedding(wide).to(dtype)
    got, want = (
        run(s, x.to(kind), toy(s, scale=0.2)).out for s, kind in ((narrow, dtype), (wide, torch.float64))
    )
    assert got.dtype == dtype
    error = (got.double() - want).abs().max() / want.abs().max()
    assert error < (2e-6 if dtype == torch.float32 else 0.03)


def refused(error, sentence, call):
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        call()
    assert "\n" not in str(caught.value)


@everyone
def test_what_is_refused_leaves_the_state_as_it_was(variant):
    stream, other = built(variant), built(variant)
    x = embedding(stream)
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
    refused(ValueError, "state must come from this", lambda: other.write(state, 0, y))
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
    refused(ValueError, "all 6 sublayers written before finish; got 0", lambda: stream.finish(state))
    assert same(state.content, content)
    for i in range(6):
        state = stream.write(state, i, y)
    refused(ValueError, "takes finish; got i=6", lambda: stream.read(state, 6))
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
    refused(ValueError, "branches must be 4, one a sublayer; got 3", lambda: run(stream, x, toy(stream)[:3]))
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
