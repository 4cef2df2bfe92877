"""Caches: any cut of the text gives the same logits; local ones do not grow; they copy, go back, reorder."""

import copy
import pickle

import numpy as np
import pytest
import torch
from mixer_decoders import VARIANTS, decoder, tokens

from t2lib.cache import Tail

STREAMS = {
    "prenorm": {},
    "muddformer": {},
    "deep_delta": {"value_channels": 2, "compressor": "tc", "expand": "convolution"},
}
everyone = pytest.mark.parametrize("variant", VARIANTS)
everywhere = pytest.mark.parametrize("stream", STREAMS)


def model_of(variant, stream="prenorm"):
    return decoder(variant, stream=stream, stream_options=STREAMS[stream])


def close(got, want, bar=1e-12):
    assert (got - want).abs().max() <= bar


def read(model, text, parts, **labels):
    """The logits of a text in parts, with the cache they leave."""
    cache, at, logits = model.cache(), 0, []
    for part in parts:
        piece = slice(at, at + part)
        logits.append(model(text[:, piece], cache=cache, **{k: x[:, piece] for k, x in labels.items()}))
        at += part
    assert at == text.shape[1]
    return torch.cat(logits, 1), cache


@everyone
@everywhere
@pytest.mark.parametrize("parts", [(14,), (1,) * 14, (5, *(1,) * 9), (3, 4, 7), (1, 9, 4)])
@torch.no_grad()
def test_any_cut_of_the_text(variant, stream, parts):
    model, text = model_of(variant, stream), tokens(2, 14)
    got, cache = read(model, text, parts)
    close(got, model(text))
    assert cache.length == 14


@everyone
@everywhere
@torch.no_grad()
def test_left_padding_and_packing_are_the_single_texts(variant, stream):
    """In one call and in parts, some of which begin or end inside padding or a document."""
    model, long, short = model_of(variant, stream), tokens(1, 11), tokens(1, 6, seed=2)
    alone = torch.cat([model(long), model(short)], 1)
    padded = torch.cat([long, torch.cat([torch.full((1, 5), 7), short], 1)])
    valid = torch.ones(2, 11, dtype=torch.bool)
    valid[1, :5] = False
    packed = torch.cat([long, short], 1)
    documents = torch.tensor([[3] * 11 + [4] * 6])
    for parts in ((11,), (2, 4, 1, 1, 3)):
        got, _ = read(model, padded, parts, valid=valid)
        close(torch.cat([got[:1], got[1:, 5:]], 1), alone)
    for parts in ((17,), (4, 9, 1, 1, 2), (11, 6)):
        close(read(model, packed, parts, documents=documents)[0], alone)


@torch.no_grad()
def test_decoding_goes_on_after_padding():
    """Without being told again: a token belongs to the document of the one before it."""
    model, text = model_of("canon ABCD"), tokens(1, 9)
    cache = model.cache()
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.int64), text[:, :6]], 1)
    model(padded, valid=torch.tensor([[False] * 4 + [True] * 6]), cache=cache)
    later = torch.cat([model(token, cache=cache) for token in text[:, 6:].split(1, 1)], 1)
    close(later, model(text)[:, 6:])


@everyone
@torch.no_grad()
def test_local_caches_do_not_grow(variant):
    """Bytes after 10 and after 40 tokens: full attention four times, all others once; and as stated."""
    model = model_of(variant, "deep_delta")
    short, long = (read(model, tokens(2, n), (n,))[1].sizes() for n in (10, 40))
    assert long.pop("global") == 4 * short.pop("global") == 2 * 2 * 40 * 2 * 16 * 8
    assert short == long
    # Token states of 2 blocks: 5 reads of 2 channels, 3 tokens each, and 3 tokens of the embedding.
    stream = 2 * (5 * 3 * 32 + 3 * 16) * 8
    mixer = {
        "short_conv": 2 * 2 * 3 * 16 * 8,
        "short_conv branch": 2 * 2 * 2 * 48 * 8,
        "canon ABCD": 2 * 2 * 3 * (16 + 48 + 16 + 48) * 8,
        "canon B without residual": 2 * 2 * 3 * 48 * 8,
    }
    assert long["convolution"] == stream + mixer.get(variant, 0)
    window = {
        "short_swa": 2 * 2 * 2 * 3 * 16 * 8,
        "short_swa grouped": 2 * 2 * 2 * 5 * 8 * 8,
        "short_swa chunk": 2 * 2 * 2 * 6 * 16 * 8,
        "short_swa branch": 2 * 2 * 3 * (16 + 48) * 8,
    }
    assert long.get("window", 0) == window.get(variant, 0)


@everyone
@everywhere
@torch.no_grad()
def test_clone_cut_reorder(variant, stream):
    model, text = model_of(variant, stream), tokens(2, 14)
    want = model(text)
    cache = model.cache(rollback=3)
    model(text[:, :9], cache=cache)
    other = cache.clone()
    cache.cut(6)
    assert (cache.length, other.length) == (6, 9)
    close(model(text[:, 6:], cache=cache), want[:, 6:])
    # The clone has not noticed; a row may go on twice.
    other.reorder([1, 0, 1])
    close(model(text[[1, 0, 1], 9:], cache=other), want[[1, 0, 1], 9:])


@torch.no_grad()
def test_cut_to_the_beginning_and_twice():
    model, text = model_of("short_swa"), tokens(2, 8)
    cache = model.cache(rollback=2)
    model(text[:, :2], cache=cache)
    cache.cut(0)
    close(model(text, cache=cache), model(text))
    # Nothing is needed of no tokens, however many there were.
    cache.cut(0)
    close(model(text, cache=cache), model(text))
    cache.cut(7)
    cache.cut(6)
    close(model(text[:, 6:], cache=cache), model(text)[:, 6:])


@torch.no_grad()
def test_cut_further_than_the_rollback():
    model, text = model_of("canon ABCD"), tokens(2, 14)
    cache = model.cache(rollback=2)
    model(text[:, :9], cache=cache)
    with pytest.raises(
        ValueError, match=r"3 entries that a convolution store needs.*rollback=2.*cutting 3 tokens; got 6"
    ):
        cache.cut(6)
    with pytest.raises(ValueError, match="length must be at most the 9 tokens of the cache; got 10"):
        cache.cut(10)
    close(model(text[:, 9:], cache=cache), model(text)[:, 9:])
    # Full attention alone can go back anywhere.
    plain = model_of("none")
    cache = plain.cache()
    plain(text, cache=cache)
    cache.cut(3)
    close(plain(text[:, 3:], cache=cache), plain(text)[:, 3:])


def refused(model, error, sentence, text, cache, **labels):
    before = cache.clone()
    with pytest.raises(error, match=sentence):
        model(text, cache=cache, **labels)
    assert (cache.length, cache.rows, cache.dtype) == (before.length, before.rows, before.dtype)
    for key, store in before.stores.items():
        for old, now in zip(store.tensors, cache.stores[key].tensors, strict=True):
            assert torch.equal(old, now)


@torch.no_grad()
def test_what_a_cache_refuses_leaves_it_as_it_was():
    model, other, text = model_of("canon ABCD"), model_of("canon ABCD"), tokens(2, 9)
    cache = model.cache()
    model(text, documents=torch.tensor([[1] * 9] * 2), cache=cache)
    refused(other, ValueError, r"cache must come from this Decoder's own cache\(\)", text, cache)
    refused(model, ValueError, r"batch of the cache, \(2,\); got \(3,\)", text[[0, 1, 0]], cache)
    refused(
        model, ValueError, "at most context=40 long, with the 9 of the cache; got 32", tokens(2, 32), cache
    )
    refused(model, ValueError, r"tokens must lie in 0\.\.30", text + 31, cache)
    zeros, ones = torch.zeros(2, 9, dtype=torch.int64), torch.ones(2, 9, dtype=torch.bool)
    refused(model, ValueError, "must not fall below those in the cache", text, cache, documents=zeros)
    refused(model, ValueError, "must not fall along a row", text, cache, documents=9 - zeros.cumsum(1) + text)
    refused(model, ValueError, "must be numbered from 0; got -1", text, cache, documents=zeros - 1)
    refused(
        model, TypeError, "must be int32 or int64; got torch.float32", text, cache, documents=zeros.float()
    )
    refused(model, ValueError, r"shape of the tokens, \(2, 9\); got \(2, 8\)", text, cache, valid=ones[:, 1:])
    refused(model, TypeError, "valid must be bool; got torch.int64", text, cache, valid=zeros)
    ones[0, 4] = False
    refused(model, ValueError, "valid must pad on the left when there is a cache", text, cache, valid=ones)
    refused(model.float(), TypeError, "model computes, torch.float32; got torch.float64", text, cache)
    with pytest.raises(TypeError, match=r"cache must be what decoder\.cache\(\) returns, or None; got dict"):
        model(text, cache={})
    with pytest.raises(ValueError, match=r"rows must lie in 0\.\.1; got \[2\]"):
        cache.reorder([2])
    for rows in (1, None, "ab", [0.5], [True], [], torch.zeros(2)):
        with pytest.raises(
            TypeError, match="rows must be a list, an array or a tensor of integers, one a row; got"
        ):
            cache.reorder(rows)
    with pytest.raises(ValueError, match="rollback must be an integer of at least 0; got -1"):
        model.cache(rollback=-1)


@torch.no_grad()
def test_a_call_that_fails_half_way_leaves_the_cache_as_it_was():
    model, text = model_of("short_swa"), tokens(2, 9)
    cache = model.cache()
    model(text, cache=cache)
    broken = model.blocks[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    refused(model, ZeroDivisionError, "division", text, cache)
    broken.remove()
    close(model(text, cache=cache), model(torch.cat([text, text], 1))[:, 9:])


@torch.no_grad()
def test_an_end_that_fails_leaves_the_cache_as_it_was(monkeypatch):
    """All stores are extended before any of them counts."""
    model, text = model_of("short_swa"), tokens(2, 9)
    cache, calls = model.cache(), []
    model(text, cache=cache)

    def extended(store, new):
        calls.append(store)
        if len(calls) == 2:
            raise MemoryError("the second store")
        return kept(store, new)

    kept = Tail.extended
    monkeypatch.setattr(Tail, "extended", extended)
    refused(model, MemoryError, "the second store", text, cache)
    monkeypatch.undo()
    close(model(text, cache=cache), model(torch.cat([text, text], 1))[:, 9:])


@everyone
def test_modes_may_change_between_calls(variant):
    """Inference mode, no_grad and gradients in turn."""
    model, text = model_of(variant, "deep_delta"), tokens(2, 12)
    cache, logits = model.cache(), []
    for mode, piece in zip(
        (torch.inference_mode, torch.no_grad, torch.inference_mode), text.split([5, 4, 3], 1), strict=True
    ):
        with mode():
            logits.append(model(piece, cache=cache).clone())
    close(torch.cat(logits, 1), model(text).detach())


@everyone
def test_autocast_and_none_do_not_mix(variant):
    model, text = decoder(variant, torch.float32), tokens(2, 9)
    with torch.no_grad():
        within, outside = model.cache(), model.cache()
        with torch.autocast("cpu", torch.bfloat16):
            model(text, cache=within)
            model(text, cache=within)
        model(text, cache=outside)
        refused(model, TypeError, "computes, torch.float32; got torch.bfloat16", text, within)
        with torch.autocast("cpu", torch.bfloat16):
            refused(model, TypeError, "computes, torch.bfloat16; got torch.float32", text, outside)


@everyone
@torch.no_grad()
def test_nothing_larger_is_kept_alive(variant):
    model = model_of(variant, "deep_delta")
    _, cache = read(model, tokens(2, 9), (9,))
    held = sum(x.untyped_storage().nbytes() for store in cache.stores.values() for x in store.tensors)
    assert held == sum(cache.sizes().values())
    model(tokens(2, 1), documents=torch.tensor([[2], [3]]), cache=cache)
    assert cache.sizes()["documents"] == 2 * 10 * 8


@torch.no_grad()
def test_copies_and_saved_caches():
    model = model_of("canon ABCD")
    _, cache = read(model, tokens(2, 9), (9,))
    copied = copy.deepcopy({"cache": cache})["cache"]
    assert copied.owner is model
    model(tokens(2, 1), cache=copied)
    assert (cache.length, copied.length) == (9, 10)
    with pytest.raises(TypeError, match="a cache belongs to a decoder in memory and cannot be saved"):
        pickle.dumps(cache)


@torch.no_grad()
def test_tokens_without_a_document_are_document_0():
    model, text = model_of("canon ABCD"), tokens(2, 12)
    cache = model.cache()
    model(text[:, :9], cache=cache)
    other = cache.clone()
    close(model(text[:, 9:], documents=torch.zeros(2, 3, dtype=torch.int64), cache=cache), model(text)[:, 9:])
    close(model(text[:, 9:], documents=torch.ones(2, 3, dtype=torch.int64), cache=other), model(text[:, 9:]))


@torch.no_grad()
def test_labels_compile():
    """One graph with documents and padding as inputs."""
    torch._dynamo.reset()
    model, text = decoder("canon ABCD", torch.float32), tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    documents = torch.tensor([[0] * 4 + [1] * 5] * 2)
    valid = torch.arange(9)[None] >= torch.tensor([[0], [3]])
    assert torch.equal(compiled(text, documents=documents), model(text, documents=documents))
    assert torch.equal(compiled(text, valid=valid), model(text, valid=valid))


def test_no_gradient_reaches_an_earlier_call():
    model, text = model_of("short_swa"), tokens(2, 9)
    cache = model.cache()
    model(text[:, :5], cache=cache)
    assert not any(x.requires_grad for store in cache.stores.values() for x in store.tensors)
    model(text[:, 5:], cache=cache).square().sum().backward()


def test_padding_may_stand_on_the_right_without_a_cache():
    model, text = model_of("canon ABCD"), tokens(2, 9)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, 6:] = False
    close(model(text, valid=valid)[1, :6], model(text[1:, :6])[0])


@torch.no_grad()
@pytest.mark.parametrize("variant", ["none", "canon ABCD", "short_swa"])
def test_an_emptied_cache_is_a_new_one(variant):
    """Also for another batch, and after another dtype."""
    model, text = decoder(variant), tokens(2, 9)
    cache = model.cache()
    model(text, cache=cache)
    cache.cut(0)
    assert cache.sizes() == {}
    close(model(text[:1], cache=cache), model(text[:1]))
    cache.cut(0)
    model = model.float()
    got = [model(text[:, :5], cache=cache), model(text[:, 5:], cache=cache)]
    close(torch.cat(got, 1), model(text), 1e-5)


def test_sizes_tell_what_is_alive_after_a_cut():
    model = decoder("none")
    cache = model.cache()
    model(tokens(2, 40), cache=cache)
    cache.cut(1)
    alive = sum(x.untyped_storage().nbytes() for store in cache.stores.values() for x in store.tensors)
    assert sum(cache.sizes().values()) == alive


@torch.no_grad()
def test_padding_may_have_any_document():
    model, text = decoder("canon ABCD"), tokens(2, 9)
    valid = torch.arange(9).expand(2, 9) < torch.tensor([[9], [6]])
    documents = torch.tensor([[0] * 4 + [1] * 5] * 2)
    want = model(text, documents=documents, valid=valid)
    got = model(text, documents=torch.where(valid, documents, -1), valid=valid)
    close(got[valid], want[valid])


@torch.no_grad()
@pytest.mark.parametrize("variant", ["none", "canon ABCD", "short_swa", "short_swa chunk"])
def test_decoding_compiles(variant):
    """In one graph, cache and all."""
    torch._dynamo.reset()
    model, text = decoder(variant, torch.float32, blocks=1), tokens(2, 9)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    cache = model.cache()
    got = [compiled(part, cache=cache) for part in text.split([5, 1, 1, 1, 1], 1)]
    close(torch.cat(got, 1), model(text), 1e-5)


def test_reorder_takes_arrays():
    model, text = decoder("none"), tokens(2, 9)
    for rows in (np.array([1, 0]), [np.int64(1), np.int64(0)], torch.tensor([1, 0])):
        cache = model.cache()
        model(text[:, :8], cache=cache)
        cache.reorder(rows)
        close(model(text.flip(0)[:, 8:], cache=cache), model(text.flip(0))[:, 8:])
    with pytest.raises(TypeError, match="rows must be a list, an array or a tensor of integers, one a row"):
        cache.reorder(np.array([0.0, 1.0]))
