"""What is checked of the kernels of stream_mix and of Sinkhorn: examples, and builds for other chips."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from t2lib.ops._build import Case
from t2lib.ops._kernel_cases import Example, normal
from t2lib.ops.stream_mix import cost, kernels, sinkhorn, stream_mix

# What a call is given besides the streams.
FORMS = {
    "all": ("mix", "write", "branch", "read"),
    "read": ("read",),
    "mix": ("mix",),
    "write": ("write", "branch"),
    "mix and write": ("mix", "write", "branch"),
    "mix and read": ("mix", "read"),
}
META: dict[str, Any] = {"device": "meta"}


def _mixed(rung: str, inputs: dict[str, Tensor]) -> Any:
    return stream_mix(inputs["streams"], rung=rung, **{k: x for k, x in inputs.items() if k != "streams"})


def mixed(
    form: str, n: int, d: int, leading: tuple[int, ...], *, per_token: bool = True, seed: int = 0
) -> Example:
    """A call of stream_mix in one of the FORMS."""
    own = {"mix": (n, n), "write": (n,), "read": (n,)}
    shapes = {"streams": (*leading, n, d), "branch": (*leading, d)}
    shapes |= {name: (*leading, *shape) if per_token else shape for name, shape in own.items()}
    names = ("streams", *FORMS[form])
    inputs = {name: normal(*shapes[name], seed=seed + place) for place, name in enumerate(names)}
    facts: dict[str, Any] = {name: name in names for name in own}
    facts |= {"per_token": per_token, "tokens": torch.Size(leading).numel()}
    what = f"{form}, {'a token' if per_token else 'shared'}, n={n}, d={d}"
    return Example(what, inputs, _mixed, lambda itemsize: cost.kernel_bytes(n, d, itemsize=itemsize, **facts))


def _projected(rung: str, inputs: dict[str, Tensor], **options: Any) -> Any:
    return sinkhorn(inputs["logits"], rung=rung, **options)


def projected(n: int, leading: tuple[int, ...], iterations: int, eps: float = 0.0, seed: int = 0) -> Example:
    """A call of Sinkhorn."""
    facts: dict[str, Any] = {"eps": eps, "tokens": torch.Size(leading).numel()}
    return Example(
        f"sinkhorn, n={n}, {iterations} iterations, eps={eps}",
        {"logits": normal(*leading, n, n, seed=seed)},
        partial(_projected, iterations=iterations, eps=eps),
        lambda itemsize: cost.sinkhorn_kernel_bytes(n, iterations, itemsize=itemsize, **facts),
    )


def examples() -> list[Example]:
    """Every form, coefficients of both kinds, one stream and eight; Sinkhorn in both definitions."""
    return [
        *(mixed(form, 4, 20, (2, 2), per_token=form != "all", seed=len(form)) for form in FORMS),
        mixed("all", 4, 20, (2, 2)),
        mixed("all", 1, 7, (3,)),
        mixed("all", 8, 16, (2,)),
        projected(4, (2, 3), 20),
        projected(3, (5,), 2),
        projected(4, (3,), 3, eps=1e-3),
    ]


def arguments(
    kernel: Any, n: int, dtype: torch.dtype, *, tokens: int, aligned: bool, eps: float = 0.0
) -> dict[str, Any]:
    """The arguments of a launch at d = 2048 with everything a call can have; coefficients are float32."""
    leading, d, single = (2, tokens // 2), 2048, {"dtype": torch.float32, **META}
    if kernel in (kernels.project, kernels.project_backward):
        logits = torch.empty(*leading, n, n, **single)
        given: dict[str, Tensor | None] = {"streams": logits}
        given |= {"dnew": logits} if kernel is kernels.project_backward else {}
        results = dict.fromkeys(("out", "dstreams", "scratch"), logits)
        return kernels._arguments(given, 20, eps) | results
    # Three channels more than the width: then no row starts where a vector could be loaded.
    extra = 0 if aligned else 3
    streams = torch.empty(*leading, n, d + extra, dtype=dtype, **META)[..., :d]
    branch = torch.empty(*leading, d + extra, dtype=dtype, **META)[..., :d]
    given = {
        "streams": streams, "mix": torch.empty(*leading, n, n, **single),
        "write": torch.empty(*leading, n, **single), "branch": branch, "read": torch.empty(n, **single),
    }  # fmt: skip
    if kernel is kernels.forward:
        return kernels._arguments(given) | {"new": streams, "h": branch}
    gradients = {f"d{name}": x for name, x in given.items()}
    return kernels._arguments(given | {"dnew": streams, "dh": branch}) | gradients


def builds(arch: int) -> list[Case]:
    """Every kernel with every configuration of the table, aligned and unaligned."""
    half, single, many = torch.float16, torch.float32, 4 * kernels.FEW
    forms = [(4, half, many, True), (4, single, many, False)]
    # No instruction of a generation is at stake here, and eight streams compile for seconds.
    forms += [(4, half, 64, True)] if arch in (75, 100) else []
    forms += [(8, single, many, True)] if arch == 75 else []
    forms += [(4, torch.bfloat16, many, True)] if arch == 90 else []
    found = []
    for kernel in (kernels.forward, kernels.backward):
        for n, dtype, tokens, aligned in forms:
            plain = arguments(kernel, n, dtype, tokens=tokens, aligned=aligned)
            given, config = kernels._configured(kernel, plain, divmod(arch, 10))
            what = f"n={n}, {str(dtype).removeprefix('torch.')}{', few tokens' if tokens < many else ''}"
            found.append(Case(kernel, what, arch, given, aligned, config.warps))
    if arch == 90:
        # For the gradient of the branch alone, nearly all of it falls away.
        alone = next(case for case in found if case.kernel is kernels.backward)
        dropped = dict.fromkeys(("streams", "mix", "branch", "dstreams", "dmix", "dwrite", "dread"))
        given = alone.arguments | dropped
        found.append(alone._replace(what=f"{alone.what}, branch alone", arguments=given))
    # Matrices that do not fill their block, and eps > 0, take more registers than others.
    matrices = [(4, 0.0)]
    matrices += [(8, 0.0), (5, 1e-3)] if arch == 75 else []
    matrices += [(3, 0.0)] if arch in (90, 100) else []
    for kernel in (kernels.project, kernels.project_backward):
        for n, eps in matrices:
            plain = arguments(kernel, n, single, tokens=many, aligned=n != 8, eps=eps)
            given, config = kernels._configured(kernel, plain, divmod(arch, 10))
            what = f"n={n}{f', eps={eps}' if eps else ''}"
            found.append(Case(kernel, what, arch, given, n != 8, config.warps))
    return found
