"""What is checked of the kernels of depth_mix; see `_kernel_cases`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2lib.ops._build import Case
from t2lib.ops._kernel_cases import Example, normal
from t2lib.ops.depth_mix import cost, depth_mix, kernels

__all__ = ["builds", "example", "examples"]


def example(
    what: str, shape: tuple[int, ...], states: int, *,
    outputs: int | None = None, weights: str = "none", token_weights: bool = False,
) -> Example:  # fmt: skip
    """A call on states of this shape; its bytes are stated for the configuration of the interpreter."""
    ways, width = () if outputs is None else (outputs,), shape[-1]
    inputs = {f"state {j}": normal(*shape, seed=j) for j in range(states)}
    if weights != "none":
        last = (width,) if weights == "channel" else ()
        inputs["weights"] = normal(*ways, states, *last, seed=90)
    if token_weights:
        inputs["token_weights"] = normal(*shape[:-1], *ways, states, seed=91)

    def run(rung: str, given: dict[str, Tensor]) -> Any:
        listed = [given[f"state {j}"] for j in range(states)]
        fixed, own = given.get("weights"), given.get("token_weights")
        return depth_mix(listed, fixed, own, outputs=outputs, rung=rung)

    def stated(itemsize: int) -> tuple[int, int]:
        tokens, count = normal(*shape).numel() // width, outputs or 1
        summed, wide = weights != "none", weights == "channel"
        config = kernels.pick_config((0, 0), width, count, summed=summed)
        at_once = min(count, kernels.MOST_OUTPUTS)
        most = kernels.states_at_once(at_once, wide=wide)
        most_back = kernels.states_at_once(at_once, wide=wide, backward=True, summed=summed)
        call: dict[str, Any] = {
            "itemsize": itemsize, "tokens": tokens, "outputs": count,
            "weights": weights, "token_weights": token_weights, "most_outputs": kernels.MOST_OUTPUTS,
        }  # fmt: skip
        return (
            cost.kernel_bytes(states, width, launches=-(-states // most), **call),
            cost.kernel_bytes(
                states, width, backward=True, launches=-(-states // most_back),
                runs=-(-tokens // config.rows), blocks=-(-width // config.columns), **call,
            ),
        )  # fmt: skip

    return Example(what, inputs, run, stated)


def examples() -> list[Example]:
    """The weights of ELC-BERT and DenseFormer, of GRN-v3, and of MUDDFormer, over a ragged width."""
    return [
        example("a weight a state", (3, 150), 4, weights="state"),
        example("a weight a channel and a token", (2, 9, 24), 3, weights="channel", token_weights=True),
        example("a weight a token, four outputs", (3, 24), 3, outputs=4, token_weights=True),
        example("a weight a state, nine outputs", (2, 40), 2, outputs=9, weights="state"),
    ]


def builds(arch: int) -> list[Case]:
    """Both kernels with as many states as a launch takes, so that nothing larger is ever built."""
    half, several = torch.float16 if arch < 80 else torch.bfloat16, "channel and token"
    forms = [("state", 1, half, True, 7168)]
    # These take the compiler longest, and most registers: each on some of the chips.
    if arch in (75, 100):
        forms.append((several, 1, torch.float32 if arch == 75 else torch.float16, False, 7168))
    if arch in (90, 100):
        forms.append((several, 4, torch.float16, True, 7168))
    if arch in (75, 90):
        forms.append(("token", 4, torch.float16, True, 2048))
        forms.append((several, 1, torch.float16, True, 2048))
    if arch in (80, 100):
        forms.append((several, kernels.MOST_OUTPUTS, torch.float16, True, 300))
    found = [_case(arch, *form, backward=backward) for form in forms for backward in (False, True)]
    # Where a whole token is one block, the assembler aims at fewer registers and may spill to get there.
    found += [_case(90, several, 1, torch.float16, False, 256, backward=True)] if arch == 90 else []
    found += [_case(100, several, 1, torch.float16, True, 64, backward=True)] if arch == 100 else []
    return found


def _case(
    arch: int, weights: str, outputs: int, dtype: torch.dtype, aligned: bool, width: int, *, backward: bool
) -> Case:  # fmt: skip
    # Three channels more than the width: then no row starts where a vector could be loaded.
    extra, tokens = 0 if aligned else 3, 300

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    wide, summed = weights.startswith("channel"), backward and weights != "token"
    count = kernels.states_at_once(outputs, wide=wide, backward=backward, summed=summed)
    states = [empty(tokens, width + extra)[:, :width] for _ in range(count)]
    fixed = empty(outputs, count, width if wide else 1) if weights != "token" else None
    own = empty(tokens, outputs, count) if weights.endswith("token") else None
    grad = empty(outputs, tokens, width + extra)[..., :width] if backward else None
    call = kernels._prepare(states, fixed, own, grad, outputs, summed, divmod(arch, 10))
    parts = empty(1, dtype=torch.float32)
    # A launch behind others goes on from their sums.
    sums = None if outputs < kernels.MOST_OUTPUTS else (parts,) * count if backward else parts
    arguments = call.arguments | {
        "sums": sums, "states": tuple(states), "first": 0, "STATES": count,
        "z": empty(outputs, tokens, width),
        "d_states": tuple(states), "d_weights": parts if summed else None,
        "d_token_weights": None if own is None else parts,
    }  # fmt: skip
    what = f"{count} states, {outputs} outputs, weights a {weights}, {str(dtype).removeprefix('torch.')}"
    what += "" if width == 7168 else f", d={width}"
    kernel = kernels.backward if backward else kernels.forward
    return Case(kernel, what, arch, arguments, aligned, call.config.warps)
