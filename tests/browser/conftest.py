"""A report in headless Chromium, watched: no error, no request but for the file itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import time

import pytest

from tests.report.conftest import (  # noqa: F401
    compared_file,
    served,
    served_file,
    simulated,
    swept,
    swept_file,
)

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE = 60.0  # s, on a machine that does much else


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker(pytest.mark.browser)


def chromium():
    """Return the browser's path, or None."""
    stated = os.environ.get("CHROMIUM")
    return stated or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def browser():
    driver = pytest.importorskip(
        "playwright.sync_api", reason="Playwright (the extra 'browser') is not installed"
    )
    path = chromium()
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} in PATH, nor CHROMIUM=/path/to/it")
    with driver.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield launched
        launched.close()


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, page):
        self.page, self.errors, self.requests = page, [], []
        page.on(
            "console", lambda it: it.type in ("error", "warning") and self.errors.append(it.text)
        )
        page.on("pageerror", lambda it: self.errors.append(str(it)))
        page.on("dialog", lambda it: (self.errors.append(it.message), it.dismiss()))
        page.on("request", lambda it: self.requests.append(it.url))

    def open(self, path, anchor=""):
        """Open a file, and wait until it is drawn."""
        self.page.goto(f"file://{path}{anchor}")
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=1e3 * PATIENCE)
        return self

    def until(self, script, wanted=True):
        """Wait until a script gives what is wanted; the page's policy forbids Playwright's way."""
        end = time.monotonic() + PATIENCE
        while (found := self.page.evaluate(script)) != wanted:
            assert time.monotonic() < end, f"{script} gives {found}, not {wanted}"
            time.sleep(0.02)

    def text(self, selector):
        return self.page.inner_text(selector)

    def count(self):
        """Return how many rows pass the filters, as the page says."""
        return int(self.text(".panel:not([hidden]) .count").split()[0].replace(",", ""))


@pytest.fixture
def watch(browser):
    """Return a function that opens a file in a window of some size and colours."""
    with contextlib.ExitStack() as stack:
        found = []

        def opened(path, width=1440, height=900, scheme="light", **options):
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, **options
            )
            stack.callback(context.close)
            found.append(Watched(context.new_page()))
            return found[-1].open(path)

        yield opened
        for it in found:
            assert it.errors == []
            assert [url for url in it.requests if not url.startswith("file:")] == []


@pytest.fixture(scope="session")
def report(swept_file, served_file, compared_file, simulated, tmp_path_factory):  # noqa: F811
    """A page with results of four kinds."""
    from perfmodel import write_report

    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report([swept_file, served_file, compared_file, simulated], path)
    return path


@pytest.fixture(scope="session")
def rough(swept_file, tmp_path_factory):  # noqa: F811
    """A page of which most numbers are levels, as of a million strategies."""
    from perfmodel.report import document, packing, page_text

    path = tmp_path_factory.mktemp("page") / "rough.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MOST_EXACT", 10)
        patch.setattr(packing, "EXACT", 5)
        found = document.document([swept_file])
        path.write_text(page_text.page_html(found), encoding="utf-8")
    return path, found
