"""Golden vectors: float64 arrays made by reference implementations, each with a sidecar that describes them.

A file NAME.npz holds inputs `in__*`, parameters `par__*`, the output `out`, a fixed `cotangent` and the
gradients `grad__*` of sum(out * cotangent). NAME.json says what each array is and which implementation made
it.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt


def names(prefix: str = "") -> list[str]:
    """The names of all golden vectors that begin with `prefix`, sorted."""
    files = resources.files(__name__).iterdir()
    stems = (file.name.removesuffix(".npz") for file in files if file.name.endswith(".npz"))
    return sorted(stem for stem in stems if stem.startswith(prefix))


def load(name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of one golden vector by name. An unknown name is a ValueError."""
    _check(name)
    with resources.files(__name__).joinpath(f"{name}.npz").open("rb") as file, np.load(file) as archive:
        return {key: archive[key] for key in archive.files}


def sidecar(name: str) -> dict[str, Any]:
    """What the arrays of one golden vector mean and what made them."""
    _check(name)
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    described: dict[str, Any] = json.loads(text)
    return described


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """The shape of every array, as the sidecar tells it: some list arrays, others map names to them."""
    arrays = sidecar(name)["arrays"]
    pairs = arrays.items() if isinstance(arrays, dict) else ((entry["name"], entry) for entry in arrays)
    return {key: tuple(entry["shape"]) for key, entry in pairs}


def _check(name: str) -> None:
    if name not in names():
        raise ValueError(f"name must be one of t2lib.golden.names(); got {name!r}.")
