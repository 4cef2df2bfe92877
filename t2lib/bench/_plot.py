"""Two kinds of plots of what was measured: how times grow with the sizes, and the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2lib import figures
from t2lib.bench._case import BACKWARD, FORWARD
from t2lib.bench._table import where

Result = Mapping[str, Any]
RUNGS = ("arrays", "eager", "compiled", "kernels")
# One colour and one marker a rung in every plot.
COLOUR = {"arrays": "green", "eager": "tokens", "compiled": "depth", "kernels": "purple"}
MARKER = dict(zip(RUNGS, figures.MARKERS, strict=False))
# Panels side by side.
COLUMNS = 3


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write the plots of these results into the folder; returns their files."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for result in results if result.get("growth") for file in _growth(result, folder)]
    rooted = [result for result in results if "flops" in result]
    for device in dict.fromkeys(map(where, rooted)):
        files.append(_roofline([result for result in rooted if where(result) == device], folder))
    return files + [_streams(result, folder) for result in results if "ratio_to_plain" in result]


def _on(result: Result) -> str:
    """Device and dtype, without which a time says nothing."""
    return f"{result['machine']['device']}, {result.get('dtype', 'float32')}"


def _growth(result: Result, folder: Path) -> Iterator[Path]:
    """Times over each size, both axes doubling alike, so that linear growth is the dotted diagonal."""
    axes_of = result["growth"]
    rows, columns = -(-len(axes_of) // COLUMNS), min(COLUMNS, len(axes_of))
    figure, panels = figures.figure(
        rows, columns, width=3.6 * columns, height=0.9 + 2.7 * rows, sharey=True, squeeze=False
    )
    for panel in panels.flat[len(axes_of) :]:
        panel.set_visible(False)
    for panel, (letter, growth) in zip(panels.flat, axes_of.items(), strict=False):
        for rung in RUNGS:
            for which, dash in ((FORWARD, "-"), (BACKWARD, (0, (5, 2)))):
                if times := growth[which].get(rung):
                    label = rung if which == FORWARD else f"{rung}, with backward"
                    colour = figures.COLOURS[COLOUR[rung]]
                    panel.plot(
                        growth["sizes"], times, color=colour, linestyle=dash, marker=MARKER[rung], label=label
                    )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(growth["sizes"], [f"{size:g}" for size in growth["sizes"]])
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.set_xlabel(f"{letter}, {growth['name'].replace('_', ' ')}")
        drawn = [times for which in (FORWARD, BACKWARD) for times in growth[which].values()]
        if drawn:
            low, high = growth["sizes"][0], growth["sizes"][-1]
            start = min(times[0] for times in drawn) * 0.7
            panel.plot(
                [low, high],
                [start, start * high / low],
                color=figures.COLOURS["quiet"],
                linestyle=":",
                label="linear",
            )
    for row in panels:
        row[0].set_ylabel("milliseconds")
    figure.suptitle(f"{result['operator']}, {_on(result)}", fontweight="bold")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3.6)
    file = folder / f"growth-{result['operator']}-{where(result)}.png"
    figure.savefig(file)
    yield file


def _roofline(results: Sequence[Result], folder: Path) -> Path:
    """FLOPs a second over FLOPs a byte, below the two roofs that the same run measured."""
    figure, axes = figures.figure(width=8.0, height=5.0)
    intensity = {result["operator"]: result["flops"] / result["bytes_moved"][FORWARD] for result in results}
    # Each run has roofs of its own; what is drawn are the highest.
    bandwidth = max(result["copy_gigabytes_per_second"][FORWARD] for result in results)
    peak = max(result["gigaflops_per_second"] for result in results)
    low, high = min(*intensity.values(), peak / bandwidth) / 2, max(*intensity.values(), peak / bandwidth) * 2
    x = [low, peak / bandwidth, high]
    axes.plot(x, [min(peak, bandwidth * value) for value in x], color=figures.COLOURS["ink"])
    seen: set[str] = set()
    for result in results:
        for rung in RUNGS:
            timing = result["milliseconds"].get(rung)
            if timing:
                # NumPy moves the bytes of float32 in a bench of half precision.
                at = result["flops"] / timing.get("bytes", result["bytes_moved"][FORWARD])
                reached = result["flops"] / timing[result["clock"]] / 1e6
                label = None if rung in seen else rung
                seen.add(rung)
                colour = figures.COLOURS[COLOUR[rung]]
                marker = MARKER[rung]
                axes.plot(
                    [at], [reached], marker=marker, color=colour, linestyle="", markersize=8, label=label
                )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOPs for each byte that has to move")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"Roofline, forward, {', '.join(dict.fromkeys(map(_on, results)))}")
    # Room for the names below the points.
    bottom = axes.get_ylim()[0] / 4
    for place, (name, at) in enumerate(sorted(intensity.items(), key=lambda entry: entry[1])):
        axes.axvline(at, color=figures.COLOURS["rule"], linewidth=0.8, zorder=0)
        axes.annotate(
            name, (at, bottom), xytext=(3, 6 + 16 * (place % 5)), textcoords="offset points", fontsize=11
        )
    axes.set_ylim(bottom=bottom)
    axes.legend(loc="center right", bbox_to_anchor=(1, 0.3))
    file = folder / f"roofline-{where(results[0])}.png"
    figure.savefig(file)
    return file


def _streams(result: Result, folder: Path) -> Path:
    """Every design as a ratio to the plain stream, beside its floor."""
    ratios = dict(sorted(result["ratio_to_plain"].items(), key=lambda entry: entry[1], reverse=True))
    figure, axes = figures.figure(width=8.0, height=0.9 + 0.36 * len(ratios))
    names = [name.replace("_reconstruction", " (rec.)") for name in ratios]
    axes.barh(names, list(ratios.values()), color=figures.COLOURS["depth"], height=0.6, label="measured")
    floors = [result["floor"][name] for name in ratios]
    axes.plot(
        floors, names, "|", color=figures.COLOURS["ink"], markersize=14, markeredgewidth=2.5, label="floor"
    )
    for place, ratio in enumerate(ratios.values()):
        figures.label_line(axes, ratio, place, f"{ratio:.2f}")
    axes.set_xlim(0, 1.12 * max(ratios.values()))
    axes.grid(axis="y", visible=False)
    axes.set_title(f"Forward + backward over the plain stream\n{_on(result)}")
    axes.legend(loc="upper right")
    file = folder / f"streams-{where(result)}.png"
    figure.savefig(file)
    return file
