"""Checkers of chapter 1, the decoder as a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from t2lib.exercises import Exercise, Mistake, close, matches, register, same

Array = np.ndarray[Any, Any]
Part = Callable[[Array], Array]


# How many mebibytes does the stack take?

LEVELS, TOKENS, WIDTH = 24 + 1, 2048, 1024
MEBIBYTES = 2 * LEVELS * TOKENS * WIDTH / 2**20


def check_mebibytes(answer: Any) -> None:
    per_level = MEBIBYTES / LEVELS
    named = {
        24 * per_level: "24 blocks make 25 levels: the embedding is level 0 and counts",
        49 * per_level: "49 is the number of sublayer levels; the stack in blocks has 25",
        48 * per_level: "48 sublayers write, but the stack in blocks has 25 levels",
        MEBIBYTES / 2: "this counts one byte a number; bfloat16 takes two",
        2 * MEBIBYTES: "this counts four bytes a number; bfloat16 takes two",
        2 * LEVELS * TOKENS * WIDTH / 1e6: "this divides by a million; a mebibyte is 2^20 bytes",
        2 * LEVELS * TOKENS * WIDTH: "this is the number of bytes; divide by 2^20",
    }
    for value, sentence in named.items():
        if matches(answer, value, tolerance=1e-4):
            raise Mistake(sentence)
    if not matches(answer, MEBIBYTES):
        raise Mistake(f"{answer!r} is not it: multiply levels, tokens, width and bytes a number, all four")


# Which sublayer wrote this level?


def writer(k: int) -> tuple[int, str]:
    return (k - 1) // 2, "attention" if k % 2 == 1 else "mlp"


def check_writer(answer: Callable[[int], tuple[int, str]]) -> None:
    levels = range(1, 17)
    given = [tuple(answer(k)) for k in levels]
    if any(len(pair) != 2 for pair in given):
        raise Mistake(f"a pair is asked for, (block, name), got {given[0]}")
    wanted = [writer(k) for k in levels]
    blocks, names = [pair[0] for pair in given], [pair[1] for pair in given]
    if blocks == [block + 1 for block, _ in wanted]:
        raise Mistake("blocks count from 0: levels 1 and 2 are written by block 0")
    if blocks == [k // 2 for k in levels]:
        raise Mistake("level 2 is still written by block 0, its MLP; k // 2 gives block 1")
    if names == [name for _, name in map(writer, range(2, 18))]:
        raise Mistake("attention and MLP are exchanged: attention writes first, level 1 is U of block 0")
    for k, got, want in zip(levels, given, wanted, strict=True):
        same(list(got), list(want), f"the writer of sublayer level {k}")


# Which cells can change?


def reach(L: int, T: int, t: int) -> Array:
    cells = np.zeros((L + 1, T), dtype=bool)
    cells[0, t] = True
    cells[1:, t:] = True
    return cells


def check_reach(answer: Callable[[int, int, int], Any]) -> None:
    for L, T, t in ((2, 5, 2), (1, 4, 0), (3, 6, 5), (8, 22, 8)):
        got, want = np.asarray(answer(L, T, t)), reach(L, T, t)
        where = f" for L={L}, T={T}, t={t}"
        if got.shape == (L, T):
            raise Mistake(f"L blocks make L + 1 levels: expected shape {want.shape}, got {got.shape}{where}")
        if got.shape == (T, L + 1):
            raise Mistake(f"levels are the first axis, tokens the second: got shape {got.shape}{where}")
        if got.shape != want.shape:
            raise Mistake(f"the cells have shape {got.shape}, expected {want.shape}{where}")
        if not np.isin(got, (0, 1)).all():
            raise Mistake(f"each cell is True or False, got other values{where}")
        cells = got.astype(bool)
        if (cells[:, :t] & ~want[:, :t]).any():
            raise Mistake(f"tokens before t read nothing of token t: attention is causal{where}")
        if cells[0, t + 1 :].any():
            raise Mistake(f"level 0 is the embedding, before any mixing: only column t changes there{where}")
        if not cells[:, t].all():
            raise Mistake(f"the column of token t changes on every level, 0 and L included{where}")
        triangle = np.array([[t <= s <= t + level for s in range(T)] for level in range(L + 1)])
        if not np.array_equal(triangle, want) and np.array_equal(cells, triangle):
            raise Mistake(f"full attention does not move one token a block: it reaches any distance{where}")
        if not cells[1:, t:].all():
            raise Mistake(f"one block is enough: from level 1 on every later token has read token t{where}")
        same(cells.tolist(), want.tolist(), f"the cells{where}")


# One block of attention left: count the cells


def check_one_attention_left(answer: Any) -> None:
    named = {
        9: "this is the column of byte 4 alone; the last block still mixes",
        9 * 8: "this is the whole rectangle from byte 4 on; level 0 alone has only one changed cell",
        1 + 8 * 8: "this is the answer with all attention in place: only the last block mixes now",
        9 + 11: "the last block mixes into later bytes only, not into the four before",
        9 + 8: "byte 4 itself is already counted in its column: 7 bytes come after it, not 8",
        9 + 6: "bytes 5 to 11 are seven bytes",
        8 + 7: "the column has 9 cells: level 0 counts",
        9 + 2 * 7: "attention in the last block, block 7, changes level 8 only; level 7 is what it reads",
    }
    for value, sentence in named.items():
        if matches(answer, value):
            raise Mistake(sentence)
    if not matches(answer, 16):
        raise Mistake(f"{answer!r} is not it: draw the column first, then what the one attention adds")


# One pre-norm block


def pre_norm_block(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    u = h + attention(norm_1(h))
    return u + mlp(norm_2(u))


def _post_norm(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    u = norm_1(h + attention(h))
    return norm_2(u + mlp(u))


def _normalised_skip(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    x = norm_1(h)
    y = norm_2(x + attention(x))
    return y + mlp(y)


def _normalised_skip_of_mlp(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    y = norm_2(h + attention(norm_1(h)))
    return y + mlp(y)


def _parallel(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    return h + attention(norm_1(h)) + mlp(norm_2(h))


def _writes_to_h(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    return h + mlp(norm_2(h + attention(norm_1(h))))


def _norms_exchanged(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    return pre_norm_block(h, norm_2, attention, norm_1, mlp)


def _raw(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    u = h + attention(h)
    return u + mlp(u)


def _no_skip(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    return mlp(norm_2(attention(norm_1(h))))


def _no_mlp(h: Array, norm_1: Part, attention: Part, norm_2: Part, mlp: Part) -> Array:
    return h + attention(norm_1(h))


KNOWN_BLOCKS: dict[str, Callable[..., Array]] = {
    "this is post-norm: normalise what a branch reads, not the sum": _post_norm,
    "the skip path must not be normalised: add h itself, not its norm": _normalised_skip,
    "the skip path of the MLP must not be normalised: add u itself": _normalised_skip_of_mlp,
    "the MLP must read u, the stream after attention has written, not h": _parallel,
    "the MLP adds to u, not to h: here what attention wrote is lost": _writes_to_h,
    "the two norms are exchanged: norm_1 belongs to attention": _norms_exchanged,
    "the branches read the raw stream: normalise what they read": _raw,
    "nothing is added: each sublayer adds its output to the stream": _no_skip,
    "this is u, the state between the sublayers; the MLP is missing": _no_mlp,
}


def check_pre_norm_block(answer: Callable[..., Array]) -> None:
    rng = np.random.default_rng(1)
    width = 6
    weights = rng.standard_normal((2, width, width)) / width**0.5
    gains = rng.uniform(0.5, 1.5, (2, width))

    def norm(gain: Array) -> Part:
        return lambda x: x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)) * gain

    def attention(x: Array) -> Array:
        # A stand-in that mixes tokens causally: the mean of what came before.
        mean: Array = np.cumsum(x @ weights[0], axis=0) / np.arange(1, len(x) + 1)[:, None]
        return mean

    def mlp(x: Array) -> Array:
        return np.asarray(np.tanh(x @ weights[1]))

    for tokens in (4, 1):
        parts = (3 * rng.standard_normal((tokens, width)), norm(gains[0]), attention, norm(gains[1]), mlp)
        got = answer(*parts)
        for sentence, block in KNOWN_BLOCKS.items():
            if matches(got, block(*parts)):
                raise Mistake(sentence)
        close(got, pre_norm_block(*parts), "the new state", tolerance=1e-9)


def _triangle(L: int, T: int, t: int) -> Array:
    return np.array([[t <= s <= t + level for s in range(T)] for level in range(L + 1)])


def _whole_rows(L: int, T: int, t: int) -> Array:
    cells = reach(L, T, t)
    cells[1:] = True
    return cells


def _level_0_too(L: int, T: int, t: int) -> Array:
    cells = reach(L, T, t)
    cells[0, t:] = True
    return cells


register(
    Exercise(
        id="ch01.mebibytes",
        title="What it costs to keep the grid",
        checker=check_mebibytes,
        reference=100.0,
        why="25 levels of 4 MiB each; a decoder that keeps its stack pays this for every sequence.",
        wrong={
            "forgets the embedding": (96.0, "level 0 and counts"),
            "counts sublayers": (196.0, "sublayer levels"),
            "float32": (200.0, "four bytes"),
            "megabytes": (104.8576, "mebibyte"),
            "nonsense": (3.0, "all four"),
        },
    ),
    Exercise(
        id="ch01.writer",
        title="Who wrote this level?",
        checker=check_writer,
        reference=writer,
        why="odd levels are written by attention, even ones by an MLP, and level 0 by nobody.",
        wrong={
            "k // 2": (lambda k: (k // 2, writer(k)[1]), "still written by block 0"),
            "blocks from 1": (lambda k: (writer(k)[0] + 1, writer(k)[1]), "count from 0"),
            "names exchanged": (lambda k: (writer(k)[0], writer(k + 1)[1]), "exchanged"),
            "nonsense": (lambda k: (0, "mlp"), "expected"),
        },
    ),
    Exercise(
        id="ch01.reach",
        title="The cells that can change",
        checker=check_reach,
        reference=reach,
        why="not a triangle: full attention reaches every later token in a single block.",
        wrong={
            "a triangle": (_triangle, "reaches any distance"),
            "not causal": (_whole_rows, "attention is causal"),
            "level 0 mixes": (_level_0_too, "before any mixing"),
            "one level short": (lambda L, T, t: reach(L, T, t)[1:], "L blocks make L + 1 levels"),
            "axes exchanged": (lambda L, T, t: reach(L, T, t).T, "levels are the first axis"),
            "nothing": (lambda L, T, t: np.zeros((L + 1, T), bool), "the column of token t"),
        },
    ),
    Exercise(
        id="ch01.one_attention_left",
        title="One attention left",
        checker=check_one_attention_left,
        reference=16,
        why="9 cells of the column and 7 cells to its right on the last level.",
        wrong={
            "the column alone": (9, "the last block still mixes"),
            "all attention": (65, "only the last block"),
            "not causal": (20, "later bytes only"),
            "one level early": (23, "changes level 8 only"),
            "nonsense": (40, "draw the column"),
        },
    ),
    Exercise(
        id="ch01.pre_norm_block",
        title="One block from its parts",
        checker=check_pre_norm_block,
        reference=pre_norm_block,
        why="each branch reads a normalised copy, and the stream itself is only ever added to.",
        wrong={
            "post-norm": (_post_norm, "post-norm"),
            "normalised skip": (_normalised_skip, "must not be normalised"),
            "MLP reads h": (_parallel, "must read u"),
            "MLP adds to h": (_writes_to_h, "what attention wrote is lost"),
            "norms exchanged": (_norms_exchanged, "exchanged"),
            "nonsense": (lambda h, n1, a, n2, m: 2 * h, "expected"),
        },
    ),
)
