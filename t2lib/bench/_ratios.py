"""The ratios that the library has to keep, each beside its bar; what cannot be formed is listed as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from t2lib.bench._case import BEST, FORWARD, Bar, Case, Operator, Setting

Key = tuple[str, str]
Row = dict[str, Any]


def ratios(
    operator: Operator,
    shape: Any,
    setting: Setting,
    rungs: Sequence[str],
    time_of: Mapping[Key, float],
    memory: Mapping[Key, int],
    found: Mapping[str, Case],
) -> list[Row]:
    """A row a bar of this device; of the other bars, those whose ratio can be formed here too."""
    rows = []
    for bar in operator.BARS:
        which = FORWARD if bar.of == "memory" else bar.of
        running = [rung for rung in rungs if (rung, which) in time_of]
        best = min(running, key=lambda rung: time_of[rung, which]) if running else BEST
        names = [best if name == BEST else name for name in (bar.slower, bar.faster)]
        ratio = None
        if bar.of == "memory":
            if (held := memory.get((names[0], FORWARD))) is not None:
                # The result of these operators is as large as a state.
                state = operator.state_bytes(shape, found[names[0]].itemsize)
                ratio = (held - state) / state
        elif all((name, which) in time_of for name in names):
            ratio = time_of[names[0], which] / time_of[names[1], which]
        if ratio is not None or bar.on == setting.device:
            rows.append(row(bar, names, ratio, setting.device))
    return rows


def row(bar: Bar, names: Sequence[str], ratio: float | None, device: str) -> Row:
    """`met` is None where the ratio could not be formed, or where this device has no bar to clear."""
    found: Row = {"slower": names[0], "faster": names[1], "of": bar.of, "ratio": ratio}
    asked = (bar.at_least, bar.at_most) if device == bar.on else (None, None)
    found |= {
        key: None if x is None else float(x) for key, x in zip(("at_least", "at_most"), asked, strict=True)
    }
    return found | {"met": met(ratio, *asked)}


def met(ratio: float | None, at_least: float | None, at_most: float | None) -> bool | None:
    """Whether a ratio clears its bar; None if there is no ratio or no bar."""
    if ratio is None or (at_least is None and at_most is None):
        return None
    return (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
