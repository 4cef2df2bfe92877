"""FLOPs and bytes of depth_attention in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from t2lib.ops._checks import check_integer

__all__ = ["forward_bytes", "forward_flops", "merge_flops"]


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
