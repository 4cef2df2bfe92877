"""FLOPs and bytes of depth_attention in closed form, from shapes alone. One multiply-add is 2 FLOPs."""

from __future__ import annotations

from collections.abc import Collection

from t2lib.ops._checks import check_integer

__all__ = ["NEEDED", "forward_bytes", "forward_flops", "kernel_bytes", "merge_flops"]

# The inputs of the kernels whose gradients may be needed.
NEEDED = ("states", "shared", "own", "gain", "parts", "lses", "norm")


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
    needed: Collection[str] = NEEDED,
    launches: int = 1,
    runs: int = 1,
) -> int:
    """Bytes that the kernels touch, each element once a launch, with gradients of all results.

    Forward (N + Q) · T · d elements: every state and every read once. Backward (2 · N + 2) · T · d for one
    query; several are summed by a second launch, (3 · N + 2 · Q) · T · d in all. Added to that: a number for
    each log-sum-exp, norm and slope of a score, the queries, and their gradients: for one that is `shared`
    and for the `gain` of each token's `own` a sum for each run of tokens, for `own` a row. A part of a merge
    is read as a state is, and its gradient written; the `norm` of the result writes one row more, and
    backward reads three and writes one.

    `needed` names the inputs whose gradients are needed: "states", "shared", "own", "gain", "parts" (their
    reads), "lses", "norm" (its gain). Without "states" the N rows of their gradients are not written, without
    "shared" several queries take no second launch, and without any of the first four no state is read.

    A launch takes 64 states. A further one forward hands over the reads in float32; backward it reads them
    and their gradients again, and hands over the gradient of `own` in float32.

    Not counted: what programs read again from the cache (forward every state for each group of queries that
    a program holds; backward of several the queries and their gradients for each group of states), and what
    PyTorch does around the kernels: it adds up the sums of the runs, and multiplies queries with the gain.
    """
    states, width = check_integer("states", states, 0), check_integer("width", width, 1)
    tokens, queries = check_integer("tokens", tokens, 0), check_integer("queries", queries, 1)
    if unknown := set(needed) - set(NEEDED):
        raise ValueError(f"needed must name some of {', '.join(NEEDED)}; got {', '.join(sorted(unknown))}.")
    row, vector = tokens * width * check_integer("itemsize", itemsize, 1), 4 * width
    number, reads = 4 * tokens, queries * tokens
    asked = queries * vector * shared + row * own + vector * gain
    if not backward:
        handed = 2 * (launches - 1) * reads * (4 * width + 4)
        joined = parts * (row + number) * queries
        last = queries * row + width * itemsize if norm else 0
        found = (states + queries) * row + (states + queries) * number + joined + last + handed
        return found + launches * asked
    given = {"states": states > 0, "shared": shared, "own": own, "gain": gain, "parts": parts, "lses": parts}
    needs = {name: bool(there) and name in needed for name, there in given.items()}
    visits = needs["states"] or needs["shared"] or needs["own"] or needs["gain"]
    found = 0
    if norm:
        # The gradient and the read; then what else the gradient of the read needs, and it.
        found += 2 * row + runs * vector * ("norm" in needed)
        found += (2 * row + width * itemsize) * any(needs.values())
    # The gradient of a part's read takes its weight alone: log-sum-exps, and the gradient of the whole.
    if needs["parts"] or needs["lses"]:
        found += parts * (number + row * needs["parts"] + (row + number) * needs["lses"])
    if not visits:
        return found + (row + number) * (needs["parts"] or needs["lses"]) + (row + number) * needs["lses"]
    # The read and its gradient, then what is kept of each token; the states and their gradients.
    found += launches * (2 * queries * (row + number) + asked)
    found += states * (row + number + row * needs["states"])
    if queries == 1:
        found += row * needs["own"] + 2 * (launches - 1) * 4 * tokens * width * needs["own"]
        # Beside a gradient for each token, sums are read and written.
        return found + launches * runs * vector * (needs["shared"] + needs["gain"]) * (2 if own else 1)
    # Written and read: what all scores of a query share.
    found += launches * queries * 2 * number
    # The slope of each score, written and read; the states once more, and the sums.
    slopes = states * (2 * queries * number + row) + launches * queries * runs * vector
    return found + slopes * needs["shared"]
