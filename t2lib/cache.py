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

import numbers
from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2lib.ops._checks import check_integer


class Tail:
    """The last entries along the tokens, oldest first: `needed` of them (None: all) and `spare` more.

    Entries are tensors (..., n, m) of one length n. A store is never changed; a change makes a new one.
    """

    def __init__(self, kind: str, needed: int | None, spare: int, entries: tuple[Tensor, ...] = ()) -> None:
        self.kind, self.needed, self.spare, self.entries = kind, needed, spare, entries

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

    def extended(self, new: tuple[Tensor, ...]) -> Tail:
        joined = new
        if self.entries:
            joined = tuple(torch.cat([old, x], -2) for old, x in zip(self.entries, new, strict=True))
        size = None if self.needed is None else self.needed + self.spare
        surplus = 0 if size is None else max(0, joined[0].shape[-2] - size)
        return self._with(tuple(_own(x[..., surplus:, :]) for x in joined))

    def shortened(self, count: int) -> Tail:
        """Without the newest `count` entries."""
        kept = max(0, self.held - count)
        return self._with(tuple(_own(x[..., :kept, :]) for x in self.entries))

    def reordered(self, rows: Tensor) -> Tail:
        return self._with(tuple(x.index_select(0, rows) for x in self.entries))

    def _with(self, entries: tuple[Tensor, ...]) -> Tail:
        return Tail(self.kind, self.needed, self.spare, entries)


class Ring:
    """The last `needed + spare` entries along the tokens in as many slots (..., size, m): the entry of token
    t in slot t mod size, written over the one of token t - size. Never changed either."""

    def __init__(
        self,
        kind: str,
        needed: int,
        spare: int,
        slots: tuple[Tensor, ...] = (),
        seen: int = 0,
        held: int = 0,
    ) -> None:
        self.kind, self.needed, self.spare = kind, needed, spare
        self.size = needed + spare
        self.slots, self.seen, self.held = slots, seen, held

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.slots

    def last(self, count: int) -> tuple[Tensor, ...]:
        """The newest `count` entries, oldest first, or all that there are."""
        if not self.slots:
            return ()
        places = self._places(self.seen - min(count, self.held), self.seen, self.slots[0])
        return tuple(x.index_select(-2, places) for x in self.slots)

    def extended(self, new: tuple[Tensor, ...]) -> Ring:
        length = new[0].shape[-2]
        slots = self.slots or tuple(x.new_zeros((*x.shape[:-2], self.size, x.shape[-1])) for x in new)
        seen, newest = self.seen + length, min(length, self.size)
        places = self._places(seen - newest, seen, new[0])
        slots = tuple(
            old.index_copy(-2, places, x[..., length - newest :, :])
            for old, x in zip(slots, new, strict=True)
        )
        return self._with(slots, seen, min(self.size, self.held + length))

    def shortened(self, count: int) -> Ring:
        """Without the newest `count` entries."""
        return self._with(self.slots, self.seen - count, max(0, self.held - count))

    def reordered(self, rows: Tensor) -> Ring:
        return self._with(tuple(x.index_select(0, rows) for x in self.slots), self.seen, self.held)

    def _places(self, first: int, end: int, like: Tensor) -> Tensor:
        return torch.arange(first, end, device=like.device) % self.size

    def _with(self, slots: tuple[Tensor, ...], seen: int, held: int) -> Ring:
        return Ring(self.kind, self.needed, self.spare, slots, seen, held)


def _integers(rows: Any) -> bool:
    if isinstance(rows, (list, tuple)):
        counted = all(isinstance(row, numbers.Integral) and not isinstance(row, bool) for row in rows)
        return counted and len(rows) > 0
    if isinstance(rows, np.ndarray):
        return rows.ndim == 1 and rows.dtype in (np.int32, np.int64) and len(rows) > 0
    return (
        isinstance(rows, Tensor)
        and rows.ndim == 1
        and rows.dtype in (torch.int32, torch.int64)
        and len(rows) > 0
    )


def _own(x: Tensor) -> Tensor:
    """x, or a copy where it is part of something larger, which would stay alive for its sake."""
    # A graph that is being traced knows no storages.
    whole = not torch.compiler.is_compiling() and x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return x if whole else x.clone()


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
        """Bytes by kind of store: "global", "window", "convolution", as far as the model has them, and
        "documents" once a token had one."""
        sizes: Counter[str] = Counter()
        for store in self.stores.values():
            sizes[store.kind] += sum(x.numel() * x.element_size() for x in store.tensors)
        if self.documents is not None:
            sizes["documents"] = self.documents.numel() * self.documents.element_size()
        return dict(sizes)

    def clone(self) -> Cache:
        """A cache of its own with the same content."""
        copy = Cache(self.owner, self.rollback)
        copy.__dict__.update(self.__dict__)
        return copy

    def __deepcopy__(self, memo: Any) -> Cache:
        # The owner is no part of the cache; a copy of it would be another model.
        return self.clone()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a cache belongs to a decoder in memory and cannot be saved; save the tokens instead."
        )

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens.

        A ValueError if a window or a convolution no longer holds what it held then: see `rollback`.
        """
        if check_integer("length", length, 0) > self.length:
            raise ValueError(f"length must be at most the {self.length} tokens of the cache; got {length}.")
        if not length:
            self._replace(**vars(Cache(self.owner, self.rollback)))
            return
        dropped = self.length - length
        for store in self.stores.values():
            wanted = length if store.needed is None else min(store.needed, length)
            if wanted and store.held - dropped < wanted:
                raise ValueError(
                    f"length must leave the {wanted} entries that a {store.kind} store needs, which a cache "
                    f"of rollback={self.rollback} does not hold after cutting {dropped} tokens; got {length}."
                )
        documents = None if self.documents is None else _own(self.documents[..., :length])
        stores = {key: store.shortened(dropped) for key, store in self.stores.items()}
        self._replace(stores=stores, length=length, documents=documents)

    def reorder(self, rows: Any) -> None:
        """Let row b of the batch go on from row rows[b], as beam search does; rows may repeat."""
        if not self.rows:
            raise ValueError("rows need a cache of a batch (B, T); got one that holds no batch.")
        if not _integers(rows):
            takes = "a list, an array or a tensor of integers, one a row"
            raise TypeError(f"rows must be {takes}; got {rows!r}.")
        index, batch = torch.as_tensor(rows, device=self.device), self.rows[0]
        if int(index.min()) < 0 or int(index.max()) >= batch:
            raise ValueError(f"rows must lie in 0..{batch - 1}; got {index.tolist()}.")
        stores = {key: store.reordered(index) for key, store in self.stores.items()}
        documents = None if self.documents is None else self.documents.index_select(0, index)
        self._replace(stores=stores, documents=documents, rows=(len(index), *self.rows[1:]))

    def extend(
        self,
        added: dict[Hashable, tuple[Tail | Ring, tuple[Tensor, ...]]],
        embedding: Tensor,
        documents: Tensor | None,
    ) -> None:
        """Enter what a pass over `embedding` (..., T, d) has added, all of it or nothing: by key, an empty
        store for a key that is new, and the entries. `documents` are those of all tokens."""
        stores = dict(self.stores)
        for key, (empty, new) in added.items():
            stores[key] = stores.get(key, empty).extended(new)
        self._replace(
            stores=stores,
            length=self.length + embedding.shape[-2],
            documents=documents,
            rows=tuple(embedding.shape[:-2]),
            dtype=computing(embedding.dtype, embedding.device),
            device=embedding.device,
        )

    def _replace(self, **changes: Any) -> None:
        self.__dict__.update(changes)

    def check(self, owner: Any, rows: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        """One sentence if a call of this model, batch, dtype or device cannot go on from here."""
        if self.owner is not owner:
            mine, its = type(owner).__name__, type(self.owner).__name__
            raise ValueError(f"cache must come from this {mine}'s own cache(); got one of another {its}.")
        if not self.length:
            return
        dtype = computing(dtype, device)
        if rows != self.rows:
            raise ValueError(f"tokens must have the batch of the cache, {self.rows}; got {rows}.")
        if dtype != self.dtype:
            raise TypeError(
                f"cache must have the dtype in which the model computes, {dtype}; got {self.dtype}."
            )
        if device != self.device:
            raise ValueError(f"cache must be on the device of the tokens, {device}; got {self.device}.")


def computing(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which a model of `dtype` puts out keys and values: that of autocast inside of it."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
