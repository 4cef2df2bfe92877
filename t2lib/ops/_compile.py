"""One way to call torch.compile: symbolic sizes, no silent fallback, a bounded number of variants."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from t2lib.ops._registry import RungUnavailable

# Sizes are symbolic, so one compilation serves all lengths. What remains are dtypes, sizes that are 1, forms
# of arguments and numbers of states.
VARIANTS = 64


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the compiled `function`; RungUnavailable if the compiler fails."""
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    try:
        with config.patch({limit: VARIANTS}):
            return _compiled(function)(*arguments)
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = str(error).strip().partition("\n")[0]
        raise RungUnavailable(
            f"rung='compiled' cannot run here: torch.compile failed with {type(error).__name__}, {why}; "
            "rung='eager' computes the same."
        ) from error


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # fullgraph: beyond the limit of variants this raises instead of falling back to eager in silence.
    return torch.compile(function, dynamic=True, fullgraph=True)
