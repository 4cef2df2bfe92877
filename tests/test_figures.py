"""The look of the plots: fixed size, readable in both themes, told apart without colour."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from t2lib import figures


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def pixels(fig: Any) -> tuple[int, int, Any]:
    from matplotlib import image

    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    buffer.seek(0)
    picture = image.imread(buffer)
    return picture.shape[1], picture.shape[0], picture


def test_the_size_in_pixels_is_what_was_asked_for() -> None:
    fig, axes = figures.figure(width=5, height=3)
    axes.set_ylabel("a long label\non two lines")
    axes.set_title("A title")
    width, height, _ = pixels(fig)
    assert (width, height) == (5 * figures.DPI, 3 * figures.DPI)


def test_the_background_is_opaque_and_soft() -> None:
    fig, _ = figures.figure()
    corner = pixels(fig)[2][0, 0]
    expected = [int(figures.COLOURS["paper"][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    np.testing.assert_allclose(corner, [*expected, 1.0], atol=1 / 255)


def test_text_and_lines_stand_out_from_the_background() -> None:
    paper = figures.COLOURS["paper"]
    assert contrast(figures.COLOURS["ink"], paper) > 7
    assert contrast(figures.COLOURS["quiet"], paper) > 4.5
    # 3:1 is what WCAG 1.4.11 asks of graphics.
    assert all(contrast(colour, paper) >= 3 for colour in figures.CYCLE)


def test_series_differ_in_more_than_colour() -> None:
    _, axes = figures.figure()
    figures.lines(axes, range(3), {name: np.arange(3) for name in "abcdef"})
    drawn = [(line.get_marker(), str(line._unscaled_dash_pattern)) for line in axes.get_lines()]
    assert len(set(drawn)) == 6
    assert len({marker for marker, _ in drawn}) == 6


@pytest.mark.parametrize("blindness", ["protan", "deutan", "tritan"])
def test_the_two_axes_stay_apart_for_colour_blind_readers(blindness: str) -> None:
    # Full simulation after Viénot, Brettel and Mollon (1999) for protan and deutan; a plain
    # blue-yellow collapse for tritan. Distances are Euclidean in linear RGB.
    matrices = {
        "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
        "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
        "tritan": [[1.0, 0.1, -0.1], [0.0, 0.9, 0.1], [0.0, 0.7, 0.3]],
    }

    def seen(colour: str) -> Any:
        channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return np.clip(np.array(matrices[blindness]) @ channels**2.2, 0, 1)

    pairs = combinations([figures.COLOURS[name] for name in ("tokens", "depth")], 2)
    assert all(np.linalg.norm(seen(a) - seen(b)) > 0.15 for a, b in pairs)


def test_the_grid_has_depth_upwards_and_names_its_bytes() -> None:
    _, axes = figures.figure()
    image = figures.grid(axes, np.arange(12.0).reshape(3, 4), tokens=b"a b\n", label="norm", numbers=".0f")
    assert image.origin == "lower"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "␣", "b", "↵"]
    assert [text.get_text() for text in axes.texts][:5] == ["0", "1", "2", "3", "4"]


def test_a_signed_grid_is_centred_at_zero() -> None:
    _, axes = figures.figure()
    image = figures.grid(axes, np.array([[-1.0, 3.0]]), signed=True)
    assert image.get_clim() == (-3.0, 3.0)


@pytest.mark.parametrize(
    ("values", "options", "sentence"),
    [
        (np.zeros(3), {}, r"values must have two axes, \(levels, tokens\), got shape \(3,\)"),
        (np.zeros((2, 3)), {"tokens": b"ab"}, "tokens must name 3 columns, got 2 labels"),
        (np.zeros((2, 3)), {"levels": ["0"]}, "levels must name 2 rows, got 1 labels"),
    ],
)
def test_bad_input_is_one_sentence(values: Any, options: dict[str, Any], sentence: str) -> None:
    _, axes = figures.figure()
    with pytest.raises(ValueError, match=sentence):
        figures.grid(axes, values, **options)


def test_importing_does_not_import_matplotlib() -> None:
    code = "import sys, t2lib.figures; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_readers_own_settings_do_not_change_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matplotlib.rcParams, "savefig.bbox", "tight")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 3.0)
    fig, axes = figures.figure(width=4, height=2)
    assert pixels(fig)[:2] == (4 * figures.DPI, 2 * figures.DPI)
    assert axes.xaxis.label.get_fontsize() == 13
