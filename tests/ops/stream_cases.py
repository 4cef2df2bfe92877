"""What the tests of stream_mix, delta_rewrite and short_conv share."""

from pathlib import Path

import torch

import t2lib
from t2lib.ops import _claims_streams, _registry

# `compiled` compiles for seconds at every new kind of shape: each operator has one test of it.
CPU_RUNGS = ("loops", "arrays", "eager")


def claims(operator):
    """Every check of an operator that is for a rung, as (check, rung, tolerance, measure)."""
    return [
        (check, rung, tolerance, measure)
        for rung in CPU_RUNGS
        for check, (tolerance, measure) in _claims_streams.checks(operator, rung).items()
        if not isinstance(measure, str)
    ]


def name_of(claim):
    return f"{claim[0]} on {claim[1]}"


def files_of(operator):
    folder = Path(t2lib.__file__).parent / "ops" / operator
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


def files_expected(operator):
    missing = _registry.OPERATORS[operator]
    rungs = {f"{rung}.py" for rung in _registry.RUNGS if rung not in missing}
    return {"__init__.py", "cost.py"} | rungs


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
