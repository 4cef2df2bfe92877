"""The numbers behind the duality explorer: fresh, and those of the library."""

from __future__ import annotations

import make_explorer
import numpy as np
import pytest


@pytest.fixture(scope="module")
def stack():
    return make_explorer.states()


def test_the_stored_data_are_those_of_the_shipped_weights():
    assert make_explorer.stale() == []


def test_stale_data_are_named(monkeypatch):
    old = make_explorer.stored()
    old["weights_sha256"] = "0" * 64
    old["rows"][3][5] *= 1.001
    monkeypatch.setattr(make_explorer, "stored", lambda: old)
    assert make_explorer.stale() == ["weights_sha256", "rows"]


def test_inner_products_are_those_of_the_states(stack):
    found = make_explorer.stored()
    assert found["levels"], len(found["labels"]) == stack.shape[:2]
    i, j = 7, 4
    place = i * (i + 1) // 2 + j
    assert found["rows"][2][place] == pytest.approx(stack[2, i] @ stack[2, j], rel=1e-7)
    assert found["columns"][5][place] == pytest.approx(stack[i, 5] @ stack[j, 5], rel=1e-7)


def test_the_still_figure_shows_the_weights_of_the_library(stack):
    text = (make_explorer.FOLDER / "still.svg").read_text(encoding="utf-8")
    for axis in (0, 1):
        weights = make_explorer.read_weights(stack, axis, 4, normalised=True)[5, make_explorer.START]
        assert ", ".join(f"{w:.2f}" for w in weights if w > 0) in text


def test_equal_bytes_score_equally_at_level_0(stack):
    """What the page promises under "Find the same letter"."""
    weights = make_explorer.read_weights(stack, 1, 16, normalised=True)[0, 15]
    same = [i for i, byte in enumerate(make_explorer.TEXT) if byte == make_explorer.TEXT[15]]
    assert len(same) == 3
    assert np.ptp(weights[same]) < 1e-12


def test_raw_scores_run_away_over_depth(stack):
    """What the page promises under "Let the scores run away": raw reads are sharper than normalised ones."""
    top = len(stack) - 1
    raw, normalised = (
        make_explorer.read_weights(stack, 0, top + 1, normalised=n)[top].max(-1).mean() for n in (False, True)
    )
    assert raw > normalised
    assert raw > 0.9
