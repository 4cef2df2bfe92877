"""What earlier tokens leave behind, and the pass over the tokens that follow them.

A decoder that has read n tokens goes on without reading them again if every operator along the tokens finds
what it needs of them. Three kinds of store hold that, one a place in the model:

    "global"        keys and values of full attention: all n of them
    "window"        keys and values of ShortSWA, after rotary positions, in a ring of slots: token t lies in
                    slot t mod size, and overwrites the token that no later query can see
    "convolution"   the last K - 1 inputs of a short convolution

The last two do not grow with n. Operators reach the stores through a `t2lib.token_pass.Pass`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from t2lib.ops._checks import check_integer


class Tail:
    """The last entries along the tokens, oldest first: `needed` of them (None: all) and `spare` more.

    Entries are tensors (..., n, m) of one length n; they are replaced, never changed.
    """

    def __init__(self, kind: str, needed: int | None, spare: int) -> None:
        self.kind, self.needed = kind, needed
        self.size = None if needed is None else needed + spare
        self.entries: tuple[Tensor, ...] = ()

    @property
    def held(self) -> int:
        return self.entries[0].shape[-2] if self.entries else 0

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.entries

    def last(self, count: int) -> tuple[Tensor, ...]:
        """The newest `count` entries, oldest first, or all that there are."""
        skipped = max(0, self.held - count)
        return tuple(x[..., skipped:, :] for x in self.entries)

    def append(self, new: tuple[Tensor, ...]) -> None:
        joined = new
        if self.entries:
            joined = tuple(torch.cat([old, x], -2) for old, x in zip(self.entries, new, strict=True))
        surplus = 0 if self.size is None else max(0, joined[0].shape[-2] - self.size)
        # A copy: a view would keep the whole input alive for the sake of the last few entries.
        self.entries = tuple(x[..., surplus:, :].clone() for x in joined) if surplus else joined

    def drop(self, count: int) -> None:
        """Forget the newest `count` entries."""
        self.entries = tuple(x[..., : self.held - count, :] for x in self.entries)

    def reorder(self, rows: Tensor) -> None:
        self.entries = tuple(x.index_select(0, rows) for x in self.entries)

    def clone(self) -> Tail:
        copy = Tail(self.kind, self.needed, 0)
        copy.size, copy.entries = self.size, self.entries
        return copy


class Ring:
    """The last `size` entries along the tokens in slots (..., size, m): the entry of token t in slot t mod
    size, written over the one of token t - size."""

    def __init__(self, kind: str, needed: int, spare: int) -> None:
        self.kind, self.needed = kind, needed
        self.size = needed + spare
        self.held = self.seen = 0
        self.slots: tuple[Tensor, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.slots

    def last(self, count: int) -> tuple[Tensor, ...]:
        """The newest `count` entries, oldest first, or all that there are."""
        places = self._places(self.seen - min(count, self.held), self.seen)
        return tuple(x.index_select(-2, places) for x in self.slots)

    def append(self, new: tuple[Tensor, ...]) -> None:
        length = new[0].shape[-2]
        if not self.slots:
            self.slots = tuple(x.new_zeros((*x.shape[:-2], self.size, x.shape[-1])) for x in new)
        self.seen += length
        newest = min(length, self.size)
        places = self._places(self.seen - newest, self.seen)
        for slots, x in zip(self.slots, new, strict=True):
            slots.index_copy_(-2, places, x[..., length - newest :, :])
        self.held = min(self.size, self.held + length)

    def drop(self, count: int) -> None:
        """Forget the newest `count` entries."""
        self.seen, self.held = self.seen - count, self.held - count

    def reorder(self, rows: Tensor) -> None:
        self.slots = tuple(x.index_select(0, rows) for x in self.slots)

    def clone(self) -> Ring:
        copy = Ring(self.kind, self.needed, 0)
        copy.size, copy.held, copy.seen = self.size, self.held, self.seen
        copy.slots = tuple(x.clone() for x in self.slots)
        return copy

    def _places(self, first: int, end: int) -> Tensor:
        device = self.slots[0].device if self.slots else None
        return torch.arange(first, end, device=device) % self.size


class Cache:
    """What a decoder keeps of the tokens that it has read: `cache = decoder.cache()`.

        logits = decoder(prompt, cache=cache)       # (B, n, vocabulary): prefill, in any number of calls
        logits = decoder(token, cache=cache)        # (B, 1, vocabulary): one more token

    A call reads the cache and then adds its tokens to it; one that raises leaves it as it was. `rollback` is
    how many tokens can be cut off again where a store does not hold everything: windows and convolutions then
    keep as many entries more. What is kept is detached: no gradient reaches the tokens of an earlier call.

    Cost  2 d numbers a token and block for full attention; 2 (w + rollback) H_kv D a block for ShortSWA and
          (K - 1 + rollback) m a convolution of m channels, whatever the length. `sizes()` counts them.
    """

    def __init__(self, owner: Any, rollback: int = 0) -> None:
        self.owner = owner
        self.rollback = check_integer("rollback", rollback, 0)
        self.length = 0
        self.rows: tuple[int, ...] = ()
        self.dtype: torch.dtype | None = None
        self.device: torch.device | None = None
        # Documents of all tokens (..., length), or None while there is only one.
        self.documents: Tensor | None = None
        self.stores: dict[Hashable, Tail | Ring] = {}

    def sizes(self) -> dict[str, int]:
        """Bytes by kind of store: "global", "window", "convolution", as far as the model has them."""
        sizes: Counter[str] = Counter()
        for store in self.stores.values():
            sizes[store.kind] += sum(x.numel() * x.element_size() for x in store.tensors)
        return dict(sizes)

    def clone(self) -> Cache:
        """A cache of its own with the same content."""
        copy = Cache(self.owner, self.rollback)
        copy.__dict__.update(self.__dict__)
        copy.stores = {key: store.clone() for key, store in self.stores.items()}
        return copy

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens.

        A ValueError if a window or a convolution no longer holds what it held then: see `rollback`.
        """
        if check_integer("length", length, 0) > self.length:
            raise ValueError(f"length must be at most the {self.length} tokens of the cache; got {length}.")
        dropped = self.length - length
        for store in self.stores.values():
            wanted = length if store.needed is None else min(store.needed, length)
            if store.held - dropped < wanted:
                raise ValueError(
                    f"length must leave the {wanted} entries that a {store.kind} store needs, which a cache "
                    f"of rollback={self.rollback} does not hold after cutting {dropped} tokens; got {length}."
                )
        for store in self.stores.values():
            store.drop(dropped)
        self.length = length
        if self.documents is not None:
            self.documents = self.documents[..., :length]

    def reorder(self, rows: Any) -> None:
        """Let row b of the batch go on from row rows[b], as beam search does; rows may repeat."""
        index = torch.as_tensor(rows, device=self.device)
        if not self.rows:
            raise ValueError("rows need a cache of a batch (B, T); got one that holds no batch.")
        batch = self.rows[0]
        if index.ndim != 1 or index.dtype not in (torch.int32, torch.int64) or not len(index):
            raise ValueError(f"rows must be a list of integers; got {rows!r}.")
        if int(index.min()) < 0 or int(index.max()) >= batch:
            raise ValueError(f"rows must lie in 0..{batch - 1}; got {index.tolist()}.")
        for store in self.stores.values():
            store.reorder(index)
        if self.documents is not None:
            self.documents = self.documents.index_select(0, index)
        self.rows = (len(index), *self.rows[1:])

    def check(self, owner: Any, rows: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        """One sentence if a call of this model, batch, dtype or device cannot go on from here."""
        if self.owner is not owner:
            mine, its = type(owner).__name__, type(self.owner).__name__
            raise ValueError(f"cache must come from this {mine}'s own cache(); got one of another {its}.")
        if self.dtype is None:
            return
        if rows != self.rows:
            raise ValueError(f"tokens must have the batch of the cache, {self.rows}; got {rows}.")
        if dtype != self.dtype:
            raise TypeError(f"cache must have the dtype of the model, {dtype}; got {self.dtype}.")
        if device != self.device:
            raise ValueError(f"cache must be on the device of the tokens, {device}; got {self.device}.")
