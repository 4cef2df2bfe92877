"""Turn a finished run into the files of `weights/`: `python -m t2lib.lab.ship --run DIR --command "..."`."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from t2lib.decoder import Decoder
from t2lib.lab.baseline import bits, fit
from t2lib.lab.corpus import Corpus, load_corpus
from t2lib.lab.evaluate import loss_per_byte
from t2lib.lab.train import CHECKPOINT, Run


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def rounded(decoder: Decoder) -> dict[str, torch.Tensor]:
    """Float16 weights; puts the same rounded values into `decoder`."""
    halves = {name: weight.half() for name, weight in decoder.state_dict().items()}
    decoder.load_state_dict({name: half.float() for name, half in halves.items()})
    return halves


def describe(run: Run, corpus: Corpus, command: str) -> dict[str, Any]:
    """The sidecar; the losses are those of the weights `run.decoder` has now."""
    state = run.state()
    decoder = run.decoder
    loss, trigram = loss_per_byte(decoder, corpus.validation), fit(corpus.train)
    baseline = trigram.loss(corpus.validation)
    tokens = run.step * run.settings.batch * decoder.config.context
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "processor": processor(),
        "minutes": round(run.seconds / 60, 1),
        "config": state["config"],
        "settings": state["settings"],
        "parameters": sum(weight.numel() for weight in decoder.parameters()),
        "initialisation": "N(0, 0.02^2); attention.output and mlp.down N(0, 0.02^2 / 2L); gains 1",
        "step": run.step,
        "tokens_seen": tokens,
        "corpus": {
            "source": "pydoc_data.topics.topics of the Python above, repeated paragraphs removed",
            "sha256": corpus.sha256,
            "bytes": {"train": len(corpus.train), "validation": len(corpus.validation)},
            "epochs": round(tokens / len(corpus.train), 2),
            "validation_topics": sorted(corpus.validation_topics),
        },
        "weights_dtype": "float16",
        "validation": {
            "what": "after rounding to float16, on weights/validation.txt, by lab.evaluate.loss_per_byte",
            "nats_per_byte": round(loss, 5),
            "bits_per_byte": round(bits(loss), 5),
        },
        "trigram": {
            "what": "lab.baseline on the same split",
            "strengths": trigram.strengths,
            "nats_per_byte": round(baseline, 5),
            "bits_per_byte": round(bits(baseline), 5),
        },
        "train_curve": [[step, round(value, 4)] for step, value in run.train_curve],
        "validation_curve": [[step, round(value, 4)] for step, value in run.validation_curve],
    }


def main() -> None:
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(prog="python -m t2lib.lab.ship", description="Ship a finished run.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--command", required=True, help="the command that made the run")
    parser.add_argument("--weights", type=Path, default=Path(__file__).parent / "weights")
    given = parser.parse_args()
    torch.set_num_threads(1)
    corpus = load_corpus()
    run = Run.resume(given.run / CHECKPOINT, corpus)
    given.weights.mkdir(exist_ok=True)
    weights = given.weights / "decoder.safetensors"
    save_file(rounded(run.decoder), weights)
    weights.chmod(0o644)
    card = describe(run, corpus, given.command)
    # One line a point keeps the file short and its differences readable.
    text = re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", json.dumps(card, indent=1))
    (given.weights / "decoder.json").write_text(text + "\n", encoding="utf-8")
    (given.weights / "validation.txt").write_bytes(corpus.validation)
    print(card["validation"], card["trigram"])


if __name__ == "__main__":
    main()
