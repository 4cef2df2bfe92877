"""What is checked of the kernels of depth_attention; see `_kernel_cases`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from t2lib.ops._build import Case
from t2lib.ops._kernel_cases import Example, normal
from t2lib.ops.depth_attention import cost, depth_attention, depth_attention_partial, kernels, merge

__all__ = ["builds", "example", "examples", "joined"]


def example(
    what: str, shape: tuple[int, ...], states: int, *,
    queries: int = 0, gain: bool = False, query: bool = False, pseudo_query: bool = True,
) -> Example:  # fmt: skip
    """A read by one query, or the first phase of two for several; bytes as the interpreter is configured."""
    width, ways = shape[-1], (queries,) if queries else ()
    tokens = normal(*shape).numel() // width
    inputs = {f"state {j}": normal(*shape, seed=j) for j in range(states)}
    # Scores of moderate size, so that no softmax is a choice of one.
    if pseudo_query:
        inputs["pseudo_query"] = normal(*ways, width, seed=90) / width**0.5
    if gain:
        inputs["gain"] = 1 + 0.1 * normal(*ways, width, seed=91)
    if query:
        inputs["query"] = normal(*shape, seed=92) / width**0.5

    def run(rung: str, given: dict[str, Tensor]) -> Any:
        listed, w, g = (
            [given[f"state {j}"] for j in range(states)],
            given.get("pseudo_query"),
            given.get("gain"),
        )
        if queries:
            return depth_attention_partial(listed, w, gains=g, rung=rung)
        call: dict[str, Any] = {"gain": g, "query": given.get("query"), "return_lse": True}
        return depth_attention(listed, w, rung=rung, **call)

    return Example(what, inputs, run, _stated(
        states, width, tokens, queries=max(1, queries), shared=pseudo_query, own=query, gain=gain and query,
    ))  # fmt: skip


def joined(
    what: str, shape: tuple[int, ...], parts: int, states: int = 0, *,
    norm: bool = False, query: bool = False, pseudo_query: bool = True,
) -> Example:  # fmt: skip
    """A merge of parts; with states, the second phase of two, which goes on from them."""
    width = shape[-1]
    tokens = normal(*shape).numel() // width
    inputs = {f"read {j}": normal(*shape, seed=j) for j in range(parts)}
    inputs |= {f"lse {j}": normal(*shape[:-1], seed=20 + j) for j in range(parts)}
    inputs |= {f"state {j}": normal(*shape, seed=40 + j) for j in range(states)}
    if states and pseudo_query:
        inputs["pseudo_query"] = normal(width, seed=90) / width**0.5
    if states:
        inputs["gain"] = 1 + 0.1 * normal(width, seed=91)
    if query:
        inputs["query"] = normal(*shape, seed=92) / width**0.5
    if norm:
        inputs["norm_gain"] = 1 + 0.1 * normal(width, seed=93)

    def run(rung: str, given: dict[str, Tensor]) -> Any:
        pairs = [(given[f"read {j}"], given[f"lse {j}"].to(_wide(given["read 0"]))) for j in range(parts)]
        if not states:
            return merge(pairs, return_lse=True, rung=rung)
        listed, w, g = [given[f"state {j}"] for j in range(states)], given.get("pseudo_query"), given["gain"]
        rest: dict[str, Any] = {"norm_gain": given.get("norm_gain"), "norm_eps": 1e-5, "return_lse": True}
        return depth_attention(listed, w, gain=g, query=given.get("query"), parts=pairs, rung=rung, **rest)

    shared = states > 0 and pseudo_query
    stated = _stated(states, width, tokens, shared=shared, own=query, gain=query, parts=parts, norm=norm)
    return Example(what, inputs, run, stated)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _stated(
    states: int, width: int, tokens: int, *, queries: int = 1, **options: Any
) -> Callable[..., tuple[int, int]]:
    def stated(itemsize: int, needed: Collection[str] = cost.NEEDED) -> tuple[int, int]:
        config = kernels.pick_config((0, 0), max(16, 1 << (width - 1).bit_length()), queries)
        rows = config.rows if queries == 1 else config.column_rows
        found = [
            cost.kernel_bytes(
                states, width, itemsize=itemsize, tokens=tokens, queries=queries, backward=backward,
                needed=needed, launches=max(1, -(-states // kernels.MOST_STATES)), runs=-(-tokens // rows),
                **options,
            )
            for backward in (False, True)
        ]  # fmt: skip
        forward, backward_bytes = found
        return forward, backward_bytes

    return stated


def examples() -> list[Example]:
    """A read with all there is, the two phases with the norm of the sublayer, and a merge."""
    return [
        example("one query", (5, 20), 3, gain=True),
        example("a query a token and a gain", (2, 3, 24), 2, gain=True, query=True),
        example("three queries at once", (3, 24), 2, queries=3, gain=True),
        joined("the second phase, normalised", (3, 24), 1, 2, norm=True),
        joined("on from two parts, a query a token", (2, 3, 24), 2, 2, query=True, norm=True),
        joined("a merge", (3, 24), 2),
    ]


def builds(arch: int) -> list[Case]:
    """Every kernel at the widths of models, over several groups of states, and each option somewhere."""
    half = torch.float16 if arch < 80 else torch.bfloat16
    cases = _cases("width 7168, one query", arch, half, 7168, aligned=True)
    # The rest takes the compiler longer: each on two of the chips.
    if arch in (80, 90):
        cases += _cases("width 4096, every option", arch, half, 4096, aligned=arch == 90, own=True)
    if arch in (75, 100):
        cases += _cases("width 7168, every option", arch, torch.float16, 7168, aligned=False, own=True)
    if arch in (75, 90):
        cases += _cases("width 7168, 16 queries", arch, half, 7168, queries=16, aligned=True)
    if arch in (80, 100):
        cases += _cases("width 2048, 16 queries", arch, torch.float32, 2048, queries=16, aligned=False)
    return cases


def _cases(
    what: str,
    arch: int,
    dtype: torch.dtype,
    width: int,
    *,
    aligned: bool,
    queries: int = 1,
    own: bool = False,
    states: int = 17,
) -> list[Case]:
    # Three channels more than the width: then no row starts where a vector could be loaded.
    tokens, extra = 300, 0 if aligned else 3

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def single(*shape: int) -> Tensor:
        return empty(*shape, dtype=torch.float32)

    # Several groups of states, the last of one; unaligned they lie in two ways.
    listed = [empty(tokens, width + extra * (1 + j % 2))[:, :width] for j in range(states)]
    grad = empty(queries, tokens, width + extra)[..., :width]
    lse = single(queries, tokens)
    mine, parts, lses = ([listed[0]], [grad], [lse]) if own else ([], [], [])
    groups = {"states": listed, "own": mine, "grad": [grad], "grad_lse": [lse], "parts": parts, "lses": lses}
    call = kernels._prepare(groups, queries, divmod(arch, 10))
    vector = single(width)
    arguments = call.arguments | {
        "parts": tuple(parts) or None, "lses": tuple(lses) or None, "PARTS": len(parts),
        "d_parts": tuple(parts) or None, "d_lses": tuple(lses) or None,
        "asks": single(queries, width), "own": listed[0] if own else None,
        "own_gain": vector if own else None,
        "norm_gain": empty(width) if own else None, "normed": empty(queries, tokens, width) if own else None,
        "grad": grad, "grad_lse": lse, "z": empty(queries, tokens, width), "lse": lse, "norms": lse,
        "d_asks": vector, "d_own": listed[0] if own else None, "d_gain": vector if own else None,
        "carried": single(tokens, width) if own else None,
        "deltas": lse, "slopes": lse, "eps": 1e-6, "norm_eps": 1e-6,
        "grad_normed": grad, "grad_normed_strides": call.arguments["grad_strides"], "d_read": grad,
        "d_norm_gain": vector,
    }  # fmt: skip
    made = [kernels.forward]
    made += [kernels.backward] if queries == 1 else [kernels.backward_states, kernels.backward_asks]
    made += [kernels.backward_norm] if own else []
    arguments |= {"states": tuple(listed), "d_states": tuple(listed), "STATES": states}
    return [
        Case(kernel, what, arch, arguments | call.grouped(kernel, arguments), aligned, call.warps(kernel))
        for kernel in made
    ]
