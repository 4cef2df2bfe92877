"""One small pre-norm decoder, to be read from top to bottom.

Rows are states: a state is a row vector of width d and a projection acts as x W. Every sublayer reads a
normalised copy of the residual stream and adds its output back,

    U = H + Attention(Norm(H)),        H' = U + MLP(Norm(U)),

so the stream after any number of sublayers is the embedding plus the sum of what they wrote. Any other
stream of `t2lib.streams` can stand in its place: it decides what a sublayer reads and where its output goes.
Source: the baseline of arXiv 2603.16039, section 2.1; RMSNorm arXiv 1910.07467, rotary positions
arXiv 2104.09864, SwiGLU arXiv 2002.05202.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2lib.streams import build, check_name, check_options
from t2lib.streams.stream import Record, run


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a `Decoder`. `rope_base=None` leaves positions out; `dropout` acts on branch outputs
    in training only. `stream` is a name of `t2lib.streams.STREAMS`, `stream_options` what that design
    takes."""

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

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "blocks", "heads", "hidden", "context"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {size!r}.")
        if self.width % self.heads:
            raise ValueError(f"heads must divide width: got heads={self.heads}, width={self.width}.")
        if self.rope_base is not None and self.head_width % 2:
            raise ValueError(
                f"width/heads must be even for rotary positions, got {self.head_width}; "
                "take another width or rope_base=None."
            )
        if self.rope_base is not None and not self.rope_base > 0:
            raise ValueError(f"rope_base must be positive or None, got {self.rope_base!r}.")
        if not self.norm_eps > 0:
            raise ValueError(f"norm_eps must be positive, got {self.norm_eps!r}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}.")
        check_name(self.stream)
        if not isinstance(self.stream_options, dict):
            raise TypeError(f"stream_options must be a dict, got {type(self.stream_options).__name__}.")
        check_options(self.stream, self.stream_options)

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    """x * gain / sqrt(mean(x^2) + eps) over the last axis, (..., d) -> (..., d).

    The mean is taken in float32 for half precision and in float64 for float64.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.double() if x.dtype == torch.float64 else x.float()
        unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return unit.to(x.dtype) * self.gain


def rotate(x: Tensor, base: float) -> Tensor:
    """Rotary positions on x (..., T, D), half-split: channel i turns with channel i + D/2.

    The pair at position t turns by the angle t * base^(-2i/D), so the product of a query at t with a key
    at s depends on t - s alone. Angles are float64 for float64 input, float32 otherwise.
    """
    length, width = x.shape[-2:]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    rates = base ** (-torch.arange(0, width, 2, dtype=dtype, device=x.device) / width)
    angles = torch.arange(length, dtype=dtype, device=x.device)[:, None] * rates
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class WayNorms(nn.ModuleDict):
    """An RMSNorm each for query, key and value, for a stream that gives attention a read for each."""

    def __init__(self, ways: tuple[str, ...], width: int, eps: float) -> None:
        # The residual way goes around the sublayer, so it passes no norm.
        super().__init__({way: RMSNorm(width, eps) for way in ways if way != "residual"})

    def forward(self, reads: dict[str, Tensor]) -> dict[str, Tensor]:
        return {way: norm(reads[way]) for way, norm in self.items()}


class Attention(nn.Module):
    """Causal softmax attention over the tokens, (..., T, d) -> (..., T, d); no biases.

    Queries, keys and values come from one x, or from a dict of one tensor each.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.rope_base = config.heads, config.rope_base
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        """(..., T, d) -> (..., H, T, D)."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-2, -3)

    def queries_keys_values(self, x: Tensor | dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The three projections of the normalised stream, each (..., H, T, D), positions applied."""
        ways = x if isinstance(x, dict) else {"query": x, "key": x, "value": x}
        q = self.split(self.query(ways["query"]))
        k, v = self.split(self.key(ways["key"])), self.split(self.value(ways["value"]))
        if self.rope_base is not None:
            q, k = rotate(q, self.rope_base), rotate(k, self.rope_base)
        return q, k, v

    def forward(self, x: Tensor | dict[str, Tensor]) -> Tensor:
        q, k, v = self.queries_keys_values(x)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SwiGLU on each state alone: (silu(x W_gate) * x W_up) W_down, (..., d) -> (..., d)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two pre-norm sublayers. By hand: `u = h + block.attention(block.attention_norm(h))`, then
    `h = u + block.mlp(block.mlp_norm(u))`.

    Book: eq-block
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
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
        # The stream draws from a copy of the generator: the other weights are those of the plain decoder.
        with torch.random.fork_rng(devices=[]):
            options = self.config.stream_options
            stream = build(self.config.stream, width=width, blocks=self.config.blocks, **options)
        self.embedding = nn.Embedding(self.config.vocabulary, width)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.blocks))
        for index, block in enumerate(self.blocks):
            if stream.ways(2 * index) != ("x",):
                block.attention_norm = WayNorms(stream.ways(2 * index), width, eps)
        self.final_norm = RMSNorm(width, eps)
        self.dropout = nn.Dropout(self.config.dropout)
        self.stream = stream
        self.initialise()

    def initialise(self) -> None:
        """Draw every matrix anew from torch's global generator, by the rule in the class docstring.

        The stream's own parameters come last, by its own rule.
        """
        writers = math.sqrt(2 * self.config.blocks)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and not name.startswith("stream."):
                writes = name.endswith(("attention.output.weight", "mlp.down.weight"))
                nn.init.normal_(weight, std=0.02 / writers if writes else 0.02)
        self.stream.initialise()

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

    def forward(self, tokens: Tensor) -> Tensor:
        embedding = self.embed(tokens)
        state = self.stream.start(embedding)
        for i, (norm, sublayer) in enumerate(self.sublayers()):
            normed = norm(self.stream.read(state, i))
            # Under autocast a sublayer puts out half precision; the stream stays as wide as the embedding.
            y = self.dropout(sublayer(normed)).to(embedding.dtype)
            state = self.stream.write(state, i, y, normed)
        return self.unembed(self.stream.finish(state))

    def record(self, tokens: Tensor) -> Record:
        """One pass with all that happened on the way: levels, reads, normalised reads and branch outputs.

        Fields of the result: `levels`, 2L + 1 tensors (..., T, d), what the final norm would read if the
        decoder ended there; `reads`, `normed` and `branches`, 2L each. A read, raw or normalised, is a
        tensor, or a dict of one tensor a way.
        """
        embedding = self.embed(tokens)
        norms, sublayers = zip(*self.sublayers(), strict=True)

        def branch(sublayer: nn.Module, normed: Any) -> Tensor:
            return self.dropout(sublayer(normed)).to(embedding.dtype)  # type: ignore[no-any-return]

        return run(self.stream, embedding, [partial(branch, sublayer) for sublayer in sublayers], norms)

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

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, length: int, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
    ) -> Tensor:
        """Continue `tokens` (..., T) by `length` more: returns (..., T + length).

        `temperature=0` takes the most likely token each time, otherwise tokens are drawn from
        softmax(logits / temperature), restricted to the `top_k` largest if given, with a generator of
        its own seeded by `seed`. Once the text is longer than the context, its last part is read.
        """
        if not isinstance(length, int) or length < 0:
            raise ValueError(f"length must be an integer of at least 0, got {length!r}.")
        if not temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {temperature!r}.")
        if top_k is not None and not 1 <= top_k <= self.config.vocabulary:
            raise ValueError(f"top_k must lie in 1..{self.config.vocabulary} or be None, got {top_k!r}.")
        self.check(tokens, any_length=True)
        generator = torch.Generator(device=tokens.device).manual_seed(seed)
        was_training = self.training
        self.eval()
        for _ in range(length):
            logits = self(tokens[..., -self.config.context :])[..., -1, :].float()
            tokens = torch.cat([tokens, pick(logits, temperature, top_k, generator)], dim=-1)
        self.train(was_training)
        return tokens

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
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocabulary:
            raise ValueError(
                f"tokens must lie in 0..{self.config.vocabulary - 1}, got values from {low} to {high}."
            )


def pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """One token from logits (..., vocabulary) -> (..., 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        smallest = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -math.inf)
    weights = torch.softmax(logits / temperature, dim=-1)
    rows = weights.reshape(-1, weights.shape[-1])
    return torch.multinomial(rows, 1, generator=generator).reshape(*weights.shape[:-1], 1)
