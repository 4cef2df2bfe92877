"""Train the lab's decoder: `python -m t2lib.lab.train --out DIR --steps 2000`.

AdamW, linear warm-up and cosine decay, gradient clipping. Everything random has a seed: weights and
dropout come from torch's generator, the order of the data from a NumPy generator; the state of both is
in the checkpoint. A checkpoint replaces the one before it in a single step, so a run that is killed at
any moment leaves a whole one behind, and `--resume` goes on from there to the same weights, bit for bit,
as if it had never stopped (same machine, same number of threads).
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from t2lib.decoder import Decoder, DecoderConfig
from t2lib.lab.corpus import Corpus, load_corpus
from t2lib.lab.evaluate import loss_per_byte

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class TrainSettings:
    """All that decides a run besides the corpus. `batch` counts sequences of one context each."""

    steps: int = 2000
    batch: int = 16
    learning_rate: float = 3e-3
    warmup: int = 100
    final_fraction: float = 0.05
    weight_decay: float = 0.1
    beta2: float = 0.98
    clip: float = 1.0
    seed: int = 0
    validate_every: int = 200
    save_every: int = 100
    log_every: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "validate_every", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def rate(self, step: int) -> float:
        """The learning rate of update `step`, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)


class Run:
    """A training run: weights, optimiser, generators, and the curve so far."""

    def __init__(self, settings: TrainSettings, config: DecoderConfig, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self.data = np.frombuffer(corpus.train, dtype=np.uint8)
        torch.manual_seed(settings.seed)
        self.order = np.random.default_rng(settings.seed)
        self.decoder = Decoder(config)
        # Decay acts on matrices alone; a norm gain pulled to zero would switch a sublayer off.
        matrices = [p for p in self.decoder.parameters() if p.ndim >= 2]
        gains = [p for p in self.decoder.parameters() if p.ndim < 2]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": gains, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, settings.beta2),
        )
        self.step = 0
        self.seconds = 0.0
        self.recent: list[float] = []
        self.train_curve: list[tuple[int, float]] = []
        self.validation_curve: list[tuple[int, float]] = []

    def batch(self) -> Tensor:
        """(batch, context + 1) bytes at random places of the training text, as int64."""
        length = self.decoder.config.context + 1
        starts = self.order.integers(0, len(self.data) - length + 1, size=self.settings.batch)
        return torch.from_numpy(self.data[starts[:, None] + np.arange(length)].astype(np.int64))

    def update(self) -> float:
        """One step of the optimiser; returns the loss in nats per byte before it."""
        self.decoder.train()
        tokens = self.batch()
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate(self.step)
        self.optimiser.zero_grad(set_to_none=True)
        logits = self.decoder(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.settings.clip)
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def train(self, out: Path) -> None:
        """Go on to the last step, with a checkpoint in `out` every `save_every` steps and at the end."""
        settings = self.settings
        last = time.monotonic()
        with tqdm(total=settings.steps, initial=self.step, unit="step", mininterval=1.0) as bar:
            while self.step < settings.steps:
                self.recent.append(self.update())
                finished = self.step == settings.steps
                if self.step % settings.log_every == 0 or finished:
                    self.train_curve.append((self.step, float(np.mean(self.recent))))
                    self.recent.clear()
                if self.step % settings.validate_every == 0 or finished:
                    loss = loss_per_byte(self.decoder, self.corpus.validation)
                    self.validation_curve.append((self.step, loss))
                now = time.monotonic()
                self.seconds, last = self.seconds + now - last, now
                if self.step % settings.save_every == 0 or finished:
                    save(self.state(), out / CHECKPOINT)
                bar.update()
                if self.train_curve:
                    shown = {"train": f"{self.train_curve[-1][1]:.3f}"}
                    if self.validation_curve:
                        shown["validation"] = f"{self.validation_curve[-1][1]:.3f}"
                    bar.set_postfix(shown, refresh=False)

    def state(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "config": asdict(self.decoder.config),
            "corpus": self.corpus.sha256,
            "model": self.decoder.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "torch_generator": torch.get_rng_state(),
            "order_generator": self.order.bit_generator.state,
            "recent": self.recent,
            "train_curve": self.train_curve,
            "validation_curve": self.validation_curve,
        }

    @classmethod
    def resume(cls, path: Path, corpus: Corpus) -> Run:
        """The run as it was when `path` was written."""
        state = torch.load(path, weights_only=True)
        if state["corpus"] != corpus.sha256:
            raise ValueError(
                f"the checkpoint {path} was made on another corpus (another Python release): "
                f"it has {state['corpus']}, this one has {corpus.sha256}."
            )
        run = cls(TrainSettings(**state["settings"]), DecoderConfig(**state["config"]), corpus)
        run.decoder.load_state_dict(state["model"])
        run.optimiser.load_state_dict(state["optimiser"])
        run.step, run.seconds, run.recent = state["step"], state["seconds"], state["recent"]
        run.train_curve, run.validation_curve = state["train_curve"], state["validation_curve"]
        run.order.bit_generator.state = state["order_generator"]
        torch.set_rng_state(state["torch_generator"])
        return run


def save(state: dict[str, Any], path: Path) -> None:
    """Write `state` so that `path` holds either the old checkpoint or the new one, never a part.

    The bytes go to a file beside it and reach the disk before the name moves over.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def steps_in(minutes: float, settings: TrainSettings, config: DecoderConfig, corpus: Corpus) -> int:
    """How many steps fit into `minutes`, from a few timed ones on a run that is thrown away."""
    if not minutes > 0:
        raise ValueError(f"minutes must be positive, got {minutes}.")
    trial = Run(settings, config, corpus)
    trial.update()
    start = time.monotonic()
    for _ in range(5):
        trial.update()
    return max(1, int(minutes * 60 / ((time.monotonic() - start) / 5)))


def arguments() -> argparse.ArgumentParser:
    defaults, config = TrainSettings(), DecoderConfig()
    parser = argparse.ArgumentParser(prog="python -m t2lib.lab.train", description="Train the lab's decoder.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in --out, if any, with its settings"
    )
    parser.add_argument("--minutes", type=float, help="choose --steps by timing a few steps first")
    parser.add_argument("--threads", type=int, default=1)
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    for name, value in asdict(config).items():
        # The options of a stream are given as JSON: --stream-options '{"period": 2}'.
        parse = json.loads if isinstance(value, dict) else type(value)
        parser.add_argument(f"--{name.replace('_', '-')}", type=parse, default=value)
    return parser


def started(given: argparse.Namespace, corpus: Corpus) -> Run:
    """A new run as the command line asks for it."""
    config = DecoderConfig(**{name: getattr(given, name) for name in asdict(DecoderConfig())})
    settings = TrainSettings(**{name: getattr(given, name) for name in asdict(TrainSettings())})
    if given.minutes is not None:
        settings = replace(settings, steps=steps_in(given.minutes, settings, config, corpus))
    return Run(settings, config, corpus)


def main() -> None:
    given = arguments().parse_args()
    torch.set_num_threads(given.threads)
    corpus = load_corpus()
    path: Path = given.out / CHECKPOINT
    if path.exists() and not given.resume:
        raise SystemExit(f"{path} exists: pass --resume to go on from it, or another --out.")
    try:
        run = Run.resume(path, corpus) if path.exists() else started(given, corpus)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    given.out.mkdir(parents=True, exist_ok=True)
    run.train(given.out)
    print(f"step {run.step}: validation {run.validation_curve[-1][1]:.4f} nats a byte")


if __name__ == "__main__":
    main()
