"""ShortSWA: attention over the last few tokens, as a sublayer of its own or on the branches of attention.

    sublayer   s = h + ShortSWA(Norm(h)),  ShortSWA(x) = concat_h( Σ_s a_ts v_s ) W_O
    branch     [q | k | v]_t += gain ⊙ Σ_s a_ts [q | k | v]_s,  a from q and k themselves, head by head

Source: arXiv 2603.16039, Algorithm 1; yifanzhang-pro/Rethinking-SWA. The sources leave open what projections
the branch form has; without any, and with a gain a channel, is our reading.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from t2lib.layers import RMSNorm, rotate
from t2lib.mixers.mixer import Mixer, Site, Ways
from t2lib.mixers.short_conv import PLACEMENTS
from t2lib.ops._checks import check_choice, check_flag, check_integer
from t2lib.token_pass import Pass


class ShortSWA(Mixer):
    """Short sliding-window attention, self included, with softmax over the visible tokens.

    placement    "sublayer", Algorithm 1: projections of its own behind a norm of its own. "branch": in the
                 slot of ShortConv, on the projections q, k and v of the block's attention
    window       w tokens, self included (strict), or the length of a chunk
    window_type  "strict" or "chunk": the chunk of the token and `lookback` chunks before it. Chunks begin
                 with every document, which then costs whole chunks and keeps torch.compile from one graph
    rope         rotary positions on its queries and keys; a block without them (rope_base=None) has none
                 here either
    heads        of the sublayer; None is as many as the block has. `key_heads` of them have keys and values
                 of their own, the others share; None is all
    initial      "plain": the output projection, or the gain, starts at zero, so that the block starts as the
                 plain one. "normal": it starts like that of attention, the gain at one

    Parameters  2 d² + 2 d² key_heads / heads + d in a sublayer; 3d on the branches. FLOPs twice the matrices,
    and 4 d w̄ (8 d w̄ on the branches) a token, w̄ the visible tokens
    """

    def __init__(
        self,
        site: Site,
        *,
        placement: str = "sublayer",
        window: int = 64,
        window_type: str = "strict",
        lookback: int = 1,
        rope: bool = True,
        heads: int | None = None,
        key_heads: int | None = None,
        initial: str = "plain",
    ) -> None:
        super().__init__(site)
        own = check_choice("placement", placement, PLACEMENTS) == "sublayer"
        self.window = check_integer("window", window, 1)
        self.window_type = check_choice("window_type", window_type, ("strict", "chunk"))
        self.lookback = check_integer("lookback", lookback, 0)
        self.initial = check_choice("initial", initial, ("plain", "normal"))
        if not own and (heads is not None or key_heads is not None):
            raise ValueError("heads and key_heads must be None on a branch, which has those of attention.")
        self.heads = site.heads if heads is None else check_integer("heads", heads, 1)
        self.key_heads = self.heads if key_heads is None else check_integer("key_heads", key_heads, 1)
        if site.width % self.heads:
            raise ValueError(f"heads must divide width={site.width}; got {self.heads}.")
        if self.heads % self.key_heads:
            raise ValueError(f"key_heads must divide heads={self.heads}; got {self.key_heads}.")
        width, head_width = site.width, site.width // self.heads
        self.rope_base = site.rope_base if check_flag("rope", rope) else None
        if self.rope_base is not None and head_width % 2:
            raise ValueError(f"width / heads must be even for rotary positions; got {head_width}.")
        self.norm = RMSNorm(width, site.norm_eps) if own else None
        if own:
            self.query = nn.Linear(width, width, bias=False)
            self.key = nn.Linear(width, self.key_heads * head_width, bias=False)
            self.value = nn.Linear(width, self.key_heads * head_width, bias=False)
            self.output = nn.Linear(width, width, bias=False)
        else:
            self.gain = nn.Parameter(torch.empty(3 * width))
        self.initialise()

    def initialise(self) -> None:
        plain = self.initial == "plain"
        if self.norm is None:
            nn.init.constant_(self.gain, 0.0 if plain else 1.0)
            return
        nn.init.ones_(self.norm.gain)
        for projection in (self.query, self.key, self.value):
            nn.init.normal_(projection.weight, std=0.02)
        nn.init.normal_(self.output.weight, std=0.02 / math.sqrt(2 * self.site.blocks))
        if plain:
            nn.init.zeros_(self.output.weight)

    def sublayer(self, read: Ways, tokens: Pass) -> Tensor | None:
        if self.norm is None:
            return None
        ways = read if isinstance(read, dict) else dict.fromkeys(("query", "key", "value"), read)
        q = self._split(self.query(self.norm(ways["query"])), self.heads)
        k = self._split(self.key(self.norm(ways["key"])), self.key_heads)
        v = self._split(self.value(self.norm(ways["value"])), self.key_heads)
        z: Tensor = self.output(_joined(self._read(q, k, v, tokens)))
        return z

    def projections(self, q: Tensor, k: Tensor, v: Tensor, tokens: Pass) -> tuple[Tensor, Tensor, Tensor]:
        if self.norm is not None:
            return q, k, v
        branches = [self._split(x, self.heads) for x in (q, k, v)]
        z = self._read(branches[0], branches[1], torch.cat(branches, -1), tokens)
        gains = self.gain.chunk(3)
        q, k, v = (
            x + gain * _joined(part) for x, gain, part in zip((q, k, v), gains, z.chunk(3, -1), strict=True)
        )
        return q, k, v

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """(..., T, heads D) -> (..., heads, T, D)."""
        return torch.unflatten(x, -1, (heads, -1)).transpose(-2, -3)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, tokens: Pass) -> Tensor:
        if self.rope_base is not None:
            # Before the cache: a key then needs no position of its own.
            q, k = (rotate(x, self.rope_base, tokens.start) for x in (q, k))
        return tokens.short_swa(
            (self.site.block, "short_swa"), q, k, v,
            window=self.window, window_type=self.window_type, lookback=self.lookback,
        )  # fmt: skip


def _joined(x: Tensor) -> Tensor:
    """(..., heads, T, D) -> (..., T, heads D)."""
    return x.transpose(-2, -3).flatten(-2)
