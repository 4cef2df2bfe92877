"""What the built pages must satisfy: all there, whole, self-contained, and every link leads somewhere."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from built_book import HTML, ROOT, source, toc_files
from identity import identity
from notebooks import read
from reader import parse

PAGES = toc_files()
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "manifest", "shortcut"}


@functools.cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    names = {tag.get("id") for tag in soup(path).find_all(id=True)}
    return frozenset(names | {tag["name"] for tag in soup(path).find_all("a", attrs={"name": True})})


@pytest.fixture
def page(html: Path, request: pytest.FixtureRequest) -> Path:
    return html / f"{request.param}.html"


every_page = pytest.mark.parametrize(
    "page", PAGES, indirect=True, ids=lambda name: name.removeprefix("book/")
)


def title(name: str) -> str:
    """The title in the source of a page, without its markup."""
    path = source(name)
    text = read(path).cells[0].source if path.suffix == ".ipynb" else path.read_text()
    heading = next(title for _, level, title in parse(text).headings if level == 1)
    return re.sub(r"[`*]", "", heading)


def test_every_page_is_built_and_no_other(html):
    built = {path.relative_to(html).with_suffix("").as_posix() for path in (html / "book").rglob("*.html")}
    assert built == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_shows_its_title(html, name):
    heading = soup(html / f"{name}.html").find("h1")
    assert heading is not None
    # The theme's quotation marks are typographic; numbering stands before the title.
    plain = heading.get_text().replace("’", "'")
    assert title(name).replace("’", "'") in plain


@every_page
def test_every_internal_link_leads_somewhere(page):
    lost = []
    for link in soup(page).find_all("a", href=True):
        address = urlsplit(link["href"])
        if address.scheme or address.netloc:
            continue
        target = (page.parent / unquote(address.path)).resolve() if address.path else page
        target = target / "index.html" if target.is_dir() else target
        fragment = unquote(address.fragment)
        if not target.is_file() or (
            fragment and target.suffix == ".html" and fragment not in anchors(target) | {"top"}
        ):
            lost.append(link["href"])
    assert lost == []


@every_page
def test_links_into_the_repository_name_paths_that_exist(page):
    which = identity()
    wrong = []
    for link in soup(page).find_all("a", href=True):
        address = link["href"]
        ours = address.startswith((which.repository + "/", "https://colab.research.google.com/github/"))
        found = re.search(r"/([\w.-]+)/([\w.-]+)/(?:blob|edit|tree|raw)/([\w.-]+)/([^?#]*)", address)
        if not ours or found is None:
            continue
        owner, name, branch, path = found.groups()
        exists = (ROOT / unquote(path)).exists()
        if (owner, name, branch) != (which.owner, which.name, which.branch) or not exists:
            wrong.append(address)
    assert wrong == []


@pytest.mark.parametrize("name", PAGES)
def test_chapters_open_in_colab_and_pages_can_be_edited(html, name):
    which = identity()
    path = source(name).relative_to(ROOT).as_posix()
    links = {link["href"] for link in soup(html / f"{name}.html").find_all("a", href=True)}
    colab = {link for link in links if "colab.research.google.com" in link and f"/{path}" in link}
    repository = f"{which.owner}/{which.name}"
    expected = f"https://colab.research.google.com/github/{repository}/blob/{which.branch}/{path}"
    assert colab == ({expected} if path.endswith(".ipynb") else set())
    assert any(link.startswith(f"{which.repository}/edit/{which.branch}/{path}") for link in links)


@every_page
def test_every_image_has_alt_text(page):
    images = soup(page).find_all("img")
    assert [image["src"] for image in images if image.get("alt") is None] == []
    article = soup(page).find("article")
    for image in article.find_all("img"):
        assert len(image["alt"]) >= 20, image["src"]
        assert Path(urlsplit(image["src"]).path).stem not in image["alt"]


@every_page
def test_no_page_loads_anything_from_another_host(page):
    loaded = [tag.get(key, "") for name, key in LOADING.items() for tag in soup(page).find_all(name)]
    loaded += [
        link["href"] for link in soup(page).find_all("link") if LOADED_LINKS & set(link.get("rel", []))
    ]
    assert [address for address in loaded if re.match(r"(?:https?:)?//", address)] == []
    local = [address for address in loaded if address and not address.startswith("data:")]
    assert [a for a in local if not (page.parent / unquote(urlsplit(a).path)).is_file()] == []


def test_no_stylesheet_loads_anything_from_another_host(html):
    outside = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+")
    found = {path.name: outside.findall(path.read_text(encoding="utf-8")) for path in html.rglob("*.css")}
    assert {name: addresses for name, addresses in found.items() if addresses} == {}


@every_page
def test_no_markup_is_left_unread(page):
    article = soup(page).find("article")
    text = " ".join(
        string
        for string in article.find_all(string=True)
        if not string.find_parents(["pre", "code", "script"])
    )
    assert ":::" not in text
    assert "$$" not in text
    assert re.findall(r"\{(?:ref|eq|numref|cite:\w|prf:ref|term)\}", text) == []


def test_the_book_is_built_from_these_sources():
    newest = max(source(name).stat().st_mtime for name in PAGES)
    built = min(
        (HTML / f"{name}.html").stat().st_mtime for name in PAGES if (HTML / f"{name}.html").is_file()
    )
    assert built >= newest, "the sources are newer than the book: run `make book`"
