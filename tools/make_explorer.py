"""Make the data of the duality explorer from the shipped model.

    python tools/make_explorer.py            renew book/_static/explorer/data.js and still.svg
    python tools/make_explorer.py --check    fail if they are not those of the shipped weights

The explorer computes softmax weights in the browser. All it needs are the inner products of the states on
each row and each column of the grid; the states are computed in float64, so that every machine gets them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import t2lib.lab
from t2lib.figures import byte_labels
from t2lib.ops import short_swa

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "book" / "_static" / "explorer"
WEIGHTS = Path(t2lib.lab.__file__).parent / "weights" / "decoder.safetensors"

TEXT = "the value of the"
START = 14
EPS = 1e-6
# More digits than float32 has: the scores are large when states are compared raw, and exp is unforgiving.
DIGITS = 10

Array = npt.NDArray[np.float64]


def states() -> Array:
    """The shipped model's stack on the sentence: (L+1, T, d), float64."""
    decoder = t2lib.lab.load_decoder().double()
    with torch.no_grad():
        return np.asarray(decoder.hidden_states(t2lib.lab.encode(TEXT)).numpy())


def data(stack: Array) -> dict[str, Any]:
    """What the page needs: inner products as lower triangles, row by row, and the labels."""
    levels, tokens, width = stack.shape
    return {
        "text": TEXT,
        "labels": byte_labels(TEXT),
        "levels": levels,
        "width": width,
        "eps": EPS,
        "start": START,
        "weights_sha256": hashlib.sha256(WEIGHTS.read_bytes()).hexdigest(),
        "rows": [triangle(stack[level]) for level in range(levels)],
        "columns": [triangle(stack[:, token]) for token in range(tokens)],
    }


def triangle(line: Array) -> list[float]:
    """Inner products of the states on one line, each pair once."""
    gram = line @ line.T
    return [float(f"{gram[i, j]:.{DIGITS}g}") for i in range(len(line)) for j in range(i + 1)]


def read_weights(stack: Array, axis: int, window: int, *, normalised: bool) -> Array:
    """The weights of every read of the grid, by the library: (levels, tokens, length of the axis).

    The values are one-hot rows, so that what a read returns is its own weights.
    """
    if normalised:
        stack = stack / np.sqrt((stack**2).mean(-1, keepdims=True) + EPS)
    levels, tokens, _ = stack.shape
    one_hot = np.eye(stack.shape[axis])
    values = np.broadcast_to(one_hot[:, None] if axis == 0 else one_hot[None], (levels, tokens, len(one_hot)))
    return np.asarray(short_swa(stack, stack, values, window=window, axis=axis, rung="arrays"))


def still(stack: Array) -> str:
    """The figure for readers without JavaScript: one read along each axis, side by side, as SVG."""
    levels, tokens, _ = stack.shape
    level, token, window = 5, START, 4
    cell, left, top, apart = 18, 40, 40, 60
    width = 2 * (left + tokens * cell) + apart
    height = top + levels * cell + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#f7f5ef"/>',
    ]
    for axis, name, colour in ((1, "tokens", "#0b5d94"), (0, "depth", "#a64300")):
        x0 = left if axis == 1 else left + tokens * cell + left + apart - 20
        weights = read_weights(stack, axis, window, normalised=True)[level, token]
        title = f"axis={axis}: the row" if axis == 1 else f"axis={axis}: the column"
        parts.append(f'<text x="{x0}" y="24" font-size="14" fill="#22272e">Along {name} ({title})</text>')
        for i in range(levels):
            for j in range(tokens):
                x, y = x0 + j * cell, top + (levels - 1 - i) * cell
                on_line = i == level if axis == 1 else j == token
                weight = float(weights[j if axis == 1 else i]) if on_line else 0.0
                seen = on_line and weight > 0
                fill = (
                    f'fill="{colour}" fill-opacity="{0.1 + 0.9 * weight:.3f}"' if seen else 'fill="#fdfcf8"'
                )
                here = (i, j) == (level, token)
                stroke = "#22272e" if here else colour if seen else "#dedacd"
                box = f'x="{x}" y="{y}" width="{cell - 2}" height="{cell - 2}" rx="3"'
                parts.append(f'<rect {box} {fill} stroke="{stroke}" stroke-width="{2 if here else 1}"/>')
        below = top + levels * cell + 12
        for j, label in enumerate(byte_labels(TEXT)):
            x = x0 + j * cell + cell // 2 - 1
            parts.append(
                f'<text x="{x}" y="{below}" font-size="11" font-family="monospace" '
                f'text-anchor="middle" fill="#22272e">{label}</text>'
            )
        seen_weights = [f"{weight:.2f}" for weight in weights if weight > 0]
        line = f"weights, oldest first: {', '.join(seen_weights)}"
        parts.append(f'<text x="{x0}" y="{below + 28}" font-size="13" fill="#22272e">{line}</text>')
        for i in range(0, levels, 2):
            y = top + (levels - 1 - i) * cell + cell // 2 + 3
            parts.append(
                f'<text x="{x0 - 10}" y="{y}" font-size="11" text-anchor="middle" fill="#22272e">{i}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def script(found: dict[str, Any]) -> str:
    """The data as a script: a page opened from a file may not fetch one."""
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return f"window.T2ExplorerData={text};\n"


def stored() -> dict[str, Any]:
    """The data as it lies in the book."""
    text = (FOLDER / "data.js").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.removeprefix("window.T2ExplorerData=").rstrip().removesuffix(";"))
    return found


def stale() -> list[str]:
    """What differs between the stored data and the shipped weights, beyond the rounding of machines."""
    fresh, old = data(states()), stored()
    lines = ("rows", "columns")
    found = [key for key in fresh if key not in lines and fresh[key] != old.get(key)]
    for key in lines:
        same_shape = np.shape(fresh[key]) == np.shape(old.get(key, []))
        if not same_shape or not np.allclose(fresh[key], old[key], rtol=1e-7, atol=1e-7):
            found.append(key)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the data of the duality explorer.")
    parser.add_argument("--check", action="store_true", help="fail if the stored data are stale")
    if parser.parse_args(arguments).check:
        found = stale()
        if found:
            print(f"The explorer's data are stale ({', '.join(found)}): run python tools/make_explorer.py.")
        return 1 if found else 0
    stack = states()
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "data.js").write_text(script(data(stack)), encoding="utf-8")
    (FOLDER / "still.svg").write_text(still(stack), encoding="utf-8")
    print(f"Wrote data.js and still.svg for {TEXT!r}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
