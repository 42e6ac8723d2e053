"""The documentation's site: built without a warning, no link broken, and in a browser it fits, is quiet and searches,
opened from a disk, without a net.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import repairability
from browsing import chromium, until
from documents import ROOT

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytestmark = pytest.mark.slow  # it is built, and every page is opened

WIDTHS = {1280: 900, 390: 844}
QUERY = "[data-md-component=search-query]"
OPENS_SEARCH = {1280: QUERY, 390: ".md-header__button[for=__search]"}
HITS = "document.querySelectorAll('.md-search-result__item').length > 0"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 30
    return [page for page in found if page.name != "404.html"]  # a server's, with links from its root


class Marks(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.ids |= {value for value in (known.get("id"), known.get("name")) if value}
        target = known.get("href") if tag in ("a", "link") else known.get("src")
        if target is not None and known.get("rel") != "canonical":
            (self.links if tag == "a" else self.loads).append(target)


def test_no_link_is_broken(site: Path, pages: list[Path]) -> None:
    marks = {page: Marks(page) for page in pages}
    broken, followed = [], 0
    for page, mark in marks.items():
        for target in (*mark.links, *mark.loads):
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            file = file / "index.html" if file.is_dir() else file
            there = file.is_file() and file.is_relative_to(site)
            anchors = marks[file].ids | {"__top"} if file in marks else set()
            if not there or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{page.relative_to(site)}: {target}")
            followed += 1
    assert broken == []
    assert followed > 1000


def test_nothing_is_loaded_from_elsewhere(pages: list[Path]) -> None:
    loaded = {target for page in pages for target in Marks(page).loads}
    assert not [target for target in loaded if urlsplit(target).scheme or target.startswith("//")]


def test_every_page_of_the_repository_is_there(site: Path) -> None:
    docs = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert docs <= {page.stem for page in site.glob("*.html")}
    book = {page.stem for page in (ROOT / "reproduction" / "pages").glob("*.md")}
    assert book == {page.stem for page in (site / "reproduction" / "pages").glob("*.html")}


def test_every_public_name_has_its_words(site: Path) -> None:
    ids = Marks(site / "api.html").ids
    for name in repairability.__all__:
        assert [anchor for anchor in ids if anchor.startswith("repairability.") and anchor.endswith(f".{name}")], name


def test_equations_are_mathml(site: Path) -> None:
    method = (site / "method.html").read_text(encoding="utf-8")
    assert method.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') > 15
    assert "arithmatex" not in method


def test_an_equation_that_cannot_be_shown_is_an_error() -> None:
    from mkdocs.exceptions import PluginError

    import mkdocs_hooks

    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="method.md"))
    shown = mkdocs_hooks.on_page_content(r'<span class="arithmatex">\(a &lt; b\)</span>', page, None, None)
    assert "<mo>&#x0003C;</mo>" in shown
    with pytest.raises(PluginError, match=r"method\.md.*\\unheard"):
        mkdocs_hooks.on_page_content(r'<span class="arithmatex">\(\unheard{a}\)</span>', page, None, None)


def test_pages_named_in_a_text_are_links() -> None:
    import mkdocs_hooks

    files: Any = SimpleNamespace(src_uris={"zoo.md", "reproduction/README.md", "reproduction/pages/beyond.md"})

    def linked(text: str, uri: str) -> str:
        page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
        return mkdocs_hooks.on_page_markdown(text, page, None, files)

    assert linked("`docs/zoo.md`", "reproduction/pages/beyond.md") == "[`docs/zoo.md`](../../zoo.md)"
    assert linked("`reproduction/pages/beyond.md`", "zoo.md").endswith("(reproduction/pages/beyond.md)")
    assert linked("[x](../reproduction/README.md)", "zoo.md") == "[x](reproduction/README.md)"
    assert linked("`docs/zoo.md`, `unheard.md`", "zoo.md") == "`docs/zoo.md`, `unheard.md`"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_is_quiet(browser: Any, pages: list[Path], width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": WIDTHS[width]})
    page, complaints, requests = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    page.on("request", lambda request: requests.append(request.url))
    wide = []
    for file in pages:
        page.goto(file.as_uri())
        across = page.evaluate("document.documentElement.scrollWidth")
        if across > width:
            wide.append(f"{file.name}: {across}")
    context.close()
    assert wide == []
    assert complaints == []
    assert not [url for url in requests if urlsplit(url).scheme not in ("file", "data", "blob")]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_search_works_from_a_disk(browser: Any, site: Path, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": WIDTHS[width]}, offline=True)
    page = context.new_page()
    page.goto((site / "reproduction" / "pages" / "choices.html").as_uri())
    page.locator(OPENS_SEARCH[width]).click()
    page.locator(QUERY).press_sequentially("find_transition")
    until(page, HITS)
    found = page.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
    assert any("api.html" in link for link in found), found
    page.locator(".md-search-result__link").first.click()
    until(page, "document.querySelector('h1') !== null")
    assert "find_transition" in page.locator("article").inner_text()
    context.close()
