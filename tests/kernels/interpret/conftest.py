"""Run the kernels in Triton's interpreter, in a process of its own: `pytest tests/kernels/interpret`."""

from __future__ import annotations

import os
import sys

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError(
        "triton was imported before TRITON_INTERPRET=1; run pytest on tests/kernels/interpret alone."
    )
os.environ["TRITON_INTERPRET"] = "1"

from typing import Any

import pytest
import torch

from t2lib.ops._touched import quicken

quicken()


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so a place that a kernel forgets to write shows."""
    empty = torch.empty

    def poisoned(*arguments: Any, **keywords: Any) -> torch.Tensor:
        x = empty(*arguments, **keywords)
        return x.fill_(float("nan")) if x.is_floating_point() and not x.is_meta else x

    monkeypatch.setattr(torch, "empty", poisoned)

    def poisoned_like(x: torch.Tensor, **keywords: Any) -> torch.Tensor:
        return poisoned(x.shape, dtype=x.dtype, device=x.device)

    monkeypatch.setattr(torch, "empty_like", poisoned_like)
