"""The report's page for 1,000 and 1,000,000 strategies: size, seconds to build, load and filter.

Strategies are those of GPT-3 175B on 4,096 devices as ``benchmarks/speed/sweep.py`` sweeps them,
cut evenly to the count. The page is opened from a file in headless Chromium (Debian's ``chromium``,
or CHROMIUM=/path/to/it), 1440 × 900 pixels, without a GPU. Load is from asking for the page until
all that is in sight is drawn. A filter's time is from setting it until the frame with its result:
of one choice, of another, of a range of memory, and of all of them taken away. Both are the median
of several runs, and the fastest, which is nearest to a machine that does nothing else; CPU seconds
of the browser's processes stand beside.

    python benchmarks/speed/report.py [--counts 1000,1000000] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import perfmodel
from perfmodel import load_hardware, load_model, save_results, strategy_grid, write_report

COUNTS = (1000, 1_000_000)
BATCHES = 7  # global batch sizes; more than a million strategies
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
FILTERS = (
    'filters.set("recompute", { allowed: new Set([0]) })',
    'filters.set("pipeline_parallel", { allowed: new Set([1, 2, 3]) })',
    'filters.set("memory_total", { low: 1e10, high: 6e10 })',
    "perfmodel.current().reset()",
)
TIMED = """async () => {
  const { filters } = perfmodel.current();
  const started = performance.now();
  STEP;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return performance.now() - started;
}"""
PAUSE = 2.0  # s, in which what is out of sight is drawn


def swept(count: int, folder: Path) -> Path:
    """Sweep, keep so many strategies, and store them."""
    import sweep as sweeps  # the script beside this one

    model = load_model("gpt3-175b")
    grid = strategy_grid(
        model,
        sweeps.DEVICES,
        sequence_length=[2048, 4096],
        global_batch_size=[sweeps.BATCH * (i + 1) for i in range(1 if count < 10_000 else BATCHES)],
        **sweeps.AXES,
    )
    results = perfmodel.sweep(model, grid, load_hardware("dgx-h100"), dtype=np.dtype("float32"))
    places = np.linspace(0, len(grid) - 1, count).astype(int)
    path = folder / f"sweep-{count}.nc"
    save_results(results.isel(strategy=places), path)
    return path


def browser_seconds(root: int) -> float:
    """Return user and system time of a process and all below it [s]."""
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(entry.parent.name)
        parents[number], ticks[number] = int(words[1]), int(words[11]) + int(words[12])

    def below(number: int) -> bool:
        while number in parents and number != root:
            number = parents[number]
        return number == root

    return sum(it for number, it in ticks.items() if below(number)) / os.sysconf("SC_CLK_TCK")


def looked_at(page: Path, chromium: str, repeats: int) -> dict[str, Any]:
    """Open a page several times, and filter it."""
    from playwright.sync_api import sync_playwright

    loads, busy, filters, filters_busy = [], [], [], []
    with sync_playwright() as driver:
        for _ in range(repeats):
            browser = driver.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
            tab = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            before, started = browser_seconds(os.getpid()), time.perf_counter()
            tab.goto(f"file://{page}")
            tab.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
            loads.append(time.perf_counter() - started)
            busy.append(browser_seconds(os.getpid()) - before)
            for step in FILTERS:
                time.sleep(PAUSE)
                before = browser_seconds(os.getpid())
                filters.append(tab.evaluate(TIMED.replace("STEP", step)))
                filters_busy.append(1e3 * (browser_seconds(os.getpid()) - before))
            version = browser.version
            browser.close()
    return {
        "load_seconds": statistics.median(loads),
        "fastest_load_seconds": min(loads),
        "load_cpu_seconds": statistics.median(busy),
        "filter_milliseconds": statistics.median(filters),
        "fastest_filter_milliseconds": min(filters),
        "slowest_filter_milliseconds": max(filters),
        "filter_cpu_milliseconds": statistics.median(filters_busy),
        "browser": version,
    }


def measured(count: int, chromium: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Return size and times of the page of so many strategies."""
    path, page = swept(count, folder), folder / f"report-{count}.html"
    wall, cpu = time.perf_counter(), time.process_time()
    said = write_report(path, page)
    built = {
        "build_seconds": time.perf_counter() - wall,
        "build_cpu_seconds": time.process_time() - cpu,
    }
    (about,) = said["populations"]
    return {
        "strategies": count,
        "bytes": said["bytes"],
        "rows": about["rows"],
        "exact": about["exact"],
        **built,
        **looked_at(page, chromium, repeats),
    }


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        sys.exit(f"no Chromium: none of {', '.join(NAMES)} in PATH, nor CHROMIUM=/path/to/it")
    with tempfile.TemporaryDirectory() as folder:
        found = [
            measured(int(count), chromium, arguments.repeats, Path(folder))
            for count in arguments.counts.split(",")
        ]
    largest = found[-1]
    result = {
        "rate_per_core": largest["strategies"] / largest["build_cpu_seconds"],
        "unit": "strategies/s/core (CPU time, page built from a stored sweep)",
        "count": largest["strategies"],
        "seconds": largest["build_seconds"],
        "pages": found,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for it in found:
        print(
            f"{it['strategies']:,} strategies: {it['bytes'] / 1e6:.2f} MB, {it['exact']:,} exact; "
            f"built in {it['build_seconds']:.1f} s; load {it['load_seconds']:.2f} s (fastest "
            f"{it['fastest_load_seconds']:.2f}, CPU {it['load_cpu_seconds']:.2f}); filter "
            f"{it['filter_milliseconds']:.0f} ms (fastest {it['fastest_filter_milliseconds']:.0f}, "
            f"slowest {it['slowest_filter_milliseconds']:.0f}, CPU "
            f"{it['filter_cpu_milliseconds']:.0f})"
        )


if __name__ == "__main__":
    main()
