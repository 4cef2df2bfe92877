"""The duality explorer, driven in headless Chromium as a reader would."""

from __future__ import annotations

import make_explorer
import numpy as np
import pytest

PAGE = "book/duality-explorer.html"
ALL_WEIGHTS = """([axis, size, keys]) => {
  const data = window.T2ExplorerData, length = axis === "tokens" ? data.labels.length : data.levels;
  return Array.from({length: data.levels}, (_, level) => data.labels.map((_, token) => {
    const read = window.T2Explorer.weights(data, axis, level, token, size, keys);
    const row = Array(length).fill(0);
    read.positions.forEach((position, i) => { row[position] = read.weights[i]; });
    return row;
  }));
}"""


@pytest.fixture
def page(browser, served):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.requested = []
    page.on("request", lambda request: page.requested.append(request.url))
    page.goto(f"{served}/{PAGE}")
    page.wait_for_selector("#t2-explorer:not([hidden]) svg")
    yield page
    context.close()


def part(page, name):
    return page.locator(f'[data-explorer="{name}"]')


def words(page) -> str:
    return part(page, "words").inner_text()


@pytest.mark.parametrize("keys", ["raw", "normalised"])
@pytest.mark.parametrize("axis", ["tokens", "depth"])
def test_every_weight_is_that_of_the_library(page, axis, keys):
    stack = make_explorer.states()
    for size in (1, 2, 5, 16):
        shown = page.evaluate(ALL_WEIGHTS, [axis, size, keys])
        want = make_explorer.read_weights(
            stack, 1 if axis == "tokens" else 0, size, normalised=keys == "normalised"
        )
        np.testing.assert_allclose(np.array(shown), want, atol=1e-5, rtol=0)


def test_it_works_from_the_keyboard_alone(page):
    grid = part(page, "grid")
    grid.focus()
    before = words(page)
    assert "level 5" in before
    page.keyboard.press("ArrowUp")
    assert "level 6" in words(page)
    page.keyboard.press("ArrowLeft")
    assert f"token {make_explorer.START - 1} " in words(page)
    page.keyboard.press("x")
    assert words(page).startswith("Axis tokens")
    for _ in range(20):
        page.keyboard.press("-")
    assert "itself only, with weight 1" in words(page)
    page.keyboard.press("+")
    assert part(page, "bars").locator("li").count() == 2
    assert page.problems == []


def test_the_swap_changes_the_picture_and_no_weight(page):
    def state():
        return part(page, "bars").inner_text()

    before, svg = state(), part(page, "grid").inner_html()
    assert "axis=0" in part(page, "call").inner_text()
    part(page, "swapped").check()
    assert state() == before
    assert part(page, "grid").inner_html() != svg
    assert "swapaxes(0, 1)" in part(page, "call").inner_text()
    assert "axis=1" in part(page, "call").inner_text()
    assert "swapped" in words(page)


def test_every_control_does_something(page):
    seen = {words(page) + part(page, "bars").inner_text()}

    def changed():
        now = words(page) + part(page, "bars").inner_text()
        fresh = now not in seen
        seen.add(now)
        return fresh

    page.get_by_label("tokens", exact=True).check()
    assert changed()
    page.get_by_label("raw", exact=True).check()
    assert changed()
    for name in ("level", "token", "window"):
        part(page, name).focus()
        page.keyboard.press("ArrowLeft")
        assert changed(), name
    page.locator("#t2-explorer rect").nth(0).click()
    assert changed()
    assert "token 0 " in words(page)


def test_weights_shown_sum_to_one_and_the_window_is_clipped_at_the_start(page):
    part(page, "level").fill("1")
    part(page, "window").fill("9")
    rows = part(page, "bars").locator("li")
    assert rows.count() == 2
    shown = [float(rows.nth(i).locator("span").last.inner_text()) for i in range(2)]
    assert sum(shown) == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(page, width, theme):
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    box = part(page, "grid").bounding_box()
    assert box["width"] <= width
    contrast = page.evaluate(
        """() => {
          const parse = (s) => s.match(/[\\d.]+/g).map(Number);
          const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
            .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
          const panel = parse(getComputedStyle(document.getElementById("t2-explorer")).backgroundColor);
          return [".t2-words", ".t2-keys", ".t2-controls legend"].map((selector) => {
            const ink = parse(getComputedStyle(document.querySelector(selector)).color);
            const [high, low] = [luminance(ink), luminance(panel)].sort((a, b) => b - a);
            return (high + 0.05) / (low + 0.05);
          });
        }"""
    )
    assert min(contrast) >= 4.5
    assert page.problems == []


def test_nothing_comes_from_elsewhere(page, served):
    assert [url for url in page.requested if not url.startswith((served, "data:"))] == []


def test_it_works_from_a_file(browser, html):
    page = browser.new_page()
    page.goto((html / PAGE).as_uri())
    page.wait_for_selector("#t2-explorer:not([hidden]) svg")
    assert page.locator(".t2-still").is_hidden()
    page.close()


def test_without_javascript_a_figure_with_words_stands_in(browser, served):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{served}/{PAGE}")
    assert page.locator("#t2-explorer").is_hidden()
    image = page.locator("figure.t2-still img")
    assert image.is_visible()
    assert len(image.get_attribute("alt")) > 100
    context.close()
