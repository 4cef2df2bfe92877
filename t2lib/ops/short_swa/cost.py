"""FLOPs and bytes of short_swa in closed form, from shapes alone. One multiply-add is 2 FLOPs.

Counted are the matrix products, the part that grows with the width. The softmax adds a few operations for
every visible pair, and is left out.
"""

from __future__ import annotations

from t2lib.ops._contract import check_choice, check_integer

__all__ = [
    "chunk_pairs",
    "forward_bytes",
    "forward_flops",
    "kernel_bytes",
    "pairs",
    "re_read_factor",
    "tri",
]


def tri(n: int, k: int) -> int:
    """Visible pairs of n positions with a strict window of k: the sum of min(k, i) for i = 1 ... n.

    tri(n, k) = n·k - k(k - 1)/2 for n >= k, and n(n + 1)/2 otherwise.
    """
    n, k = check_integer("n", n, 0), check_integer("k", k, 1)
    return n * k - k * (k - 1) // 2 if n >= k else n * (n + 1) // 2


def chunk_pairs(n: int, chunk: int, lookback: int) -> int:
    """Visible pairs of n positions in chunks: in `lookback` chunks before, and in the own up to oneself."""
    n, chunk = check_integer("n", n, 0), check_integer("chunk", chunk, 1)
    lookback = check_integer("lookback", lookback, 0)
    whole, rest = divmod(n, chunk)
    own = whole * tri(chunk, chunk) + tri(rest, chunk)
    # Chunk c = 0, 1, ... looks back on min(c, lookback) whole chunks, from each of its positions.
    before = tri(whole - 1, lookback) if whole > 1 and lookback else 0
    return own + chunk * (chunk * before + rest * min(whole, lookback))


def pairs(
    n_q: int, window: int, *, window_type: str = "strict", lookback: int = 1, query_start: int = 0
) -> int:
    """Visible pairs of the n_q queries at the positions query_start, query_start + 1, ..., for one head."""
    check_choice("window_type", window_type, ("strict", "chunk"))
    n_q, start = check_integer("n_q", n_q, 1), check_integer("query_start", query_start, 0)
    if window_type == "chunk":
        return chunk_pairs(start + n_q, window, lookback) - chunk_pairs(start, window, lookback)
    return tri(start + n_q, window) - tri(start, window)


def forward_flops(
    n_q: int,
    window: int,
    width: int,
    *,
    value_width: int | None = None,
    sequences: int = 1,
    window_type: str = "strict",
    lookback: int = 1,
    query_start: int = 0,
) -> int:
    """FLOPs of the scores and of the weighted sums: 2 · pairs · (D + D_v) for each independent sequence.

    `sequences` counts everything but the ordered axis and the width: batch · heads on the tokens,
    batch · tokens · heads on the layers. The blocks of `arrays` and `eager` do up to twice as much.
    """
    width = check_integer("width", width, 1)
    value_width = width if value_width is None else check_integer("value_width", value_width, 1)
    seen = pairs(n_q, window, window_type=window_type, lookback=lookback, query_start=query_start)
    return 2 * seen * (width + value_width) * check_integer("sequences", sequences, 1)


def forward_bytes(
    n_q: int,
    window: int,
    width: int,
    *,
    itemsize: int,
    block: int,
    value_width: int | None = None,
    sequences: int = 1,
    group: int = 1,
    query_start: int = 0,
) -> int:
    """Bytes a strict window moves: q and the result once, k and v once for each block that sees them.

    `block` is the number of queries that share one load of their keys: 64 in `arrays` and `eager`; 1 for a
    read over depth, where a level does not exist before the one below it is done. `group` query heads share
    a key head.
    """
    n_q, window = check_integer("n_q", n_q, 1), check_integer("window", window, 1)
    width, block = check_integer("width", width, 1), check_integer("block", block, 1)
    value_width = width if value_width is None else check_integer("value_width", value_width, 1)
    sequences, group = check_integer("sequences", sequences, 1), check_integer("group", group, 1)
    start = check_integer("query_start", query_start, 0)
    loads = sum(
        min(begin + block, start + n_q) - max(0, begin - window + 1)
        for begin in range(start, start + n_q, block)
    )
    elements = sequences * (n_q + loads / group) * (width + value_width)
    return int(elements * check_integer("itemsize", itemsize, 1))


def kernel_bytes(
    n_q: int,
    window: int,
    width: int,
    *,
    itemsize: int,
    value_width: int | None = None,
    sequences: int = 1,
    group: int = 1,
    query_start: int = 0,
    window_type: str = "strict",
    lookback: int = 1,
    labels: int = 0,
) -> tuple[int, int]:
    """Bytes that the kernels touch, forward and backward; what a launch reads again counts once.

    Forward q and the result, the keys and values that a query sees, and a float32 a row, its log-sum. The
    backward pass is two launches: for dq it reads q, the result, its gradient, keys, values and log-sums, and
    writes dq and a float32 a row; for dk and dv it reads all of these but the result, and writes both.
    `labels` bytes of documents and padding are read by each.
    """
    n_q, window = check_integer("n_q", n_q, 1), check_integer("window", window, 1)
    check_choice("window_type", window_type, ("strict", "chunk"))
    value_width = width if value_width is None else check_integer("value_width", value_width, 1)
    sequences, group = check_integer("sequences", sequences, 1), check_integer("group", group, 1)
    start = check_integer("query_start", query_start, 0)
    first = start - window + 1 if window_type == "strict" else (start // window - lookback) * window
    rows, key_rows = n_q * sequences, (start + n_q) * (sequences // group)
    seen_rows = (start + n_q - max(0, first)) * (sequences // group)
    both = (width + value_width) * itemsize
    forward = rows * (both + 4) + seen_rows * both
    dq = rows * (2 * width + 2 * value_width) * itemsize + rows * 8 + seen_rows * both
    dkv = rows * (both + 8) + 2 * key_rows * both
    return forward + labels, dq + dkv + 2 * labels


def re_read_factor(window: int, block: int) -> float:
    """How often a key is loaded when `block` queries share a load: 1 + (w - 1)/block, far from the ends.

    About 2 for block = w on the tokens; w for block = 1, a read over depth.
    """
    return 1 + (check_integer("window", window, 1) - 1) / check_integer("block", block, 1)
