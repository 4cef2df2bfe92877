"""What `python -m t2lib.verify streams` checks of every design: a row a variant, a column a claim."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2lib.decoder import Decoder
from t2lib.ops import _registry
from t2lib.ops._checks import check_choice
from t2lib.streams import _golden
from t2lib.streams._counting import flops_beyond
from t2lib.streams._golden import error
from t2lib.streams._variants import VARIANTS, built, embedding, toy
from t2lib.streams.mixing import mix
from t2lib.streams.stream import Stream, every_way, run

__all__ = ["COLUMNS", "Check", "checks", "columns"]

# A tolerance, and what measures an error; or why it is not for this variant.
Check = tuple[float, Callable[[], float] | str]
COLUMNS = ("outputs", "gradients", "identity", "mixing", "decoder", "compile", "bfloat16", "cost")

# The vectors of the fused kernel are float32.
SINGLE = {"ddl cc kernel guard"}
NO_GRADIENTS = {"dca one way"}
# The variant that is compiled without being asked.
COMPILED = "prenorm"
SHAPE = {"vocabulary": 31, "width": 16, "heads": 2, "hidden": 24, "context": 12}


def columns(section: str) -> list[tuple[str, bool, str]]:
    """The columns of the table, all of which run wherever there is torch."""
    return [(column, True, "") for column in COLUMNS]


def checks(section: str, column: str, compiled: bool = False) -> dict[str, Check]:
    """One column: variant -> its check. `compiled` compiles all variants."""
    check_choice("column", column, COLUMNS)
    return {variant: _check(variant, column, compiled) for variant in VARIANTS}


def _check(variant: str, column: str, compiled: bool) -> Check:
    if column in ("outputs", "gradients"):
        return golden_check(variant, gradients=column == "gradients")
    if column == "identity":
        return 1e-10, partial(identity, variant) if promises_identity(variant) else NO_IDENTITY
    if column == "mixing":
        return mixing_check(variant)
    if column == "decoder":
        return 0.0, partial(decoder, variant)
    if column == "compile":
        _, runs_here, reason = next(row for row in _registry.ladder("depth_mix") if row.rung == "compiled")
        wanted = partial(compile_walk, variant) if compiled or variant == COMPILED else SECONDS
        return 1e-4, wanted if runs_here else reason
    if column == "bfloat16":
        return 0.1, partial(narrow, variant, torch.bfloat16)
    return 0.0, partial(cost, variant)


TOKENS = "it convolves along the tokens, so no matrix of one token tells what was read"
SECONDS = "left out: it would compile for many seconds; --compile compiles every variant, in half an hour"
NO_IDENTITY = "this design does not promise to start as the plain decoder"
NO_VECTORS = "no reference implementation has this variant"


def golden_check(variant: str, *, gradients: bool) -> Check:
    """The golden vectors of a variant: everything recorded, or its gradients."""
    if variant not in _golden.cases():
        return 0.0, NO_VECTORS
    if gradients and variant in NO_GRADIENTS:
        return 0.0, "no gradient is recorded"
    tolerance = 2e-6 if variant in SINGLE else 1e-10
    return tolerance, lambda: max(_golden.errors(variant, gradients).values())


def mixing_check(variant: str) -> Check:
    """The law of the mixing matrix, for the variants that have one."""
    mixes_tokens = built(variant).mixing == "mixes tokens"
    return 1e-10, TOKENS if mixes_tokens else partial(mixing, variant)


def promises_identity(variant: str) -> bool:
    return VARIANTS[variant].build(width=8).identity_at_start


def make_decoder(
    variant: str, dtype: torch.dtype = torch.float64, norm_eps: float = 1e-6, **fields: Any
) -> Decoder:
    """An untrained decoder with this stream: the same other weights for every stream."""
    chosen = VARIANTS[variant]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = {**SHAPE, "blocks": chosen.blocks, **fields}
        options = dict(chosen.options)
        if chosen.design == "attention_residuals":
            # The start is the plain decoder up to the eps of both norms.
            options["norm_eps"] = norm_eps
        model = Decoder(**shape, norm_eps=norm_eps, stream=chosen.design, stream_options=options)
        return model.to(dtype)


def text() -> Tensor:
    return torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(1))


def loss_of(model: Decoder) -> Tensor:
    tokens = text()
    logits = model(tokens[..., :-1]).float()
    return F.cross_entropy(logits.flatten(0, -2), tokens[..., 1:].flatten())


def identity(variant: str) -> float:
    """Logits of an untrained decoder and gradients of its other weights, against those of the plain one.

    Equal streams, and a mean in place of a sum, differ from the plain stream by a factor, which the norms
    take away but for their eps; so that is 1e-30 here.
    """
    mine = make_decoder(variant, norm_eps=1e-30)
    plain = make_decoder("prenorm", norm_eps=1e-30, blocks=VARIANTS[variant].blocks)
    errors = [error(mine(text()), plain(text()))]
    for model in (mine, plain):
        loss_of(model).backward()  # type: ignore[no-untyped-call]
    ours = dict(mine.named_parameters())
    for name, weight in plain.named_parameters():
        # A stream with ways has a norm for each.
        if name in ours:
            errors.append(_difference(ours[name].grad, weight.grad))
    return max(errors)


def _difference(got: Tensor | None, want: Tensor | None) -> float:
    assert got is not None
    assert want is not None
    return error(got, want)


def mixing(variant: str) -> float:
    """M times the embedding and the branch outputs, against what each sublayer and the output read."""
    stream = built(variant)
    record = run(stream, embedding(stream), *toy(stream))
    matrices = stream.mixing_matrix(record.embedding, record.branches, record.normed)
    sources = torch.stack([record.embedding, *record.branches])
    reads = [*record.reads, record.out]
    errors = []
    for way, matrix in matrices.items() if isinstance(matrices, dict) else [("x", matrices)]:
        if matrix[torch.ones(matrix.shape[:2], dtype=torch.bool).triu(1)].any():
            raise AssertionError("a sublayer reads what is written after it")
        errors.append(error(mix(matrix, sources), torch.stack([every_way(read, way) for read in reads])))
    return max(errors)


def decoder(variant: str, dtype: torch.dtype = torch.float32) -> float:
    """Trains, is saved and loaded to the same logits, and records a stack that ends in them."""
    model = make_decoder(variant, dtype)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    before = {name: p.detach().clone() for name, p in model.stream.named_parameters()}
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    if not losses[-1] < losses[0]:
        raise AssertionError(f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}")
    if before and all(torch.equal(before[name], p) for name, p in model.stream.named_parameters()):
        raise AssertionError("no parameter of the stream moved")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = make_decoder(variant, dtype)
    again.load_state_dict(torch.load(file))
    with torch.no_grad():
        logits = model(text())
        stack = model.hidden_states(text(), unit="sublayer")
        assert logits.dtype == dtype
        assert len(stack) == 2 * VARIANTS[variant].blocks + 1
        found = (again(text()), model.unembed(stack[-1]))
        return max(float((other - logits).abs().max()) for other in found)


def compile_walk(variant: str, backend: str = "inductor") -> float:
    """Output and gradients of a walk through the whole depth as one graph, against the same uncompiled."""
    # Every variant is traced from this one line, and the compiler counts them.
    torch._dynamo.reset()
    # As few blocks as the options leave: what compiles takes longest.
    blocks = next(n for n in range(1, 6) if _takes(variant, n))
    stream = built(variant, blocks=blocks, dtype=torch.float32, spread=0.1)
    branches, norms = toy(stream, scale=0.2)

    def walk(x: Tensor) -> Tensor:
        return run(stream, x, branches, norms).out

    results = []
    # The compiled one first: nothing may depend on an earlier call without the compiler.
    for call in (torch.compile(walk, fullgraph=True, backend=backend), walk):
        stream.zero_grad()
        x = embedding(stream, torch.float32).requires_grad_()
        out = call(x)
        torch.autograd.backward(out.square().sum())
        gradients = [p.grad for p in (x, *stream.parameters()) if p.grad is not None]
        results.append([out.detach(), *gradients])
    compiled, plain = results
    return max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1.0))
        for a, b in zip(compiled, plain, strict=True)
    )


def _takes(variant: str, blocks: int) -> bool:
    try:
        VARIANTS[variant].build(6, blocks)
    except ValueError:
        return False
    return True


def narrow(variant: str, dtype: torch.dtype) -> float:
    """A walk in a narrow dtype against float64, from the same rounded numbers.

    The sublayers are tame: a deep toy of rewrites doubles any difference at every one of them.
    """
    small, wide = (built(variant, spread=0.1).to(dtype).to(kind) for kind in (dtype, torch.float64))
    x = embedding(wide).to(dtype)
    got, want = (
        run(stream, x.to(kind), *toy(stream, scale=0.2)).out
        for stream, kind in ((small, dtype), (wide, torch.float64))
    )
    assert got.dtype == dtype
    return error(got.detach().double(), want.detach())


def cost(variant: str) -> float:
    """The closed forms against the module: its parameters, and the FLOPs that torch counts on it."""
    found: Stream = built(variant, width=8, blocks=5)
    parameters = abs(found.cost().parameters - sum(p.numel() for p in found.parameters()))
    # Two depths tell what grows with the depth from what does not.
    depths = (VARIANTS[variant].blocks, VARIANTS[variant].blocks + 1)
    return max(parameters, *(abs(flops_beyond(variant, blocks)) for blocks in depths))
