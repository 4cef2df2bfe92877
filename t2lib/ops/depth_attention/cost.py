"""FLOPs and bytes of depth_attention in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._checks import check_integer

__all__ = ["forward_bytes", "forward_flops", "kernel_bytes", "merge_flops"]


def forward_flops(states: int, width: int, *, tokens: int = 1, queries: int = 1) -> int:
    """FLOPs of norms, scores and sums: (2 + 4 · Q) · N · d a token; 6 · N · d for one query.

    2 · d for the mean square of a state, which serves all queries; then 2 · d for a score and 2 · d for the
    sum. The softmax adds a few operations a state and query, and is left out.
    """
    states, width = check_integer("states", states, 1), check_integer("width", width, 1)
    tokens, queries = check_integer("tokens", tokens, 0), check_integer("queries", queries, 1)
    return (2 + 4 * queries) * states * width * tokens


def merge_flops(parts: int, width: int, *, tokens: int = 1) -> int:
    """FLOPs of joining reads of parts of the list: 2 · P · d a token."""
    parts, width = check_integer("parts", parts, 1), check_integer("width", width, 1)
    return 2 * parts * width * check_integer("tokens", tokens, 0)


def forward_bytes(states: int, width: int, *, itemsize: int, tokens: int = 1, queries: int = 1) -> int:
    """Bytes that have to move: every state once for all queries, and every read once."""
    states, width = check_integer("states", states, 1), check_integer("width", width, 1)
    tokens, queries = check_integer("tokens", tokens, 0), check_integer("queries", queries, 1)
    return (states + queries) * width * tokens * check_integer("itemsize", itemsize, 1)


def kernel_bytes(
    states: int,
    width: int,
    *,
    itemsize: int,
    tokens: int = 1,
    queries: int = 1,
    shared: bool = True,
    own: bool = False,
    gain: bool = False,
    parts: int = 0,
    norm: bool = False,
    backward: bool = False,
    launches: int = 1,
    runs: int = 1,
) -> int:
    """Bytes that the kernels touch, each element once a launch, with gradients of all inputs and results.

    Forward (N + Q) · T · d elements: every state and every read once. Backward (2 · N + 2) · T · d for one
    query; several are summed by a second launch, (3 · N + 2 · Q) · T · d in all. Added to that: a number for
    each log-sum-exp, norm and slope of a score, the queries, and their gradients: for one that is `shared` a
    sum for each run of tokens, for each token's `own` (with or without a `gain`) a row of float32. A part of
    a merge is read as a state is, and its gradient written; the `norm` of the result writes one row more,
    and backward reads three and writes one. A further launch forward hands over the reads in float32, and
    backward reads them and their gradients again.
    """
    states, width = check_integer("states", states, 0), check_integer("width", width, 1)
    tokens, queries = check_integer("tokens", tokens, 0), check_integer("queries", queries, 1)
    row, vector = tokens * width * check_integer("itemsize", itemsize, 1), 4 * width
    number, reads = 4 * tokens, queries * tokens
    asked = queries * vector * shared + row * own + vector * gain
    if not backward:
        handed = 2 * (launches - 1) * reads * (4 * width + 4)
        joined = parts * (row + number) * queries
        last = queries * row + width * itemsize if norm else 0
        found = (states + queries) * row + (states + queries) * number + joined + last + handed
        return found + launches * asked
    # The read and its gradient, then what is kept of each token; the states and their gradients.
    found = launches * (2 * queries * (row + number) + asked)
    found += states * (2 * row + number) + parts * 2 * (row + number)
    if norm:
        found += 4 * row + width * itemsize + runs * vector
    if queries == 1:
        return found + launches * (4 * tokens * width if own else runs * vector * shared)
    # Written and read: what all scores of a query share, and the slope of each. Then the states once more.
    found += launches * queries * (2 * number + runs * vector)
    return found + states * (2 * queries * number + row)
