"""Core level of the generator's default example beside the generator's own: traffic, occupancy.

    python benchmarks/wafer_cores.py

DeepSeek-V3, one layer with experts (``decode10``), 56 nodes of 6 x 6 cores, 1,024 sequences with
2,048 tokens of context. Both get the same experts. Bytes times links count reads and writes between
core and bank, copies, and trees of multicasts, on XY routes.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from perfmodel import load_model
from perfmodel.wafer.cores.expert_routes import Routes
from perfmodel.wafer.cores.instructions import CORE, Instructions, bytes_times_links
from perfmodel.wafer.cores.program import core_operations
from perfmodel.wafer.export import FORMS, write_cores
from perfmodel.wafer.routing import RoutedTokens, core_routing
from perfmodel.wafer.setting import CoreSetting, check_layers
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.cores import CoreMapping
from perfmodel.wafer.twin.run import read_nodes, run_nodes

SYSTEM = WaferSystem(
    56, (7, 8), (6, 6), data_parallel=7, tensor_parallel=4, sequence_parallel=2,
    expert_parallel=56, shared_copies=4,
)  # fmt: skip
LAYER, BATCH, CONTEXT = "decode10", 1024, 2048

Sums = dict[str, np.ndarray]
"""Part of the layer -> bytes times links, multiply-adds, cores x those of the busiest."""


def part(name: str) -> str:
    """Return what an operation is called without its layer and the number of its expert."""
    short = re.sub(r"exp_(shared|\d+)", "exp", name.removeprefix(f"{LAYER}_"))
    return re.sub(r"sum_[\d.]+", "sum", re.sub("attn_absorb_", "", short))


def add(sums: Sums, name: str, several: Iterable[Instructions]) -> None:
    """Add the instructions of an operation of a node."""
    work = np.zeros(SYSTEM.nodes * SYSTEM.cores)
    for one in several:
        sums[part(name)][0] += bytes_times_links(one, SYSTEM)
        gemm = one.lines[:, 0] == 2
        np.add.at(work, one.lines[gemm, CORE], one.arguments[gemm, :3].prod(axis=1))
    sums[part(name)][1:] += work.sum(), work.max() * SYSTEM.cores


def main() -> int:
    """Print the table."""
    model = load_model("deepseek-v3")
    # The generator's step 0 does not see the token that is made; ours does.
    setting = CoreSetting(model, SYSTEM, "decode", BATCH, CONTEXT - 1)
    experts = core_routing(setting, "two_level")(0, 10)
    routed = RoutedTokens(experts[None], model.layers[10].experts)
    theirs: Sums = defaultdict(lambda: np.zeros(3))
    ours: Sums = defaultdict(lambda: np.zeros(3))
    with tempfile.TemporaryDirectory() as folder:
        run_nodes(folder, model, {"decode": SYSTEM}, BATCH, CONTEXT, 1,
                  routing=lambda step: routed, layers=LAYER)  # fmt: skip
        mapping = CoreMapping(*read_nodes(folder, "decode0", SYSTEM.nodes), SYSTEM.cores)
        for node, name, pieces in mapping.pieces():
            made = [piece.instructions for piece in pieces]
            for one in made:
                one.lines[:, CORE] += node * SYSTEM.cores
            add(theirs, name, made)
        routes = Routes(setting, lambda step, layer: experts)
        layers = check_layers(setting, [LAYER])
        for node in range(SYSTEM.nodes):
            for operation in core_operations(setting, node, 0, routes, layers):
                add(ours, operation.name, [operation.instructions])
        print("| | generator: GB x links | occupancy | ours: GB x links | occupancy |")
        print("|---|---|---|---|---|")
        for name in [*sorted({*theirs, *ours}), "all"]:
            row = [sum(one.values()) if name == "all" else one[name] for one in (theirs, ours)]
            cells = [f"{one[0] / 1e9:.2f} | {one[1] / one[2] if one[2] else 1:.3f}" for one in row]
            print(f"| `{name}` | {' | '.join(cells)} |")
        for forms in (["text"], ["text"], ["columns"], FORMS):  # compiled once
            began = time.process_time()
            written = write_cores(
                folder, setting, routes, nodes=range(56), steps=[0], layers=layers, forms=forms
            )
            rate = written.counts.sum() / (time.process_time() - began)
            print(f"{written.counts.sum():,} instructions as {' and '.join(forms)}: {rate:,.0f}/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
