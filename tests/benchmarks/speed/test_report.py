"""What is measured of a page, without a browser: processor time, and that there is no browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest


@pytest.fixture
def report(script):
    return script.load("speed.report")


def test_processor_time_is_that_of_a_process_and_of_what_it_started(report):
    before = report.browser_seconds(os.getpid())
    work = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", f"{work}\ninput()"], stdin=subprocess.PIPE) as run:
        end = time.monotonic() + 60.0
        while report.browser_seconds(run.pid) < 0.3:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert report.browser_seconds(os.getpid()) - before >= 0.3
        run.communicate(b"\n")


def test_every_filter_is_timed_by_the_page_itself(report):
    for step in report.FILTERS:
        timed = report.TIMED.replace("STEP", step)
        assert step in timed
        assert "performance.now()" in timed


def test_without_a_browser_it_says_so(report, monkeypatch):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["report.py"])
    with pytest.raises(SystemExit, match="no Chromium"):
        report.main()
