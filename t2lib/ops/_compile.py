"""One way to call torch.compile: no silent fallback, a bounded number of variants."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from t2lib.ops._registry import RungUnavailable

# One compilation serves all lengths. What adds up are dtypes, sizes of 1, layouts, forms of arguments,
# windows and numbers of states.
VARIANTS = 256


def run(function: Callable[..., Any], *arguments: Any, dynamic: bool | None = True, **options: int) -> Any:
    """Call the compiled `function`; RungUnavailable if the compiler fails.

    `dynamic`: sizes are symbols from the first call on; with None, from the second size met on. `options` are
    those of the compiler behind torch.compile, by their names in torch._inductor.config.
    """
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    before = getattr(config, limit)
    # `config.patch` does the same in a tenth of a millisecond, which is a per cent of a call.
    setattr(config, limit, VARIANTS)
    try:
        return _compiled(function, dynamic, **options)(*arguments)
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = str(error).strip().partition("\n")[0]
        raise RungUnavailable(
            f"rung='compiled' cannot run here: torch.compile failed with {type(error).__name__}, {why}; "
            "rung='eager' computes the same."
        ) from error
    finally:
        setattr(config, limit, before)


@cache
def _compiled(function: Callable[..., Any], dynamic: bool | None, **options: int) -> Callable[..., Any]:
    # fullgraph: beyond the limit of variants this raises instead of falling back to eager in silence.
    return torch.compile(function, dynamic=dynamic, fullgraph=True, options=dict(options) or None)
