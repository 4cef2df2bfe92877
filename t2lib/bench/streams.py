"""Every residual stream in one decoder, forward and backward, as a ratio to the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from t2lib.bench import _runner, _table, depth_mix
from t2lib.bench._case import Setting
from t2lib.bench._measure import (
    Progress,
    Timing,
    copying,
    interleaved,
    machine,
    multiplying,
    peak_bytes,
    sentence,
)

NAME = "streams"
PLAIN = "prenorm"
COPY, PRODUCT = "copy", "matrix product"
# Beside the defaults of each design: the form of it that is cheap, or that the paper puts forward.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "denseformer, 4x5": ("denseformer", {"dilation": 4, "period": 5}),
    "attention_residuals, blocks of 4": ("attention_residuals", {"block_size": 4, "two_phase": True}),
    "deep_delta, d_v = 4": ("deep_delta", {"value_channels": 4}),
}
# Backward takes about twice what forward does, in bytes and in FLOPs.
PASSES = 3
# Bytes of the copy that measures the bandwidth: more than any cache holds.
COPIED = {"cpu": 1 << 28, "cuda": 1 << 31}


@dataclass(frozen=True)
class Shape:
    blocks: int = 12
    width: int = 256
    tokens: int = 512
    batch: int = 1
    heads: int = 4

    def __post_init__(self) -> None:
        # Rotary positions take the numbers of a head in pairs.
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of 2 heads; got width {self.width}, heads {self.heads}."
            )


ON_CUDA = Shape(width=1024, tokens=4096, heads=16)


def bytes_held(shape: Shape, setting: Setting) -> int:
    """At least: what a backward pass keeps of every sublayer, its input and its output; and the copy."""
    vectors = 4 * shape.blocks * shape.batch * shape.tokens
    return vectors * shape.width * setting.itemsize + COPIED[setting.device]


def measure(
    shape: Shape,
    setting: Setting,
    *,
    rounds: int,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Times and memory of all designs in one run, beside the floor from their closed-form cost.

    `keep` is called with what there is: after the first call of each design, and after each round.
    """
    clock = "device" if setting.device == "cuda" else "cpu"
    decoders, left_out = {}, {}
    for name, design in designs().items():
        try:
            decoders[name] = _decoder(shape, setting, *design)
        except ValueError as error:
            # A variant that a decoder of few blocks has no room for.
            left_out[name] = sentence(error)
    steps = {name: _step(decoder, shape, setting) for name, decoder in decoders.items()}
    count = COPIED[setting.device]
    product, product_flops = multiplying(setting.device, setting.dtype)
    # What the others are measured by comes first.
    calls = {COPY: copying(count, setting.device), PRODUCT: product, PLAIN: steps[PLAIN]} | steps
    costs = {name: decoder.stream.cost() for name, decoder in decoders.items()}
    where = machine(setting.device)
    memory: dict[str, int] = {}

    def so_far(timings: Mapping[str, Timing], failed: Mapping[str, str]) -> dict[str, Any]:
        time_of = {name: timing.median(clock) for name, timing in timings.items()}
        bandwidth = count / time_of[COPY] * 1e3
        arithmetic = product_flops / time_of[PRODUCT] * 1e3
        plain = costs[PLAIN]
        floors = {}
        for name, cost in costs.items():
            tokens = PASSES * shape.batch * shape.tokens
            moved = (cost.vectors - plain.vectors) * shape.width * setting.itemsize * tokens
            computed = (cost.flops - plain.flops) * tokens
            extra = max(moved / bandwidth, computed / arithmetic) * 1e3
            floors[name] = 1 + extra / time_of[PLAIN]
        sizes = " ".join(f"--{name} {value}" for name, value in asdict(shape).items())
        return {
            "operator": NAME,
            "command": f"python -m t2lib.bench streams {sizes} --device {setting.device}"
            f" --dtype {setting.dtype} --rounds {rounds}",
            "machine": where,
            "shape": asdict(shape) | {"device": setting.device},
            "dtype": setting.dtype,
            "clock": clock,
            "rounds": rounds,
            "backward_milliseconds": {name: timings[name].as_dict() for name in steps if name in timings},
            "backward_peak_bytes": dict(memory),
            "ratio_to_plain": {name: time_of[name] / time_of[PLAIN] for name in steps if name in time_of},
            "floor": floors,
            "vectors": {name: cost.vectors for name, cost in costs.items()},
            "extra_flops": {name: cost.flops for name, cost in costs.items()},
            "copy_gigabytes_per_second": bandwidth / 1e9,
            "gigaflops_per_second": arithmetic / 1e9,
            "copy": {"forward": timings[COPY].as_dict()},
            "left_out": left_out | dict(failed),
            "failed": dict(failed),
        }

    def keep_timings(timings: Mapping[str, Timing], failed: Mapping[str, str]) -> None:
        if keep and PLAIN in timings:
            keep(so_far(timings, failed))

    progress = Progress((rounds + 2) * len(calls))
    timings, failed = interleaved(calls, rounds, progress, setting.device, keep_timings)
    if PLAIN not in timings:
        raise RuntimeError(f"the plain stream, which all are measured by, did not run: {failed[PLAIN]}")
    for name in steps:
        if name in timings:
            progress.step(f"memory of {name}")
            memory[name] = peak_bytes(steps[name], setting.device)
            keep_timings(timings, failed)
    progress.close()
    mix = _depth_mix(shape, setting, rounds)
    result = so_far(timings, failed) | {"depth_mix": mix}
    return result | {
        "failed": {**failed, **{f"depth_mix, {name}": why for name, why in mix["failed"].items()}}
    }


def designs() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is timed: every design by name with its defaults, and the variants."""
    from t2lib.streams import STREAMS

    return {name: (name, {}) for name in STREAMS} | VARIANTS


def _decoder(shape: Shape, setting: Setting, stream: str, options: dict[str, Any]) -> Any:
    import torch

    from t2lib.decoder import Decoder

    torch.manual_seed(0)
    # SwiGLU at its usual width, 8/3 of the model's, in steps of 32.
    hidden = 32 * max(1, round(8 * shape.width / 3 / 32))
    decoder = Decoder(
        width=shape.width,
        blocks=shape.blocks,
        heads=shape.heads,
        hidden=hidden,
        context=shape.tokens,
        stream=stream,
        stream_options=options,
    )
    return decoder.to(setting.device, getattr(torch, setting.dtype))


def _step(decoder: Any, shape: Shape, setting: Setting) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (shape.batch, shape.tokens), generator=generator).to(setting.device)
    parameters = list(decoder.parameters())

    def step() -> Any:
        loss = decoder(tokens).float().square().mean()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    return step


def _depth_mix(shape: Shape, setting: Setting, rounds: int) -> dict[str, Any]:
    """The sum over as many states as the decoder has sublayers, against a product with a stack given."""
    mix = depth_mix.Shape(tokens=4 * shape.tokens, width=2 * shape.width, states=2 * shape.blocks)
    found = _runner.measure(depth_mix, mix, setting, rounds=rounds, growth=False)
    kept = (
        "shape",
        "milliseconds",
        "peak_bytes",
        "rungs",
        "ratios",
        "bytes_moved",
        "copy_milliseconds",
        "failed",
    )
    return {key: found[key] for key in kept}


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table of the designs, and the rows of depth_mix."""
    yield ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    shape = ", ".join(f"{name} {value}" for name, value in result["shape"].items())
    yield f"streams, forward + backward of one decoder: {shape}, {result['dtype']}, {_table.rounds(result)}"
    copy, product = map(_table.digits, (result["copy_gigabytes_per_second"], result["gigaflops_per_second"]))
    yield f"floor: extra bytes or FLOPs at {copy} GB/s and {product} GFLOP/s, backward twice forward"
    yield ""
    clock = result["clock"]
    head = f"{_table.UNITS[clock]} ms"
    yield f"{'':<36}{head:>10}{'quartiles':>20}{'ratio':>8}{'floor':>8}{'peak MB':>10}{'vectors':>9}"
    timings, memory = result["backward_milliseconds"], result["backward_peak_bytes"]
    for name, timing in sorted(timings.items(), key=lambda entry: entry[1][clock]):
        spread = _table.quartiles(timing, clock)
        held = _table.digits(memory[name] / 1e6) if name in memory else ""
        yield (
            f"{name:<36}{_table.digits(timing[clock]):>10}{spread:>20}{result['ratio_to_plain'][name]:>8.2f}"
            f"{result['floor'][name]:>8.2f}{held:>10}"
            f"{result['vectors'][name]:>9g}"
        )
    # A run that was cut short has none.
    if mix := result.get("depth_mix"):
        yield ""
        sizes = ", ".join(f"{name} {value}" for name, value in mix["shape"].items())
        yield f"depth_mix, forward: {sizes}"
        for name, timing in sorted(mix["milliseconds"].items(), key=lambda entry: entry[1][clock]):
            held = _table.digits(mix["peak_bytes"][name] / 1e6) if name in mix["peak_bytes"] else ""
            time, spread = _table.digits(timing[clock]), _table.quartiles(timing, clock)
            yield f"{name:<36}{time:>10}{spread:>20}{held:>26}"
        for entry in mix["ratios"]:
            yield _table.ratio_line(entry)
    for name in unmeasured(result):
        yield f"{_table.NOT_MEASURED}: {name}"
    for name, why in result["left_out"].items():
        yield f"not timed: {name}, {why}"


def unmeasured(result: Mapping[str, Any]) -> list[str]:
    """Designs that a run was cut short before; those that failed are left out with their reasons."""
    return [
        name for name in result["floor"] if name not in {**result["ratio_to_plain"], **result["left_out"]}
    ]
