"""``perfmodel ui`` in headless Chromium: controls that ask, messages beside them, links, files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.browser.conftest import PATIENCE, Watched

pytest.importorskip("uvicorn", reason="the extra 'ui' is not installed")

SMALL = "?model=llama-3.1-8b&devices=8&sequence_length=2048&global_batch_size=16"
ANSWERED = "Number(document.documentElement.dataset.answered || 0)"
# The first answer may have to wait for kernels that are compiled.
FIRST = 240e3  # ms


@pytest.fixture(scope="module")
def link():
    """Return the link of a server that runs."""
    command = [sys.executable, "-m", "perfmodel", "ui", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def ask(browser, link):
    """Return a function that opens the page; what its console says, and other hosts, fail."""
    contexts, seen = [], []

    def opened(query=SMALL, width=1440, height=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        watched = Watched(context.new_page())
        seen.append(watched)
        watched.page.goto(f"{link}{query.replace('?', '&', 1)}")
        watched.page.wait_for_selector("html[data-answered]", state="attached", timeout=FIRST)
        return watched

    yield opened
    for it in seen:
        # The browser itself writes a line for each 400, which the page shows beside the control.
        assert [line for line in it.errors if "400 (Bad Request)" not in line] == []
        assert [
            url for url in it.requests if not url.startswith((link.partition("?")[0], "blob:"))
        ] == []
    for context in contexts:
        context.close()


def answered_after(watched, act):
    """Do something, and wait for the answer to it."""
    before = watched.page.evaluate(ANSWERED)
    act()
    watched.until(f"{ANSWERED} > {before}")


def test_a_slider_asks_and_the_page_shows_the_answer(ask):
    watched = ask()
    assert "on 8 devices" in watched.text("h1")
    slider = watched.page.locator("#ask-devices").locator("xpath=../input[@type='range']")
    slider.focus()
    answered_after(watched, lambda: slider.press("ArrowRight"))
    watched.until("document.querySelector('h1').textContent.includes('on 16 devices')")
    assert watched.page.input_value("#ask-devices") == "16"
    assert "devices=16" in watched.page.url


def test_the_latest_of_many_moves_is_what_is_shown(ask):
    watched = ask()
    slider = watched.page.locator("#ask-global_batch_size")
    slider = slider.locator("xpath=../input[@type='range']")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowRight")
    batch = "perfmodel.current().population.common.find((it) => it.name === 'global_batch_size')"
    watched.until(f"{batch}?.value", "256")


def test_what_a_control_cannot_have_is_said_beside_it(ask):
    watched = ask()
    watched.page.fill("#ask-where", "tp <")
    watched.page.wait_for_selector("#error-where:not([hidden])")
    assert watched.page.get_attribute("#ask-where", "aria-invalid") == "true"
    answered_after(watched, lambda: watched.page.fill("#ask-where", "tp == 2"))
    assert watched.page.is_hidden("#error-where")
    watched.until("perfmodel.current().population.where", "tp == 2")
    watched.page.fill("#ask-devices", "0")
    watched.page.wait_for_selector("#error-devices:not([hidden])")
    assert "whole number" in watched.text("#error-devices")
    watched.page.fill("#ask-model", "llama-3.1-8")
    watched.page.press("#ask-model", "Tab")
    watched.page.wait_for_selector("#error-model:not([hidden])")


def test_a_link_brings_back_what_was_chosen(ask):
    first = ask()
    first.page.click("#ask-hardware")
    answered_after(first, lambda: first.page.check("input[value='dgx-b200']"))
    first.page.keyboard.press("Escape")
    assert first.page.evaluate("document.activeElement.id") == "ask-hardware"
    address = first.page.url
    assert "hardware=dgx-b200,dgx-h100" in address
    second = ask("?" + address.partition("/?")[2])
    assert second.text("#ask-hardware") == "dgx-b200, dgx-h100"
    assert second.count() == first.count()


def test_filters_of_the_page_outlive_an_answer(ask):
    watched = ask()
    pill = ".facet[aria-label='recompute'] .pill >> nth=0"
    watched.page.click(pill)
    watched.until("perfmodel.current().filters.active.has('recompute')")
    answered_after(watched, lambda: watched.page.fill("#ask-global_batch_size", "32"))
    watched.until("perfmodel.current().filters.active.has('recompute')")


def test_pictures_of_pipelines_follow_when_nothing_moves(ask):
    watched = ask(SMALL.replace("devices=8", "devices=16"))
    watched.until("Object.keys(perfmodel.current().population.pictures).length > 0")


def test_files_are_saved(ask, tmp_path):
    watched = ask()
    for button, name, start in (
        ("#save-dataset", "results.nc", b"\x89HDF"),
        ("#save-report", "report.html", b"<!doctype html>"),
        ("#save-launch", "launch.txt", b"#"),
    ):
        watched.page.click(".ask-menu summary")
        with watched.page.expect_download(timeout=1e3 * PATIENCE) as saved:
            watched.page.click(button)
        assert saved.value.suggested_filename == name
        saved.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)


def test_served_models_have_controls_of_their_own(ask):
    query = "?kind=serving&model=llama-3.1-8b&devices=2&concurrency=8&input_length=256"
    watched = ask(f"{query}&output_length=64")
    assert watched.page.is_visible("#ask-engine")
    assert watched.page.is_hidden("#ask-framework")
    answered_after(watched, lambda: watched.page.check("input[value='training']", force=True))
    assert watched.page.is_visible("#ask-framework")


def test_a_phone_shows_all_controls_in_its_width(ask):
    watched = ask(width=390, height=844, has_touch=True, is_mobile=True)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in ("model", "hardware", "devices", "where"):
        box = watched.page.locator(f"#ask-{name}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_every_control_has_a_name(ask):
    watched = ask()
    tree = watched.page.locator("#ask").aria_snapshot()
    for name in ("Model", 'group "Hardware"', "Devices", "Only where", "Copy link"):
        assert name in tree
