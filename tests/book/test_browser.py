"""Every page in a real browser: desk and phone width, light and dark, maths, contrast, images, no error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from built_book import toc_files

PAGES = toc_files()
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
LEAST_CONTRAST = 4.5
CHECKS = Path(__file__).with_name("page_checks.js").read_text()
# The file begins with a comment; what is evaluated is the object after it.
CHECKS = CHECKS[CHECKS.index("({") :].strip()


def ask(tab, question: str):
    return tab.evaluate(f"() => {CHECKS}.{question}")


@pytest.fixture(scope="module")
def tab(browser):
    """One tab for all pages; what goes wrong in it and what it asks for is collected."""
    context = browser.new_context(color_scheme="light", viewport=DESK)
    page = context.new_page()
    page.troubles, page.requested = [], []
    page.on(
        "console", lambda message: page.troubles.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("requestfailed", lambda request: page.troubles.append(f"failed: {request.url}"))
    page.on("request", lambda request: page.requested.append(request.url))
    yield page
    context.close()


def open_page(tab, address: str) -> None:
    tab.troubles.clear()
    tab.requested.clear()
    tab.set_viewport_size(DESK)
    tab.emulate_media(color_scheme="light")
    tab.goto(address, wait_until="load")
    ask(tab, "settled()")


@pytest.mark.parametrize("name", PAGES)
def test_page_reads_well_on_desk_and_phone_in_light_and_dark(tab, served, name):
    open_page(tab, f"{served}/{name}.html")
    found = {"maths": ask(tab, "maths()")}
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        tab.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        for size in (DESK, PHONE):
            tab.set_viewport_size(size)
            where = f"{scheme}, {size['width']} px"
            found[f"{where}: overflow"] = ask(tab, "overflow()")
            found[f"{where}: contrast"] = ask(tab, f"contrast({LEAST_CONTRAST})")
            found[f"{where}: images"] = ask(tab, "images()")
    found["troubles"] = tab.troubles
    found["other hosts"] = [url for url in tab.requested if not url.startswith((served, "data:", "blob:"))]
    faults = {what: detail for what, detail in found.items() if detail}
    assert not faults, json.dumps(faults, indent=1, ensure_ascii=False)


@pytest.mark.parametrize("name", [PAGES[0], next(name for name in PAGES if "/ch" in name)])
def test_page_opened_as_a_file_reads_the_same(tab, html, name):
    open_page(tab, (html / f"{name}.html").as_uri())
    assert ask(tab, "maths()") == []
    assert ask(tab, "images()") == []
    assert tab.troubles == []


FAULTY = """<!doctype html><html><body><article>
<p style="color: #999; background: #fff">pale</p><p style="color: #595959; background: #fff">clear</p>
<div style="width: 2000px">wide</div><img src="data:image/png;base64,none">
<span class="math">raw</span><mjx-merror>refused</mjx-merror>
<mjx-mtext style="color: red">unknown</mjx-mtext>
</article></body></html>"""


def test_the_checks_themselves_find_what_is_wrong(tab):
    tab.set_content(FAULTY)
    tab.wait_for_function("document.querySelector('img').complete")
    assert [fault.split(":")[0] for fault in ask(tab, "maths()")] == ["raw", "refused", "unknown"]
    assert ask(tab, "overflow()")[0].startswith("page 2")
    assert len(ask(tab, "images()")) == 1
    pale = [text for _, text in ask(tab, f"contrast({LEAST_CONTRAST})").values()]
    assert "pale" in pale
    assert "clear" not in pale
