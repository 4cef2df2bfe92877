"""FLOPs and bytes of short_swa in closed form, from shapes alone. One multiply-add is 2 FLOPs.

Counted are the matrix products, the part that grows with the width. The softmax adds a few operations for
every visible pair, and is left out.
"""

from __future__ import annotations

from t2lib.ops._contract import check_choice, check_integer

# The widest value that one launch of the kernels reads; a wider one takes a launch for each piece.
WIDEST = 256

__all__ = [
    "WIDEST",
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
    gradients: tuple[str, ...] = ("q", "k", "v"),
) -> tuple[int, int]:
    """Bytes that the kernels touch, forward and backward; what a launch reads again counts once.

    Forward q and the result, the keys and values that a query sees, and a float32 a row, its log-sum.

    Backward the `gradients` of some of q, k and v, in up to two launches. The first, for q and k, reads the
    result and its gradient; for k it leaves a float32 a row, their product; for dq it reads q, keys, values
    and log-sums, and writes dq. The second, for k and v, reads q, the gradient of the result, keys and
    log-sums, for dk also values and those products; it writes what is wanted of dk and dv.

    `labels` bytes of documents and padding are read by each launch that has to know who sees whom. A value
    wider than WIDEST is read in pieces, and all of this is done for each piece. Then PyTorch joins the pieces
    of the result and adds up those of dq and dk, which is not counted.
    """
    n_q, window = check_integer("n_q", n_q, 1), check_integer("window", window, 1)
    width, itemsize = check_integer("width", width, 1), check_integer("itemsize", itemsize, 1)
    check_choice("window_type", window_type, ("strict", "chunk"))
    for name in gradients:
        check_choice("gradients", name, ("q", "k", "v"))
    value_width = width if value_width is None else check_integer("value_width", value_width, 1)
    sequences, group = check_integer("sequences", sequences, 1), check_integer("group", group, 1)
    start = check_integer("query_start", query_start, 0)
    first = start - window + 1 if window_type == "strict" else (start // window - lookback) * window
    rows, key_rows = n_q * sequences, (start + n_q) * (sequences // group)
    seen_rows = (start + n_q - max(0, first)) * (sequences // group)
    forward = backward = 0
    for begin in range(0, value_width, WIDEST):
        piece = min(WIDEST, value_width - begin)
        key, value = width * itemsize, piece * itemsize
        forward += rows * (key + value + 4) + seen_rows * (key + value) + labels
        if "q" in gradients or "k" in gradients:
            backward += rows * (2 * value + (4 if "k" in gradients else 0))
        if "q" in gradients:
            backward += rows * (2 * key + 4) + seen_rows * (key + value) + labels
        if "k" in gradients or "v" in gradients:
            backward += rows * (key + value + 4) + key_rows * key + labels
        if "k" in gradients:
            backward += rows * 4 + key_rows * (value + key)
        if "v" in gradients:
            backward += key_rows * value
    return forward, backward


def re_read_factor(window: int, block: int) -> float:
    """How often a key is loaded when `block` queries share a load: 1 + (w - 1)/block, far from the ends.

    About 2 for block = w on the tokens; w for block = 1, a read over depth.
    """
    return 1 + (check_integer("window", window, 1) - 1) / check_integer("block", block, 1)
