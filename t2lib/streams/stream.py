"""What every residual stream offers: start, read, write, finish, one sublayer after the other.

    state = stream.start(embedding)
    for i, sublayer in enumerate(sublayers):                # attention, MLP, attention, MLP, ...
        state = stream.write(state, i, sublayer(stream.read(state, i)))
    out = stream.finish(state)

A state is never changed: `write` returns a new one, so a state can be kept, read again or written twice.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2lib.ops._checks import check_integer
from t2lib.streams.cost import Cost
from t2lib.token_pass import Pass

Read = Tensor | dict[str, Tensor]
X = ("x",)


class State(NamedTuple):
    """Where one pass through the depth stands. Only its stream knows what `content` means."""

    stream: Stream
    place: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    content: Any


class Stream(nn.Module, ABC):
    """A residual stream over 2L sublayers, numbered 0 ... 2L - 1, attention even and MLP odd.

    A design fills in `_start`, `_read`, `_write` and `_finish`, which pass its `content` on; what is checked
    is checked here. It wraps every coefficient that it computes from the states in `held`.

    Shapes  embedding, branch outputs y, reads, finish: (..., T, width)
    Errors  TypeError or ValueError in one sentence; the state stays as it was
    """

    # Whether an untrained decoder computes what the plain one does with the same weights.
    identity_at_start: bool = False
    # A weight of the mixing matrix: a "number", one a "channel", or a "matrix" (width, width). A design that
    # has no such matrix says why in words that follow "it".
    mixing: str = "number"
    # Whether `write` needs the normalised read of its sublayer.
    needs_normed: bool = False

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.width = check_integer("width", width, 1)
        self.blocks = check_integer("blocks", blocks, 1)
        self._holding = False

    @property
    def sublayers(self) -> int:
        return 2 * self.blocks

    def initialise(self) -> None:
        """Set every parameter to its value at the start of training."""

    def ways(self, i: int) -> tuple[str, ...]:
        """What sublayer i reads, by name: ("x",), or for attention query, key, value, maybe residual."""
        return X

    def start(self, embedding: Tensor, tokens: Pass | None = None) -> State:
        """The state before sublayer 0. Designs that mix tokens do it through the pass `tokens`."""
        if tokens is not None and not isinstance(tokens, Pass):
            raise TypeError(f"tokens must be a t2lib.token_pass.Pass, or None; got {type(tokens).__name__}.")
        if not isinstance(embedding, Tensor) or not embedding.is_floating_point():
            got = embedding.dtype if isinstance(embedding, Tensor) else type(embedding).__name__
            raise TypeError(f"embedding must be a floating tensor (..., T, {self.width}); got {got}.")
        if embedding.ndim < 2 or embedding.shape[-1] != self.width or 0 in embedding.shape:
            takes = f"shape (..., T, {self.width}) with nothing empty"
            raise ValueError(f"embedding must have {takes}; got {tuple(embedding.shape)}.")
        if tokens is not None and tokens.length not in (0, embedding.shape[-2]):
            raise ValueError(
                f"tokens must be a pass over the {embedding.shape[-2]} tokens of the embedding; "
                f"got one over {tokens.length}."
            )
        shape, content = tuple(embedding.shape), self._start(embedding, tokens or Pass())
        return State(self, 0, shape, embedding.dtype, embedding.device, content)

    def read(self, state: State, i: int) -> Read:
        """What sublayer i reads, before its norm: one tensor, or a tensor a way."""
        self._check(state, i)
        return self._read(state.content, i)

    def write(self, state: State, i: int, y: Tensor, normed: Any = None) -> State:
        """The state after sublayer i put out y; `normed` is what its norm made of the read."""
        self._check(state, i)
        if not isinstance(y, Tensor):
            raise TypeError(f"y must be a tensor of shape {state.shape}; got {type(y).__name__}.")
        if tuple(y.shape) != state.shape:
            raise ValueError(f"y must have the shape of the embedding, {state.shape}; got {tuple(y.shape)}.")
        if y.dtype != state.dtype:
            raise TypeError(f"y must have the dtype of the embedding, {state.dtype}; got {y.dtype}.")
        if y.device != state.device:
            raise ValueError(f"y must be on the device of the embedding, {state.device}; got {y.device}.")
        if self.needs_normed:
            self._check_normed(state, i, normed)
        return state._replace(place=i + 1, content=self._write(state.content, i, y, normed))

    def finish(self, state: State) -> Tensor:
        """What the final norm reads, once all sublayers have written."""
        self._check_owner(state)
        if state.place != self.sublayers:
            takes = f"all {self.sublayers} sublayers written before finish"
            raise ValueError(f"state must have {takes}; got {state.place}.")
        return self._finish(state.content, state.place)

    def level(self, state: State) -> Tensor:
        """What `finish` would return if the decoder ended here: one level of the hidden-state stack.

        In the middle of a block, designs whose unit is the block give what its MLP reads;
        DeepCrossAttention gives the read of the output over what there is.
        """
        self._check_owner(state)
        return self._finish(state.content, state.place)

    def mixing_matrix(
        self,
        embedding: Tensor,
        branch_outputs: Sequence[Tensor] | Tensor,
        normed: Sequence[Any] | None = None,
    ) -> Read:
        """The realised depth-mixing matrix of one pass: see `t2lib.streams.mixing.mixing_matrix`."""
        from t2lib.streams.mixing import mixing_matrix

        return mixing_matrix(self, embedding, branch_outputs, normed)

    @abstractmethod
    def cost(self) -> Cost:
        """What the stream costs a token over the whole depth: see `t2lib.streams.cost.Cost`."""

    def held(self, coefficient: Tensor) -> Tensor:
        """The coefficient; while the mixing matrix is taken, as a constant."""
        return coefficient.detach() if self._holding else coefficient

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Inside, reads are linear in the embedding and the branch outputs: coefficients are constants."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    @abstractmethod
    def _start(self, embedding: Tensor, tokens: Pass) -> Any: ...

    @abstractmethod
    def _read(self, content: Any, i: int) -> Read: ...

    @abstractmethod
    def _write(self, content: Any, i: int, y: Tensor, normed: Any) -> Any: ...

    @abstractmethod
    def _finish(self, content: Any, place: int) -> Tensor: ...

    def _check_owner(self, state: State) -> None:
        if not isinstance(state, State):
            raise TypeError(f"state must be what start or write returned; got {type(state).__name__}.")
        if state.stream is not self:
            raise ValueError(
                f"state must come from this {type(self).__name__}; got one of another stream, "
                f"{type(state.stream).__name__}."
            )

    def _check(self, state: State, i: int) -> None:
        self._check_owner(state)
        if isinstance(i, bool) or not isinstance(i, numbers.Integral):
            raise TypeError(f"i must be an integer, {state.place} for this state; got {i!r}.")
        if state.place == self.sublayers:
            raise ValueError(f"state has all {self.sublayers} sublayers written, takes finish; got i={i}.")
        if i != state.place:
            raise ValueError(f"i must be {state.place}, the next sublayer of the state; got {i}.")

    def _check_normed(self, state: State, i: int, normed: Any) -> None:
        takes = f"normed must be the normalised read of sublayer {i}, {state.dtype} of shape {state.shape}"
        if not isinstance(normed, Tensor):
            raise TypeError(f"{takes}; got {normed if normed is None else type(normed).__name__}.")
        if tuple(normed.shape) != state.shape or normed.dtype != state.dtype:
            raise ValueError(f"{takes}; got {normed.dtype} of shape {tuple(normed.shape)}.")


@dataclass(frozen=True)
class Record:
    """One pass, sublayer by sublayer: what each read, before and after its norm, and what it put out.

    `levels` has one entry more than the others: what `finish` would return before sublayer 0, 1, ..., 2L.
    """

    embedding: Tensor
    levels: list[Tensor]
    reads: list[Read]
    normed: list[Any]
    branches: list[Tensor]

    @property
    def out(self) -> Tensor:
        return self.levels[-1]


def run(
    stream: Stream,
    embedding: Tensor,
    branches: Sequence[Callable[[Any], Tensor]],
    norms: Sequence[Callable[[Any], Any]] | None = None,
    tokens: Pass | None = None,
) -> Record:
    """Walk the stream with any branches, one a sublayer, each behind its norm if `norms` are given.

    Branch i gets `norms[i](read)`, without norms the read itself: a tensor, or a dict of one tensor a way.
    """
    if len(branches) != stream.sublayers:
        raise ValueError(f"branches must be {stream.sublayers}, one a sublayer; got {len(branches)}.")

    def step(i: int, read: Read) -> tuple[Any, Tensor]:
        normed = read if norms is None else norms[i](read)
        return normed, branches[i](normed)

    return record(stream, embedding, step, tokens)


def record(
    stream: Stream,
    embedding: Tensor,
    step: Callable[[int, Read], tuple[Any, Tensor]],
    tokens: Pass | None = None,
) -> Record:
    """Walk the stream with `step(i, read)`, which gives the normalised read and the output of sublayer i."""
    state = stream.start(embedding, tokens)
    seen = Record(embedding, [stream.level(state)], [], [], [])
    for i in range(stream.sublayers):
        read = stream.read(state, i)
        normed, y = step(i, read)
        state = stream.write(state, i, y, normed)
        seen.reads.append(read)
        seen.normed.append(normed)
        seen.branches.append(y)
        seen.levels.append(stream.level(state) if i + 1 < stream.sublayers else stream.finish(state))
    return seen


def every_way(read: Read | Mapping[str, Tensor], way: str) -> Tensor:
    """What a read holds in one way; a read of one tensor is the same in every way."""
    return read if isinstance(read, Tensor) else read[way]
