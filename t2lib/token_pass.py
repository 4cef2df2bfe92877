"""One pass over the tokens: what every operator along them needs to know, and what it leaves in the cache.

The operators of a decoder read the stores of a `t2lib.cache.Cache` through a `Pass`, each under a key of its
own, and what the tokens of the pass add is entered in one step at its end: a call that fails leaves the cache
as it was. Without a cache the pass still knows which token belongs to which document, and which is padding.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib.cache import Cache, Ring, Tail
from t2lib.ops import short_conv, short_swa

# The documents of padding and of places that hold no token at all: tokens are numbered from 0.
PADDING, NOTHING = -1, -2


class Pass:
    """One pass over T tokens: every operator along the tokens goes through it, under a key of its own.

    rows       the batch shape (...) of tokens (..., T); without it and `length` = T, a pass without cache and
               labels serves any tokens
    documents  integers (..., T), not falling along a row: no operator looks into another document. None goes
               on with the document of the last cached token, tokens that never had one count as document 0
    valid      bool (..., T): False is padding, which no token reads
    """

    def __init__(
        self,
        cache: Cache | None = None,
        rows: tuple[int, ...] = (),
        length: int = 0,
        documents: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        self.cache = cache
        # The position of the first token.
        self.start = 0 if cache is None else cache.length
        self.length = length
        self.documents = self._labelled(rows, documents, valid)
        self.added: dict[Hashable, tuple[Tail | Ring, tuple[Tensor, ...]]] = {}

    def short_conv(
        self,
        key: Hashable,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        copies: int = 1,
    ) -> Tensor:
        """`short_conv` along the tokens of x (..., T, m), the inputs before the first from the cache.

        With `copies` every channel is filtered that many times, with taps of its own: weight (m copies, K).
        """
        # Under autocast x may be half precision and the parameters are not.
        weight = weight.to(x.dtype)
        bias = None if bias is None else bias.to(x.dtype)
        taps = weight.shape[1]
        earlier = self._earlier(key, taps - 1)
        state = None if earlier is None else self._same_document(earlier[0], x, taps - 1)
        self._keep(key, Tail("convolution", taps - 1, self._spare), (x,))
        if copies > 1:
            x = x.repeat_interleave(copies, -1)
            state = None if state is None else state.repeat_interleave(copies, -1)
        filtered: Tensor = short_conv(
            x, weight, bias, axis=-2, activation=activation, documents=self.documents, initial_state=state
        )
        return filtered

    def short_swa(
        self,
        key: Hashable,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        window: int,
        window_type: str = "strict",
        lookback: int = 1,
    ) -> Tensor:
        """`short_swa` along the tokens of q (..., H, T, D), k and v (..., H_kv, T, ·), positions applied."""
        if window_type == "chunk" and self.documents is not None:
            apart: Tensor = self._chunks_by_document(key, q, k, v, window, lookback)
            return apart
        if window_type == "chunk":
            # The keys handed over start at the border of a chunk, so that chunks stay where they are.
            reach = (lookback + 1) * window
            count = self.start - max(0, (self.start // window - lookback) * window)
        else:
            reach, count = window, window - 1
        earlier = self._earlier(key, count)
        self._keep(key, Ring("window", reach, self._spare), (k, v))
        if earlier is not None:
            k, v = (torch.cat([old, new], -2) for old, new in zip(earlier, (k, v), strict=True))
        documents = self._documents_of(k.shape[-2])
        grouped = q.shape[-3] != k.shape[-3]
        read: Tensor = short_swa(
            q, k, v, window=window, axis=-2, window_type=window_type, lookback=lookback,
            documents=None if documents is None else documents[..., None, :],
            head_axis=-3 if grouped else None, query_start=k.shape[-2] - q.shape[-2],
        )  # fmt: skip
        return read

    # How far tokens move apart depends on the labels: a graph of torch.compile ends here and another begins.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _chunks_by_document(
        self, key: Hashable, q: Tensor, k: Tensor, v: Tensor, window: int, lookback: int
    ) -> Tensor:
        """Chunks that begin with every document, as they do when it stands alone: tokens are moved apart
        until each document begins at the border of a chunk, read, and moved back.

        A document takes whole chunks, so many that are much shorter than a chunk cost a chunk each.
        """
        earlier = self._earlier(key, (lookback + 1) * window - 1)
        self._keep(key, Ring("window", (lookback + 1) * window, self._spare), (k, v))
        length = q.shape[-2]
        if earlier is not None:
            k, v = (torch.cat([old, new], -2) for old, new in zip(earlier, (k, v), strict=True))
            q = F.pad(q, (0, 0, k.shape[-2] - length, 0))
        documents, places = self._apart(k.shape[-2], window)
        index = places[..., None, :, None]
        size = int(places.max()) + 1

        def moved(x: Tensor) -> Tensor:
            room = x.new_zeros((*x.shape[:-2], size, x.shape[-1]))
            return room.scatter(-2, index.expand(x.shape), x)

        labels = documents.new_full((*documents.shape[:-1], size), NOTHING).scatter(-1, places, documents)
        z: Tensor = short_swa(
            moved(q), moved(k), moved(v), window=window, axis=-2, window_type="chunk", lookback=lookback,
            documents=labels[..., None, :], head_axis=-3 if q.shape[-3] != k.shape[-3] else None,
        )  # fmt: skip
        index = index[..., -length:, :].expand(*z.shape[:-2], length, z.shape[-1])
        return z.gather(-2, index)

    def _apart(self, count: int, window: int) -> tuple[Tensor, Tensor]:
        """The documents of the last `count` tokens, and places for them, in order, such that a document
        begins at a multiple of `window`."""
        documents = self._documents_of(self.start + self.length)
        assert documents is not None
        index = torch.arange(documents.shape[-1], device=documents.device).expand(documents.shape)
        begins = F.pad(documents[..., 1:] != documents[..., :-1], (1, 0), value=True)
        within = index - torch.where(begins, index, 0).cummax(-1).values
        documents, within, begins = (x[..., -count:] for x in (documents, within, begins))
        # The first document may have begun before: whole chunks of it are left out.
        first = F.pad(begins[..., 1:], (1, 0)).cumsum(-1) == 0
        within = torch.where(first, within - within[..., :1] // window * window, within)
        ends = torch.where(begins[..., 1:], (within[..., :-1] // window + 1) * window, 0)
        return documents, within + F.pad(ends.cumsum(-1), (1, 0))

    def attention(self, key: Hashable, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Full causal attention of q, k, v (..., H, T, D) over all tokens so far, positions applied.

        Documents, and a cache in a call of several tokens, take a mask of T times all tokens.
        """
        earlier = self._earlier(key, self.start)
        self._keep(key, Tail("global", None, 0), (k, v))
        if earlier is not None:
            k, v = (torch.cat([old, new], -2) for old, new in zip(earlier, (k, v), strict=True))
        length, total = q.shape[-2], k.shape[-2]
        documents = self._documents_of(total)
        if documents is None and earlier is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if documents is None and length == 1:
            return F.scaled_dot_product_attention(q, k, v)
        i = torch.arange(total - length, total, device=q.device)
        visible = torch.arange(total, device=q.device) <= i[:, None]
        if documents is not None:
            mine = documents[..., total - length :]
            visible = visible & (mine[..., :, None] == documents[..., None, :])[..., None, :, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

    def apart(self) -> Pass:
        """A pass over the same tokens that neither reads nor fills the cache."""
        apart = Pass(length=self.length)
        apart.documents = self.documents
        return apart

    def finish(self, embedding: Tensor) -> None:
        """Enter what this pass over `embedding` (..., T, d) has added into its cache, if it has one."""
        if self.cache is not None:
            self.cache.extend(self.added, embedding, self._documents_of(self.start + self.length))

    @property
    def _spare(self) -> int:
        return 0 if self.cache is None else self.cache.rollback

    def _earlier(self, key: Hashable, count: int) -> tuple[Tensor, ...] | None:
        if self.cache is None or count == 0 or key not in self.cache.stores:
            return None
        earlier = self.cache.stores[key].last(count)
        return earlier if earlier[0].shape[-2] else None

    def _keep(self, key: Hashable, store: Tail | Ring, new: tuple[Tensor, ...]) -> None:
        if self.cache is not None:
            self.added[key] = store, tuple(x.detach() for x in new)

    def _same_document(self, earlier: Tensor, x: Tensor, count: int) -> Tensor:
        """The inputs before the first as a state of `count` entries: zeros where there is none, or where it
        belongs to another document."""
        held = earlier.shape[-2]
        documents = self._documents_of(self.start + self.length)
        if documents is not None:
            mine = documents[..., self.start : self.start + 1]
            same = documents[..., self.start - held : self.start] == mine
            earlier = torch.where(same[..., None], earlier, 0)
        return F.pad(earlier, (0, 0, count - held, 0))

    def _documents_of(self, count: int) -> Tensor | None:
        """The documents of the last `count` tokens, those of this pass included."""
        if self.documents is None:
            return None
        before = count - self.length
        if before <= 0 or self.cache is None:
            return self.documents
        earlier = self.cache.documents
        if earlier is None:
            earlier = self.documents.new_zeros((*self.documents.shape[:-1], self.start))
        return torch.cat([earlier[..., self.start - before :], self.documents], -1)

    def _labelled(
        self, rows: tuple[int, ...], documents: Tensor | None, valid: Tensor | None
    ) -> Tensor | None:
        shape = (*rows, self.length)
        for name, x in (("documents", documents), ("valid", valid)):
            if x is not None and not isinstance(x, Tensor):
                raise TypeError(f"{name} must be a tensor of shape {shape}; got {type(x).__name__}.")
            if x is not None and tuple(x.shape) != shape:
                raise ValueError(f"{name} must have the shape of the tokens, {shape}; got {tuple(x.shape)}.")
        if documents is not None and documents.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"documents must be int32 or int64; got {documents.dtype}.")
        if valid is not None and valid.dtype != torch.bool:
            raise TypeError(f"valid must be bool; got {valid.dtype}.")
        labels = None if self.cache is None else self.cache.documents
        last = None if labels is None or not labels.shape[-1] else labels[..., -1:]
        if documents is None and last is not None:
            # A row that was padding so far begins here, with document 0.
            documents = last.clamp(min=0).expand(shape)
        # A graph that is being traced has no values to look at.
        if not torch.compiler.is_compiling():
            self._check_labels(documents, valid, last)
        if valid is None:
            return documents
        if documents is None:
            documents = torch.zeros(shape, dtype=torch.int64, device=valid.device)
        return torch.where(valid, documents, PADDING)

    def _check_labels(self, documents: Tensor | None, valid: Tensor | None, last: Tensor | None) -> None:
        """Documents from 0, in order, where tokens are valid; padding on the left of a row that goes on.
        `last` is what the cache ends with, if its tokens have documents."""
        if documents is not None:
            # How padding is labelled does not matter.
            real = torch.ones_like(documents, dtype=torch.bool) if valid is None else valid
            labels = documents.masked_fill(~real, PADDING)
            if bool((real & (labels < 0)).any()):
                raise ValueError(f"documents must be numbered from 0; got {int(documents[real].min())}.")
            if bool((real & (labels < labels.cummax(-1).values)).any()):
                raise ValueError(
                    "documents must not fall along a row: each is in one piece; got one that does."
                )
            if last is not None and bool((real & (labels < last)).any()):
                raise ValueError("documents must not fall below those in the cache; got a row that does.")
        if valid is not None and self.cache is not None:
            begun = torch.full_like(valid[..., :1], self.start > 0) if last is None else last != PADDING
            if bool((torch.cat([begun, valid[..., :-1]], -1) & ~valid).any()):
                raise ValueError(
                    "valid must pad on the left when there is a cache; got padding after a token."
                )
