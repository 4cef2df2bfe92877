"""Golden vectors of Canon, of the Algorithm 1 block and of the ring buffer, through the real blocks."""

from dataclasses import replace

import pytest
import torch

from t2lib import golden
from t2lib.cache import Cache
from t2lib.decoder import DecoderConfig, MixedBlock
from t2lib.layers import rotate
from t2lib.token_pass import Pass

# What the references call their parameters, and what a block here calls them.
CANON_NAMES = {
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    "attention_norm.gain": "input_layernorm.weight",
    "mlp_norm.gain": "post_attention_layernorm.weight",
    "mixer.taps.A.weight": "canonA.weight",
    "mixer.taps.B.weight": "self_attn.canonB.weight",
    "mixer.taps.C.weight": "canonC.weight",
    "mixer.taps.D.weight": "mlp.canonD.weight",
}
ALGORITHM_1_NAMES = {
    "mixer.query.weight": "swa.W_Q",
    "mixer.key.weight": "swa.W_K",
    "mixer.value.weight": "swa.W_V",
    "mixer.output.weight": "swa.W_O",
    "attention.query.weight": "attn.W_Q",
    "attention.key.weight": "attn.W_K",
    "attention.value.weight": "attn.W_V",
    "attention.output.weight": "attn.W_O",
    "mixer.norm.gain": "norm1",
    "attention_norm.gain": "norm2",
    "mlp_norm.gain": "norm3",
    "mlp.gate.weight": "mlp.W_1",
    "mlp.up.weight": "mlp.W_2",
    "mlp.down.weight": "mlp.W_3",
}


def tensors(name):
    return {key: torch.from_numpy(array) for key, array in golden.load(name).items()}


def close(got, want):
    assert (got - want).abs().max() <= 1e-10 * want.abs().max().clamp_min(1.0)


def mirrored(weight):
    """Recorded matrices act from the right, x W, those of a linear layer from the left."""
    return weight if weight.ndim == 1 else weight.mT


def block_of(config, name, options, number=0):
    return MixedBlock(replace(config, mixer=name, mixer_options=options), number).double()


@pytest.mark.parametrize("name", golden.names("canon_"))
def test_canon(name):
    """Two official layers: every level of the stack, the gradient of the input and of all taps."""
    arrays, setting = tensors(name), golden.sidecar(name)["setting"]
    options = {"positions": name.split("_")[1], "residual": not name.endswith("nores")}
    config = DecoderConfig(
        width=setting["d"],
        blocks=setting["L"],
        heads=setting["heads"],
        hidden=setting["d_ff"],
        rope_base=None if name.endswith("nope") else 10000.0,
        norm_eps=setting["rms_eps"],
    )
    blocks = [block_of(config, "canon", options, number) for number in range(config.blocks)]
    for number, block in enumerate(blocks):
        block.load_state_dict({mine: arrays[f"l{number}.{CANON_NAMES[mine]}"] for mine in block.state_dict()})
    first = arrays["x0"].clone().requires_grad_()
    h = first
    for number, block in enumerate(blocks):
        close(h, arrays["H"][number])
        h = block(h)
    close(h, arrays["out"])
    h.backward(arrays["cotangent"])
    close(first.grad, arrays["grad_x0"])
    recorded = {key for key in arrays if key.startswith("grad.")}
    for number, block in enumerate(blocks):
        for mine, parameter in block.named_parameters():
            theirs = f"grad.l{number}.{CANON_NAMES[mine]}"
            if theirs in recorded:
                close(parameter.grad, arrays[theirs])
                recorded.remove(theirs)
    assert not recorded


def test_algorithm_1():
    """ShortSWA, attention, MLP, each behind its own norm: output and every recorded gradient."""
    arrays = tensors("shortswa_block_alg1")
    config = DecoderConfig(width=8, blocks=1, heads=2, hidden=21, norm_eps=1e-5)
    block = block_of(config, "short_swa", {"window": 3})
    names = ALGORITHM_1_NAMES
    block.load_state_dict({mine: mirrored(arrays[f"par__{names[mine]}"]) for mine in block.state_dict()})
    x = arrays["in__x"].clone().requires_grad_()
    out = block(x)
    close(out, arrays["out"])
    out.backward(arrays["cotangent"])
    close(x.grad, arrays["grad__x"])
    for mine, parameter in block.named_parameters():
        close(mirrored(parameter.grad), arrays[f"grad__{names[mine]}"])


@pytest.mark.parametrize("parts", [[1] * 7, [4, 3], [7], [2, 1, 4]])
def test_ring(parts):
    """Token by token or in pieces: the output, and the slots, token t in slot t mod w."""
    arrays = tensors("shortswa_stream_h2_w3_rope")
    cache, outs = Cache(None), []
    for x in arrays["in__x"].split(parts, 1):
        tokens = Pass(cache, (1,), x.shape[1])
        q, k, v = (
            (x @ arrays[f"par__W_{name}"]).unflatten(-1, (2, 4)).transpose(1, 2) for name in ("Q", "K", "V")
        )
        q, k = rotate(q, 10000.0, tokens.start), rotate(k, 10000.0, tokens.start)
        z = tokens.short_swa("layer", q, k, v, window=3)
        outs.append(z.transpose(1, 2).flatten(2) @ arrays["par__W_O"])
        tokens.finish(x)
    close(torch.cat(outs, 1), arrays["out"])
    keys, values = cache.stores["layer"].tensors
    close(keys.transpose(1, 2), arrays["ring_K_final"])
    close(values.transpose(1, 2), arrays["ring_V_final"])


@pytest.mark.parametrize("name", ["shortconv_k4_silu", "shortconv_k4_linear", "shortconv_k3_silu_bias"])
def test_convolution_state(name):
    """In the recorded chunks 3, 1, 1, 2: the output, and the state after each."""
    arrays = tensors(name)
    cache, outs = Cache(None), []
    activation = "silu" if "silu" in name else None
    for number, x in enumerate(arrays["x0"].split(arrays["chunks"].tolist(), 1)):
        tokens = Pass(cache, (1,), x.shape[1])
        outs.append(tokens.short_conv("layer", x, arrays["w"], arrays.get("b"), activation=activation))
        tokens.finish(x)
        close(cache.stores["layer"].tensors[0], arrays[f"state_after_chunk{number}"])
    close(torch.cat(outs, 1), arrays["out"])
