"""One small pre-norm decoder, to be read from top to bottom.

Rows are states: a state is a row vector of width d and a projection acts as x W. Every sublayer reads a
normalised copy of the residual stream and adds its output back,

    U = H + Attention(Norm(H)),        H' = U + MLP(Norm(U)),

so the stream after any number of sublayers is the embedding plus the sum of what they wrote. Any other
stream of `t2lib.streams` can stand in its place: it decides what a sublayer reads and where its output goes.
Any mixer of `t2lib.mixers` can stand in the block: it mixes each token with the few before it.
Source: the baseline of arXiv 2603.16039, section 2.1; RMSNorm arXiv 1910.07467, rotary positions
arXiv 2104.09864, SwiGLU arXiv 2002.05202.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib import mixers, streams
from t2lib.cache import Cache
from t2lib.layers import RMSNorm, rotate
from t2lib.mixers.mixer import Mixer, Site, Ways
from t2lib.ops._checks import check_integer, check_number
from t2lib.streams.stream import Read, Record, record
from t2lib.token_pass import Pass


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a `Decoder`. `rope_base=None` leaves positions out; `dropout` acts on branch outputs
    in training only. `stream` is a name of `t2lib.streams.STREAMS` and `mixer` one of `t2lib.mixers.MIXERS`,
    `stream_options` and `mixer_options` are what that design takes."""

    vocabulary: int = 256
    width: int = 96
    blocks: int = 8
    heads: int = 4
    hidden: int = 256
    context: int = 256
    rope_base: float | None = 10000.0
    norm_eps: float = 1e-6
    dropout: float = 0.0
    stream: str = "prenorm"
    stream_options: dict[str, Any] = field(default_factory=dict, hash=False)
    mixer: str = "none"
    mixer_options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "blocks", "heads", "hidden", "context"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 1))
        if self.width % self.heads:
            raise ValueError(f"heads must divide width: got heads={self.heads}, width={self.width}.")
        if self.rope_base is not None and self.head_width % 2:
            raise ValueError(
                f"width/heads must be even for rotary positions, got {self.head_width}; "
                "take another width or rope_base=None."
            )
        if self.rope_base is not None and check_number("rope_base", self.rope_base) <= 0:
            raise ValueError(f"rope_base must be positive or None, got {self.rope_base!r}.")
        if check_number("norm_eps", self.norm_eps) <= 0:
            raise ValueError(f"norm_eps must be positive, got {self.norm_eps!r}.")
        if not 0 <= check_number("dropout", self.dropout) < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}.")
        for name in ("stream_options", "mixer_options"):
            if not isinstance(getattr(self, name), dict):
                raise TypeError(f"{name} must be a dict, got {type(getattr(self, name)).__name__}.")
        streams.STREAMS.check_options(self.stream, self.stream_options)
        mixers.MIXERS.check_options(self.mixer, self.mixer_options)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def site(self, block: int) -> Site:
        """The sizes that a mixer in that block needs to know."""
        return Site(block, self.blocks, self.width, self.heads, self.hidden, self.rope_base, self.norm_eps)


class WayNorms(nn.ModuleDict):
    """An RMSNorm each for query, key and value, for a stream that gives attention a read for each."""

    def __init__(self, ways: tuple[str, ...], width: int, eps: float) -> None:
        # The residual way goes around the sublayer, so it passes no norm.
        super().__init__({way: RMSNorm(width, eps) for way in ways if way != "residual"})

    def forward(self, reads: dict[str, Tensor]) -> dict[str, Tensor]:
        return {way: norm(reads[way]) for way, norm in self.items()}


class Attention(nn.Module):
    """Causal softmax attention over the tokens, (..., T, d) -> (..., T, d); no biases.

    Queries, keys and values come from one x, or from a dict of one tensor each. The mixer of the block may
    mix them along the tokens; `tokens` is the pass, without one every call stands alone.
    """

    def __init__(self, config: DecoderConfig, block: int = 0) -> None:
        super().__init__()
        self.place = (block, "attention")
        self.heads, self.rope_base = config.heads, config.rope_base
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(..., T, d) -> (..., H, T, D)."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-2, -3)

    def queries_keys_values(
        self, x: Ways, tokens: Pass | None = None, mixer: Mixer | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The three projections of the normalised stream, each (..., H, T, D), positions applied."""
        ways = x if isinstance(x, dict) else {"query": x, "key": x, "value": x}
        q, k, v = self.query(ways["query"]), self.key(ways["key"]), self.value(ways["value"])
        tokens = tokens or Pass()
        if mixer is not None:
            q, k, v = mixer.projections(q, k, v, tokens)
        q, k, v = self.split(q), self.split(k), self.split(v)
        if self.rope_base is not None:
            q, k = (rotate(part, self.rope_base, tokens.start) for part in (q, k))
        return q, k, v

    def forward(self, x: Ways, tokens: Pass | None = None, mixer: Mixer | None = None) -> Tensor:
        tokens = tokens or Pass()
        q, k, v = self.queries_keys_values(x, tokens, mixer)
        mixed = tokens.attention(self.place, q, k, v)
        return self.output(mixed.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SwiGLU on each state alone: (silu(x W_gate) * x W_up) W_down, (..., d) -> (..., d)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, tokens: Pass | None = None, mixer: Mixer | None = None) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        if mixer is not None:
            gate, up = mixer.gate_and_up(gate, up, tokens or Pass())
        return self.down(F.silu(gate) * up)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two pre-norm sublayers. By hand: `u = h + block.attention(block.attention_norm(h))`, then
    `h = u + block.mlp(block.mlp_norm(u))`.

    Book: eq-block
    """

    def __init__(self, config: DecoderConfig, number: int = 0) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config, number)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def sublayers(self) -> Iterator[tuple[RMSNorm, nn.Module]]:
        """The two sublayers in order, each with the norm through which it reads the stream."""
        yield self.attention_norm, self.attention
        yield self.mlp_norm, self.mlp

    def forward(self, h: Tensor) -> Tensor:
        for norm, sublayer in self.sublayers():
            h = h + self.dropout(sublayer(norm(h)))
        return h

    def branch(self, place: int, read: Read, tokens: Pass) -> tuple[Ways, Tensor]:
        """What sublayer 0 or 1 makes of its read: the read behind its norm, and the output."""
        norm, sublayer = list(self.sublayers())[place]
        normed = norm(read)
        return normed, self.dropout(sublayer(normed, tokens))


class MixedBlock(Block):
    """A block with a local mixer in it: `t2lib.mixers.mixer` draws where."""

    def __init__(self, config: DecoderConfig, number: int = 0) -> None:
        super().__init__(config, number)
        # From a copy of the generator, as the stream: the other weights are those of the plain block.
        with torch.random.fork_rng(devices=[]):
            self.mixer = mixers.build(config.mixer, config.site(number), **config.mixer_options)

    def forward(self, h: Tensor) -> Tensor:
        tokens = Pass()
        for place in (0, 1):
            h = h + self.branch(place, h, tokens)[1]
        return h

    def branch(self, place: int, read: Read, tokens: Pass) -> tuple[Ways, Tensor]:
        if place == 1:
            assert isinstance(read, Tensor)
            inner: Tensor = self.mlp_norm(read)
            x = self.mixer.mlp_input(inner, tokens)
            return inner, self.dropout(self.mlp(x, tokens, self.mixer))
        normed: Ways = self.attention_norm(read)
        local = self.mixer.sublayer(read, tokens)
        if local is None:
            ways = self.mixer.attention_input(normed, tokens)
            return normed, self.dropout(self.attention(ways, tokens, self.mixer))
        # A sublayer of its own: attention reads what it adds, and the stream gets the sum of both.
        local = self.dropout(local)
        ways = self.mixer.attention_input(self.attention_norm(plus(read, local)), tokens)
        return normed, local + self.dropout(self.attention(ways, tokens, self.mixer))


def plus(read: Read, y: Tensor) -> Read:
    """y added to a read; of a read by ways to all but the residual one, which goes around the sublayer."""
    if isinstance(read, Tensor):
        return read + y
    return {way: x if way == "residual" else x + y for way, x in read.items()}


class Decoder(nn.Module):
    """Bytes in, next-byte logits out: `decoder(tokens)`, int64 (..., T) -> (..., T, vocabulary).

    The shape is a `DecoderConfig`, or its fields by name: `Decoder(stream="denseformer")`. Embedding and
    unembedding are one matrix. Weights start as N(0, 0.02^2); the two projections that
    write to the stream, `attention.output` and `mlp.down`, as N(0, 0.02^2 / 2L) (the GPT-2 rule), norm
    gains at 1. Cost of a call: about 2 FLOPs a parameter and token, plus 4 T d a token and block for
    the full attention over T tokens.

    >>> decoder = Decoder(DecoderConfig(blocks=2))
    >>> decoder.hidden_states(torch.zeros(5, dtype=torch.int64)).shape
    torch.Size([3, 5, 96])
    """

    def __init__(self, config: DecoderConfig | None = None, **fields: Any) -> None:
        super().__init__()
        if config is not None and fields:
            raise TypeError(f"config must be None if fields are given by name, got {', '.join(fields)} too.")
        self.config = config or DecoderConfig(**fields)
        width, eps = self.config.width, self.config.norm_eps
        blocks = self.config.blocks
        # The stream draws from a copy of the generator: the other weights are those of the plain decoder.
        with torch.random.fork_rng(devices=[]):
            stream = streams.build(
                self.config.stream, width=width, blocks=blocks, **self.config.stream_options
            )
        self.embedding = nn.Embedding(self.config.vocabulary, width)
        kind = Block if self.config.mixer == "none" else MixedBlock
        self.blocks = nn.ModuleList(kind(self.config, i) for i in range(blocks))
        for index, block in enumerate(self.blocks):
            if stream.ways(2 * index) != ("x",):
                block.attention_norm = WayNorms(stream.ways(2 * index), width, eps)
        self.final_norm = RMSNorm(width, eps)
        self.dropout = nn.Dropout(self.config.dropout)
        self.stream = stream
        self.initialise()

    def initialise(self) -> None:
        """Start anew by the rule in the class docstring, with draws from torch's global generator.

        The parameters of the stream and of the mixers come last, by their own rules.
        """
        writers = math.sqrt(2 * self.config.blocks)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and not name.startswith("stream.") and ".mixer." not in name:
                writes = name.endswith(("attention.output.weight", "mlp.down.weight"))
                nn.init.normal_(weight, std=0.02 / writers if writes else 0.02)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                nn.init.ones_(module.gain)
        self.stream.initialise()
        for block in self.blocks:
            if isinstance(block, MixedBlock):
                block.mixer.initialise()

    def embed(self, tokens: Tensor) -> Tensor:
        """Level 0 of the stack: int64 tokens (..., T) -> states (..., T, d), after checking them."""
        self.check(tokens)
        return self.dropout(self.embedding(tokens))  # type: ignore[no-any-return]

    def unembed(self, states: Tensor) -> Tensor:
        """Final norm, then the embedding matrix again: (..., d) -> (..., vocabulary).

        On any other level of the stack than the last this is the logit lens.
        """
        return F.linear(self.final_norm(states), self.embedding.weight)

    def sublayers(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """All 2L sublayers in order, each with the norm through which it reads the stream."""
        for block in self.blocks:
            assert isinstance(block, Block)
            yield from block.sublayers()

    def cache(self, rollback: int = 0) -> Cache:
        """An empty cache for this decoder; see `t2lib.cache.Cache`."""
        return Cache(self, rollback)

    def forward(
        self,
        tokens: Tensor,
        *,
        documents: Tensor | None = None,
        valid: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (..., T, vocabulary) of the bytes that follow each of `tokens` (..., T).

        documents  integers (..., T) from 0, in order: a token sees its own document only (packed batches);
                   those of padding do not matter. None goes on with the last one of the cache; tokens
                   without one are document 0
        valid      bool (..., T): False is padding, which no token sees; its own logits mean nothing
        cache      `decoder.cache()`: the tokens go on from those that it holds, and are added to it
        """
        self.check(tokens)
        rows, length = tuple(tokens.shape[:-1]), tokens.shape[-1]
        if cache is not None:
            self.check_room(length, cache)
            cache.check(self, rows, self.embedding.weight.dtype, tokens.device)
        walk = Pass(cache, rows, length, documents, valid)
        embedding = self.dropout(self.embedding(tokens))
        state = self.stream.start(embedding, walk)
        for i in range(self.stream.sublayers):
            normed, y = self.branch(i, self.stream.read(state, i), walk)
            state = self.stream.write(state, i, y.to(embedding.dtype), normed)
        logits = self.unembed(self.stream.finish(state))
        walk.finish(embedding)
        return logits

    def branch(self, i: int, read: Read, walk: Pass) -> tuple[Ways, Tensor]:
        """What sublayer i makes of its read: the read behind its norm, and its output.

        Under autocast the output is half precision; the stream stays as wide as the embedding.
        """
        block = self.blocks[i // 2]
        assert isinstance(block, Block)
        return block.branch(i % 2, read, walk)

    def record(self, tokens: Tensor) -> Record:
        """One pass with all that happened on the way: levels, reads, normalised reads and branch outputs.

        Fields of the result: `levels`, 2L + 1 tensors (..., T, d), what the final norm would read if the
        decoder ended there; `reads`, `normed` and `branches`, 2L each. A read, raw or normalised, is a
        tensor, or a dict of one tensor a way.
        """
        embedding, walk = self.embed(tokens), Pass(length=tokens.shape[-1])

        def step(i: int, read: Read) -> tuple[Ways, Tensor]:
            normed, y = self.branch(i, read, walk)
            return normed, y.to(embedding.dtype)

        return record(self.stream, embedding, step, walk)

    def mixing_matrix(self, tokens: Tensor) -> Tensor | dict[str, Tensor]:
        """How much of each earlier output each sublayer read: see `t2lib.streams.mixing.mixing_matrix`."""
        with torch.no_grad():
            seen = self.record(tokens)
        return self.stream.mixing_matrix(seen.embedding, seen.branches, seen.normed)

    def branches(self, tokens: Tensor) -> Tensor:
        """What each sublayer put out, (2L, ..., T, d): attention, MLP, attention, MLP, ..."""
        return torch.stack(self.record(tokens).branches)

    def hidden_states(self, tokens: Tensor, unit: str = "block") -> Tensor:
        """The stack H: level 0 is the embedding, the last level is what the final norm reads.

        `unit="block"`: (L+1, ..., T, d). `unit="sublayer"`: (2L+1, ..., T, d), every other level of
        which is the block stack; there `H[k + 1] - H[k]` is `branches[k]` if the stream is the plain one.
        """
        if unit not in ("block", "sublayer"):
            raise ValueError(f'unit must be "block" or "sublayer", got {unit!r}.')
        stack = torch.stack(self.record(tokens).levels)
        return stack[::2] if unit == "block" else stack

    def generate(self, prompts: Any, length: int, **options: Any) -> Any:
        """`prompts` continued by `length` tokens: see `t2lib.generation.generate`."""
        from t2lib.generation import generate

        return generate(self, prompts, length, **options)

    def check_room(self, length: int, cache: Cache) -> None:
        """One sentence if `length` more tokens do not fit behind those of a cache."""
        if not isinstance(cache, Cache):
            raise TypeError(
                f"cache must be what decoder.cache() returns, or None; got {type(cache).__name__}."
            )
        if cache.length + length > self.config.context:
            takes = f"at most context={self.config.context} long, with the {cache.length} of the cache"
            raise ValueError(f"tokens must be {takes}; got {length}.")

    def check(self, tokens: Tensor, any_length: bool = False) -> None:
        """Raise one sentence if `tokens` cannot be read by this decoder."""
        if not isinstance(tokens, Tensor):
            raise TypeError(f"tokens must be an int64 tensor, got {type(tokens).__name__}.")
        if tokens.dtype != torch.int64:
            raise TypeError(f"tokens must be int64, got {tokens.dtype}.")
        if tokens.ndim == 0 or 0 in tokens.shape:
            raise ValueError(
                f"tokens must have shape (..., T) with nothing empty, got {tuple(tokens.shape)}."
            )
        if tokens.shape[-1] > self.config.context and not any_length:
            raise ValueError(
                f"tokens must be at most context={self.config.context} long, got {tokens.shape[-1]}."
            )
        # A graph that is being traced has no values to look at; there the embedding itself has to complain.
        if torch.compiler.is_compiling():
            return
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocabulary:
            raise ValueError(
                f"tokens must lie in 0..{self.config.vocabulary - 1}, got values from {low} to {high}."
            )
