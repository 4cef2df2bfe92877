"""One look for every plot of the book.

Figures have a soft, opaque background that reads on light and on dark pages, a palette that colour-blind
readers can tell apart, text that stays readable on a phone, and a fixed size in pixels, so that stored
outputs are stable. matplotlib is imported when a figure is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "CYCLE", "DPI", "byte_labels", "figure", "grid", "label_line", "lines", "show"]

DPI = 144

# After Okabe and Ito, "Color universal design" (https://jfly.uni-koeln.de/color/), darkened where thin lines
# and text need it. The two axes of the book keep their colours everywhere: tokens blue, depth orange.
COLOURS: dict[str, str] = {
    "tokens": "#0072b2",
    "depth": "#d55e00",
    "green": "#00855f",
    "purple": "#a85587",
    "sky": "#3b8fc4",
    "yellow": "#a97b00",
    "ink": "#22272e",
    "quiet": "#66707c",
    "rule": "#d5d3cb",
    "paper": "#f7f5ef",
}
CYCLE = tuple(COLOURS[name] for name in ("tokens", "depth", "green", "purple", "yellow", "sky"))
MARKERS: tuple[str, ...] = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 3)))


def _style() -> dict[str, Any]:
    ink, quiet, paper = COLOURS["ink"], COLOURS["quiet"], COLOURS["paper"]
    return {
        "figure.dpi": DPI,
        "savefig.dpi": DPI,
        "savefig.bbox": "standard",
        "figure.facecolor": paper,
        "savefig.facecolor": paper,
        "figure.constrained_layout.use": True,
        "axes.facecolor": paper,
        "axes.edgecolor": quiet,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 13.5,
        "axes.titleweight": "bold",
        "axes.labelsize": 13,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": COLOURS["rule"],
        "grid.linewidth": 0.7,
        "xtick.color": quiet,
        "ytick.color": quiet,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "xtick.labelsize": 12.5,
        "ytick.labelsize": 12.5,
        "legend.frameon": False,
        "legend.fontsize": 12.5,
        "lines.linewidth": 2.0,
        "lines.markersize": 5.0,
        "font.family": ["DejaVu Sans"],
        "font.size": 13,
        "mathtext.fontset": "dejavusans",
        "text.color": ink,
    }


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 6.0, height: float = 3.4, **options: Any
) -> tuple[Figure, Any]:
    """A figure of exactly ``width`` x ``height`` inches at 144 dots an inch, and its axes.

    ``options`` go to ``matplotlib.pyplot.subplots`` (``sharex``, ``width_ratios``, ...). A single pair of
    axes is returned as such, several as an array. Needs matplotlib.
    """
    plt = _pyplot()
    fig, axes = plt.subplots(rows, columns, figsize=(width, height), dpi=DPI, **options)
    return fig, axes


def lines(
    axes: Axes, x: Any, series: Mapping[str, Any], *, markers: bool = True, legend: bool = True
) -> None:
    """Draw each of ``series`` (name -> values over ``x``), told apart by colour, dash and marker alike."""
    for i, (name, values) in enumerate(series.items()):
        axes.plot(
            x,
            values,
            color=CYCLE[i % len(CYCLE)],
            linestyle=DASHES[i % len(DASHES)],
            marker=MARKERS[i % len(MARKERS)] if markers else None,
            label=name,
        )
    if legend and len(series) > 1:
        axes.legend()


def label_line(axes: Axes, x: float, y: float, text: str, *, colour: str = "ink") -> None:
    """Write ``text`` beside the point (x, y): for naming a curve where it is, instead of in a legend."""
    ink = COLOURS.get(colour, colour)
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", color=ink)


def grid(
    axes: Axes,
    values: Any,
    *,
    tokens: bytes | Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    label: str = "",
    limits: tuple[float, float] | None = None,
    signed: bool = False,
    numbers: str | None = None,
) -> Any:
    """Heat map of a (levels, tokens) array: depth upwards, tokens to the right, level 0 at the bottom.

    ``tokens`` names the columns: a byte string, or one label a column. ``levels`` names the rows. ``signed``
    takes a palette with a neutral middle at 0; ``limits`` fixes the ends of the scale; ``label`` names the
    colour bar; ``numbers`` (a format such as ``".2f"``) writes each value into its cell. Returns the image.
    """
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 2:
        raise ValueError(f"values must have two axes, (levels, tokens), got shape {array.shape}")
    low, high = limits or _limits(array, signed)
    palette = "PuOr_r" if signed else "cividis"
    image = axes.imshow(
        array, origin="lower", aspect="auto", cmap=palette, vmin=low, vmax=high, interpolation="nearest"
    )
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    _name_ticks(axes, array.shape, tokens, levels)
    if numbers is not None:
        _write_numbers(axes, array, numbers, image)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.set_label(label)
    return image


def byte_labels(text: bytes | str) -> list[str]:
    """One short label a byte: the character itself, ``␣`` for a space, ``↵`` for a newline, else ``·``.

    >>> byte_labels("a b")
    ['a', '␣', 'b']
    """
    special = {32: "␣", 10: "↵", 9: "→"}
    data = text.encode() if isinstance(text, str) else bytes(text)
    return [special.get(byte, chr(byte) if 32 < byte < 127 else "·") for byte in data]


def show() -> None:
    """Show what has been drawn and release it; ends a plotting cell without printing an object's name."""
    plt = _pyplot()
    plt.show()
    plt.close("all")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        # With the package's name: who runs a notebook cell by cell leaves out what needs it.
        sentence = "t2lib.figures needs matplotlib: python -m pip install matplotlib"
        raise ModuleNotFoundError(sentence, name="matplotlib") from error
    plt: Any = matplotlib.pyplot
    plt.rcdefaults()
    plt.rcParams.update(_style())
    plt.rcParams["axes.prop_cycle"] = plt.cycler(color=CYCLE)
    _keep_size()
    return plt


def _keep_size() -> None:
    # Notebooks crop each figure to its ink unless told otherwise; its size in pixels would depend on fonts.
    try:
        from IPython import get_ipython
        from matplotlib_inline import backend_inline
    except ImportError:
        return
    inline: Any = backend_inline
    if get_ipython() is not None:
        inline.set_matplotlib_formats("png", bbox_inches=None, facecolor=COLOURS["paper"])


def _limits(array: Any, signed: bool) -> tuple[float, float]:
    import numpy as np

    finite = array[np.isfinite(array)]
    if finite.size == 0:
        return 0.0, 1.0
    if signed:
        reach = float(np.abs(finite).max()) or 1.0
        return -reach, reach
    return float(finite.min()), float(finite.max())


def _name_ticks(
    axes: Axes,
    shape: tuple[int, int],
    tokens: bytes | Sequence[str] | None,
    levels: Sequence[str] | None,
) -> None:
    axes.tick_params(length=0)
    axes.set_xlabel("token")
    axes.set_ylabel("level")
    if tokens is not None:
        names = byte_labels(tokens) if isinstance(tokens, bytes) else list(tokens)
        if len(names) != shape[1]:
            raise ValueError(f"tokens must name {shape[1]} columns, got {len(names)} labels")
        axes.set_xticks(range(shape[1]), names, family="monospace")
    if levels is not None:
        if len(levels) != shape[0]:
            raise ValueError(f"levels must name {shape[0]} rows, got {len(levels)} labels")
        axes.set_yticks(range(shape[0]), list(levels))
    elif shape[0] <= 20:
        step = 1 if shape[0] <= 10 else 2
        axes.set_yticks(range(0, shape[0], step))


def _write_numbers(axes: Axes, array: Any, form: str, image: Any) -> None:
    import numpy as np

    for (row, column), value in np.ndenumerate(array):
        red, green, blue, _ = image.cmap(image.norm(value))
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45
        ink = "#111111" if light else "#ffffff"
        axes.text(column, row, format(value, form), ha="center", va="center", color=ink)
