"""Compare the mapping of a node's work on its cores with that of the wafer workload generator.

``python benchmarks/wafer_mapping.py DATA [--tree NAME] [--nodes 0-3] [--json]`` maps the default
example of the generator (DeepSeek-V3 on 7 x 8 nodes of 6 x 6 cores, 1,024 sequences of 2,048
tokens, a layer with experts, the first step of decode, routed as there) or its small one
(``out_small``: 2 x 2 nodes of 4 x 4 cores, 8 sequences of 1,024) both ways and counts instructions:

occupancy   multiply-adds over cores times those of the busiest core
bytes       that cores read, write and copy
byte hops   those that go over links of the mesh, each link on the way counted

Both count READ, WRITE, COPY and MULTICAST; where the generator changes banks between two
operations it moves nothing, so it is counted with nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from parity_kinds.wse import _tree_setting

from perfmodel.model.config import read_config
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.cores.expert_routes import Routes
from perfmodel.wafer.cores.instructions import CORE, Instructions, bytes_times_links, core_totals
from perfmodel.wafer.cores.program import core_operations
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.setting import CoreSetting, check_layers
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.cores import CoreMapping
from perfmodel.wafer.twin.run import iteration_rows
from perfmodel.wafer.twin.setting import Iteration

LAYER = 10
TREES = {"out_deepseekv3": (1024, 2048), "out_small": (8, 1024)}
"""Sequences and tokens of each."""


class Counted(NamedTuple):
    """What an operation of a node comes to."""

    macs: int
    busiest: int
    moved: int
    byte_hops: int

    def plus(self, other: Counted) -> Counted:
        """Return both together: the second runs after the first."""
        return Counted(*(one + two for one, two in zip(self, other, strict=True)))


NONE = Counted(0, 0, 0, 0)


def main() -> int:
    """Count both mappings and print them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tree", choices=list(TREES), default="out_deepseekv3")
    parser.add_argument("--nodes", default="0", help="such as 0 or 0-7 (default: 0)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    first, _, last = given.nodes.partition("-")
    nodes = range(int(first), int(last or first) + 1)
    found = compare(given.data, nodes, given.tree)
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"{'operation':34}{'occupancy':>18}{'MB':>18}{'MB x hops':>22}")
    for row in found["operations"]:
        print(
            f"{row['operation']:34}"
            + "".join(_pair(row[name], form) for name, form in FORMS.items())
        )
    print(f"{'all products':34}" + _pair(found["occupancy"], FORMS["occupancy"]))
    for name in ("products", "all"):
        row = found[name]
        print(
            f"{'traffic of ' + name:34}{'':18}"
            + "".join(_pair(row[key], FORMS[key]) for key in ("moved", "byte_hops"))
        )
    return 0


FORMS = {"occupancy": "8.3f", "moved": "8.1f", "byte_hops": "10.1f"}


def _pair(values: list[float | None], form: str) -> str:
    """Theirs and ours; bytes in MB."""
    scale = 1.0 if form.endswith("3f") else 1e-6
    width = int(form.split(".")[0])
    return "".join(
        f" {'-' if value is None else format(value * scale, form):>{width}}" for value in values
    )


def compare(data: Path, nodes: Iterable[int], tree: str = "out_deepseekv3") -> dict:
    """Return theirs and ours, by operation and in sum.

    Parameters
    ----------
    data : path
        Folder with the generator's files.
    nodes : iterable of int
    tree : str
        One of `TREES`.

    Returns
    -------
    dict
        ``operations`` (with ``occupancy``, ``moved`` and ``byte_hops`` as [theirs, ours]),
        ``occupancy`` over all products, ``products`` and ``all`` their traffic.
    """
    nodes = list(nodes)
    iterations, routing = _tree_setting(data, tree)
    iteration, routed = iterations[0], routing(0)
    system = iteration.system
    both = [
        _theirs(iteration, routed, nodes),
        _ours(read_config(data / "configs/deepseekv3.json"), system, routed, nodes, TREES[tree]),
    ]
    names = list(dict.fromkeys(name for found in both for name in found))
    rows = []
    for name in names:
        pair = [found.get(name, NONE) for found in both]
        rows.append(
            {
                "operation": name,
                "occupancy": [_occupancy(one, system.cores) for one in pair],
                "moved": [one.moved for one in pair],
                "byte_hops": [one.byte_hops for one in pair],
            }
        )
    sums = {}
    for key, kept in (("products", True), ("all", False)):
        totals = [_sum(one for one in found.values() if one.macs or not kept) for found in both]
        sums[key] = {
            "moved": [one.moved for one in totals],
            "byte_hops": [one.byte_hops for one in totals],
        }
        if kept:
            sums["occupancy"] = [_occupancy(one, system.cores) for one in totals]
    return {"operations": rows, **sums}


def _sum(counted: Iterable[Counted]) -> Counted:
    total = NONE
    for one in counted:
        total = total.plus(one)
    return total


def _occupancy(one: Counted, cores: int) -> float | None:
    return one.macs / (cores * one.busiest) if one.busiest else None


def _count(instructions: Instructions, system: WaferSystem) -> Counted:
    totals = core_totals(instructions)
    return Counted(
        totals.macs,
        totals.busiest_macs,
        int(totals.moved.sum()),
        bytes_times_links(instructions, system),
    )


def _called(operation: str) -> str:
    """One name for the same product of all experts."""
    short = operation.removeprefix(f"decode{LAYER}_")
    return re.sub(r"sum_[\d.]+", "sum", re.sub(r"exp_\d+_", "exp_N_", short))


def _theirs(iteration: Iteration, routed: RoutedTokens, nodes: list[int]) -> dict[str, Counted]:
    system = iteration.system
    tables: list[list] = [[] for _ in range(system.nodes)]
    graphs: list[list] = [[] for _ in range(system.nodes)]
    for rows in iteration_rows(iteration, routed):
        tables[rows.node] += rows.table
        graphs[rows.node] += rows.graph
    found: dict[tuple[int, str], list[Instructions]] = {}
    for made in CoreMapping(tables, graphs, system.cores).pieces():
        if made.node in nodes:
            for piece in made.pieces:
                lines = piece.instructions.lines.copy()
                lines[:, CORE] += made.node * system.cores
                some = piece.instructions._replace(lines=lines)
                found.setdefault((made.node, made.operation), []).append(some)
    result: dict[str, Counted] = {}
    for (_, operation), parts in found.items():
        name = _called(operation)
        result[name] = result.get(name, NONE).plus(_together(parts, system))
    return result


def _together(parts: list[Instructions], system: WaferSystem) -> Counted:
    """Count pieces of one operation: their multicasts are numbered apart."""
    totals = [_count(part, system) for part in parts]
    lines = np.concatenate([part.lines for part in parts])
    arguments = np.concatenate([part.arguments for part in parts])
    busiest = core_totals(Instructions(lines, arguments, parts[0].destinations)).busiest_macs
    return _sum(totals)._replace(busiest=busiest)


def _ours(
    model: ModelSpec,
    system: WaferSystem,
    routed: RoutedTokens,
    nodes: list[int],
    asked: tuple[int, int],
) -> dict[str, Counted]:
    setting = CoreSetting(model, system, "decode", *asked)
    routes = Routes(setting, lambda _step, _layer: routed.of_layer(0))
    layers = check_layers(setting, [f"decode{LAYER}"])
    result: dict[str, Counted] = {}
    for node in nodes:
        for one in core_operations(setting, node, 0, routes, layers):
            name = _called(one.name)
            result[name] = result.get(name, NONE).plus(_count(one.instructions, system))
    return result


if __name__ == "__main__":
    sys.exit(main())
