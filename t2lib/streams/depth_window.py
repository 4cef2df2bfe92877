"""DepthWindow: the depth read of the duality paper, taken literally."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops import depth_mix
from t2lib.ops._checks import check_choice, check_flag, check_integer
from t2lib.streams import cost
from t2lib.streams.stream import Stream
from t2lib.token_pass import Pass


class Content(NamedTuple):
    """The last levels below (keys and values; the states themselves if each reader projects them anew), the
    level h that the stream is on, and what the next sublayer reads."""

    below: tuple[Any, ...]
    h: Tensor
    x: Tensor


class DepthWindow(Stream):
    """z_l = Σ_j softmax_j(q_l · k_j / sqrt(d)) v_j over the last K levels j = max(0, l-K+1) ... l.

    q_l = h_l W_Q, k_j = h_j W_K, v_j = h_j W_V for every token by itself; level 0 is the embedding and level
    l + 1 the output of block l. Block l reads z_l W_O before its attention. The paper does not say how, so it
    is chosen by name:

        enter="add"      h_l + z_l W_O is the block's input; W_O starts at 0, so the plain stream is the start
        enter="replace"  z_l W_O is the block's input; W_V and W_O start at the identity, W_Q and W_K small,
                         so the start is near the mean of the window
        window           K, from 1 to L + 1: level l sees itself and K - 1 below
        shared           True: one W_Q, W_K, W_V, W_O for all levels, as the paper writes it, and the key and
                         value of a level are computed once; False: each reading level owns four matrices and
                         projects its window anew

    The matrices act on rows, x W, and are stored in that orientation.

    Parameters  4d² shared, 4d²L owned
    Cost        shared 8d² L + 4d triangle(L, K) FLOPs, 2(K-1) + 1 live states; owned 4d² L + (4d² + 4d)
                triangle(L, K) FLOPs, K live states
    Source      arXiv 2603.16039, section 2.2; entering and start are ours
    """

    mixing = "matrix"

    def __init__(
        self, width: int, blocks: int, *, window: int = 4, shared: bool = True, enter: str = "add"
    ) -> None:
        super().__init__(width, blocks)
        self.window = check_integer("window", window, 1)
        if window > blocks + 1:
            raise ValueError(
                f"window must be at most {blocks + 1}, the levels of {blocks} blocks; got {window}."
            )
        self.shared = check_flag("shared", shared)
        self.enter = check_choice("enter", enter, ("add", "replace"))
        self.identity_at_start = enter == "add"
        owners = 1 if shared else blocks
        self.query, self.key, self.value, self.output = (
            nn.Parameter(torch.empty(owners, width, width)) for _ in range(4)
        )
        self.initialise()

    def initialise(self) -> None:
        for weight in (self.query, self.key):
            nn.init.normal_(weight, std=0.02)
        with torch.no_grad():
            identity = torch.eye(self.width).expand_as(self.value)
            if self.enter == "replace":
                self.value.copy_(identity)
                self.output.copy_(identity)
            else:
                nn.init.normal_(self.value, std=0.02)
                self.output.zero_()

    def _start(self, embedding: Tensor, tokens: Pass) -> Content:
        return self._enter((), embedding, 0)

    def _enter(self, below: tuple[Any, ...], h: Tensor, block: int) -> Content:
        """Before a block: the level joins the window and is read."""
        z, below = self.depth_read(below, h, block)
        z = z @ self.output[self._owner(block)]
        return Content(below, h, h + z if self.enter == "add" else z)

    def depth_read(self, below: tuple[Any, ...], h: Tensor, block: int) -> tuple[Tensor, tuple[Any, ...]]:
        """z of level h, before W_O, and the window that the next level finds."""
        owner = self._owner(block)
        if self.shared:
            window = (*below, (h @ self.key[0], h @ self.value[0]))
            keys, values = zip(*window, strict=True)
        else:
            window = (*below, h)
            keys = tuple(x @ self.key[owner] for x in window)
            values = tuple(x @ self.value[owner] for x in window)
        query = h @ self.query[owner]
        wide = query.dtype if query.dtype == torch.float64 else torch.float32
        scores = torch.stack([(query.to(wide) * key.to(wide)).sum(-1) for key in keys], -1)
        weights = self.held(torch.softmax(scores / math.sqrt(self.width), -1))
        z: Tensor = depth_mix(values, token_weights=weights.to(h.dtype))
        return z, window[max(0, len(window) - self.window + 1) :]

    def _owner(self, block: int) -> int:
        return 0 if self.shared else block

    def _read(self, content: Content, i: int) -> Tensor:
        return content.x

    def _write(self, content: Content, i: int, y: Tensor, normed: Any) -> Content:
        h = content.x + y
        if i % 2 == 0 or i + 1 == self.sublayers:
            return Content(content.below, h, h)
        return self._enter(content.below, h, i // 2 + 1)

    def _finish(self, content: Content, place: int) -> Tensor:
        return content.h

    def cost(self) -> cost.Cost:
        return cost.depth_window(self.width, self.blocks, window=self.window, shared=self.shared)
