"""The documentation site from files, in headless Chromium: its search works without a network."""

from __future__ import annotations

import pytest

from tests.data import ROOT

SITE = ROOT / "site"
PAGES = ("index.html", "formulas.html", "gallery/what-if.html", "commands/sweep.html")

pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make docs")


@pytest.fixture
def tab(browser):
    """Yield a function that opens a page; none may complain, or ask for more than files."""
    wrong: list[str] = []
    pages = []

    def opened(name, width=1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.on("console", lambda it: it.type in ("error", "warning") and wrong.append(it.text))
        page.on("pageerror", lambda it: wrong.append(str(it)))
        page.on(
            "request",
            lambda it: (
                it.url.startswith(("file:", "data:", "blob:", "about:")) or wrong.append(it.url)
            ),
        )
        page.goto(f"file://{SITE / name}")
        return page

    yield opened
    for page in pages:
        page.close()
    assert not wrong


@pytest.mark.parametrize(
    ("words", "page"), [("ring all-reduce", "collectives.html"), ("pareto", "cli.html")]
)
def test_search_finds_pages_without_a_network(tab, words, page):
    opened = tab("index.html")
    opened.click(".md-search__input")
    # At once but for one key, to which the page listens: "all-" alone is an invalid query.
    opened.keyboard.insert_text(words[:-1])
    opened.keyboard.press(words[-1])
    opened.wait_for_selector(".md-search-result__link", timeout=20_000)
    found = opened.eval_on_selector_all(
        ".md-search-result__link", "links => links.map(link => link.href)"
    )
    assert any(f"/site/{page}" in link for link in found), found


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_its_window(tab, page, width):
    opened = tab(page, width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_pictures_and_formulas_are_drawn(tab):
    opened = tab("gallery/what-if.html")
    sizes = opened.eval_on_selector_all(
        ".md-content img", "all => all.map(one => one.naturalWidth)"
    )
    assert len(sizes) == 2
    assert all(size > 100 for size in sizes)
    words = opened.eval_on_selector_all(".md-content img", "all => all.map(one => one.alt)")
    assert all(len(alt) > 20 for alt in words)
    formulas = tab("formulas.html")
    boxes = formulas.eval_on_selector_all(
        ".formula math", "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert len(boxes) > 8
    assert all(height > 10 for height in boxes)
