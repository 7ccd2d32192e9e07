"""Speed of models on meshes of cores: timings of a layer on a mapping per second on one core.

Usage: python benchmarks/speed/wafer.py [--model NAME] [--json]

Regions of 200 to 748 cores a side on a WSE-2, contexts, batches and sums of four kinds, decode and
prefill: every variable of the dataset, memory and regions included. A timing is that of one kind of
layer on one mapping; equal layers of a model count once. The first call, which compiles, is not
counted; the rate is that of the median of the others, by the CPU time of this process.
Then a mapping is searched, of rectangles of 100 to 748 cores a side, regions, sums and layouts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels._jit import compile_kernels
from perfmodel.kernels.wafer.columns import PHASES
from perfmodel.model.presets import load_model
from perfmodel.wafer.chips import mesh_device
from perfmodel.wafer.layers import wafer_parts
from perfmodel.wafer.mappings import wafer_grid
from perfmodel.wafer.project import close_grid
from perfmodel.wafer.search import search_mapping

REPEATS = 5


def rates(name: str) -> dict[str, float]:
    """Return timings per second, by phase."""
    model = load_model(name)
    device = mesh_device(load_mesh("wse-2"))
    grid = wafer_grid(
        grid=range(200, 750, 4),
        context=[512, 1024, 2048, 4096],
        batch=[1, 2, 4, 8],
        collective=["chain", "one_level", "two_level", "three_level"],
    )
    found = {}
    for phase, word in enumerate(PHASES):
        parts = wafer_parts(model, phase)
        close_grid(parts, grid, device, phase, head=True)
        spent = []
        for _ in range(REPEATS):
            start = time.process_time()
            close_grid(parts, grid, device, phase, head=True)
            spent.append(time.process_time() - start)
        found[word] = len(grid) * len(parts.counts) / statistics.median(spent)
    return found


def searches(name: str) -> list[dict[str, float]]:
    """Return CPU seconds of searches of a decode mapping, all timed and with bounded branches."""
    found = []
    for exhaustive in (True, False):
        asked = {"shape": "rectangle", "grid": list(range(100, 750, 6)), "exhaustive": exhaustive}
        search_mapping(name, "wse-2", **(asked | {"grid": [300, 400]}))
        start = time.process_time()
        one = search_mapping(name, "wse-2", **asked)
        seconds = time.process_time() - start
        found.append({"mappings": one.mappings, "timed": one.timed, "seconds": seconds})
    return found


def main() -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    compile_kernels()
    found = rates(given.model)
    searched = searches(given.model)
    if given.json:
        document = {"model": given.model, "timings_per_second": found, "searches": searched}
        print(json.dumps(document))
    else:
        for phase, rate in found.items():
            print(f"{given.model}, {phase}: {rate:,.0f} (layer, mapping) timings/s/core")
        for one in searched:
            print(
                f"{given.model}, search over {one['mappings']:,} mappings, {one['timed']:,} timed: "
                f"{one['seconds']:.1f} s"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
