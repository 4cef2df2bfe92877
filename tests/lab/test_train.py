"""A run that is killed goes on to the weights of a run that was not."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from t2lib.decoder import DecoderConfig
from t2lib.lab.corpus import Corpus, load_corpus
from t2lib.lab.train import CHECKPOINT, Run, TrainSettings, main, save, steps_in

CONFIG = DecoderConfig(width=16, blocks=2, heads=2, hidden=16, context=16, dropout=0.1)
SETTINGS = TrainSettings(steps=60, batch=2, warmup=5, save_every=1, validate_every=1000, log_every=7, seed=5)
COMMAND = [
    *(sys.executable, "-m", "t2lib.lab.train", "--resume"),
    *("--steps", "60", "--batch", "2", "--warmup", "5", "--save-every", "1", "--log-every", "7"),
    *("--validate-every", "1000", "--seed", "5", "--width", "16", "--blocks", "2", "--heads", "2"),
    *("--hidden", "16", "--context", "16", "--dropout", "0.1"),
]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def short(corpus: Corpus) -> Corpus:
    """The same training text, with little to validate on."""
    text = min(corpus.validation_topics.values(), key=len)
    return Corpus(corpus.train_topics, {"short": text})


def killed_after(step: int, out: Path) -> int:
    """Start the command, kill it once `step` steps are saved; returns the step it had reached."""
    process = subprocess.Popen([*COMMAND, "--out", str(out)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and saved_step(out) < step:
        time.sleep(0.02)
    assert process.poll() is None, "the run ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return saved_step(out)


def saved_step(out: Path) -> int:
    path = out / CHECKPOINT
    return torch.load(path, weights_only=True)["step"] if path.exists() else 0


def test_killed_and_resumed_is_never_stopped(tmp_path: Path, corpus: Corpus) -> None:
    """SIGKILL at a moment the run does not know of; then every bit of the end state is the same."""
    assert 3 <= killed_after(3, tmp_path) < SETTINGS.steps
    subprocess.run([*COMMAND, "--out", str(tmp_path)], check=True, capture_output=True)

    whole = Run(SETTINGS, CONFIG, corpus)
    (tmp_path / "whole").mkdir()
    whole.train(tmp_path / "whole")
    resumed = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    expected = torch.load(tmp_path / "whole" / CHECKPOINT, weights_only=True)
    assert resumed["step"] == 60
    for name, weight in expected["model"].items():
        assert torch.equal(resumed["model"][name], weight), name
    for index, moments in expected["optimiser"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(resumed["optimiser"]["state"][index][name], value), (index, name)
    for name in ("train_curve", "validation_curve", "order_generator", "recent"):
        assert resumed[name] == expected[name], name
    assert torch.equal(resumed["torch_generator"], expected["torch_generator"])


def test_a_write_that_dies_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / CHECKPOINT
    save({"step": 1}, path)

    def dies(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(OSError, match="disk full"):
        save({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}


def test_the_seed_decides(tmp_path: Path, corpus: Corpus) -> None:
    one, same, other = (Run(TrainSettings(seed=seed), CONFIG, corpus) for seed in (1, 1, 2))
    assert torch.equal(one.decoder.embedding.weight, same.decoder.embedding.weight)
    assert torch.equal(one.batch(), same.batch())
    assert not torch.equal(one.decoder.embedding.weight, other.decoder.embedding.weight)
    assert not torch.equal(one.batch(), other.batch())


def test_batches_are_pieces_of_the_training_text(corpus: Corpus) -> None:
    run = Run(TrainSettings(batch=5), CONFIG, corpus)
    batch = run.batch()
    assert batch.shape == (5, CONFIG.context + 1)
    assert all(bytes(row.tolist()) in corpus.train for row in batch)


def test_training_lowers_the_loss(tmp_path: Path, corpus: Corpus) -> None:
    settings = TrainSettings(steps=60, batch=8, warmup=5, learning_rate=1e-2, validate_every=30)
    run = Run(settings, CONFIG, short(corpus))
    run.train(tmp_path)
    assert run.train_curve[0][1] > 4.5
    assert run.train_curve[-1][1] < 3.6
    assert [step for step, _ in run.validation_curve] == [30, 60]
    assert run.validation_curve[-1][1] < math.log(256) - 1.5


def test_rate_warms_up_and_decays() -> None:
    settings = TrainSettings(steps=110, warmup=10, learning_rate=1.0, final_fraction=0.1)
    rates = np.array([settings.rate(step) for step in range(111)])
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[60] == pytest.approx(0.55)
    assert rates[110] == pytest.approx(0.1)
    assert (np.diff(rates[10:]) < 0).all()


def test_decay_spares_the_gains(corpus: Corpus) -> None:
    groups = Run(SETTINGS, CONFIG, corpus).optimiser.param_groups
    assert [group["weight_decay"] for group in groups] == [SETTINGS.weight_decay, 0.0]
    assert {weight.ndim for weight in groups[0]["params"]} == {2}
    assert {weight.ndim for weight in groups[1]["params"]} == {1}


def test_another_corpus_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    run = Run(SETTINGS, CONFIG, corpus)
    save(run.state(), tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match="was made on another corpus"):
        Run.resume(tmp_path / CHECKPOINT, short(corpus))


def test_steps_fit_into_the_minutes(corpus: Corpus) -> None:
    """More time, more steps; no time is refused."""
    assert steps_in(1.0, SETTINGS, CONFIG, corpus) > steps_in(0.01, SETTINGS, CONFIG, corpus) >= 1
    with pytest.raises(ValueError, match=r"minutes must be positive, got 0\.0"):
        steps_in(0.0, SETTINGS, CONFIG, corpus)


def test_command_line_refuses_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--out", str(tmp_path), "--heads", "5"])
    with pytest.raises(SystemExit, match="heads must divide width: got heads=5, width=96"):
        main()
    (tmp_path / CHECKPOINT).write_bytes(b"")
    with pytest.raises(SystemExit, match="pass --resume to go on from it, or another --out"):
        main()


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        TrainSettings(batch=0)
