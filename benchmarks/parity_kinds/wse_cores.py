"""Compare core traces and their totals with what the wafer workload generator wrote.

``core_groups`` reads what it finds beside a tree of nodes: ``core_*.csv`` (instructions, bytes,
FLOPs and cores by node and layer) and traces of single cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

import numpy as np
from parity_kinds.rows import read_rows

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.formats.core_trace import format_pieces
from perfmodel.wafer.routed import RoutedTokens
from perfmodel.wafer.twin.core_totals import CoreTotal, core_totals
from perfmodel.wafer.twin.cores import CoreMapping, NodePieces
from perfmodel.wafer.twin.node_rows import iteration_rows
from perfmodel.wafer.twin.setting import Iteration

TOTALS = {"out_deepseekv3": "core_deepseekv3_node0.csv", "out_small": "core_small_4nodes.csv"}
COLUMNS = ("count", "bytes", "flops", "cores_used")
_TRACE = re.compile(r"core_(\d+)\.csv(?:\.gz)?")
_NODE = re.compile(r"node_(\d+)")


def core_groups(
    path: Path, name: str, iteration: Iteration, routed: RoutedTokens
) -> dict[str, list[float]]:
    """Return errors of totals, and of each trace the share of its lines that differ."""
    files = {
        (int(node[1]), int(core[1])): file
        for file in sorted((path / name).glob("traces*/*"))
        if (core := _TRACE.search(file.name))
        and (node := _NODE.search(str(file.relative_to(path))))
    }
    totals = path / TOTALS[name]
    if not files and not totals.exists():
        return {}
    system = iteration.system
    tables: list[list] = [[] for _ in range(system.nodes)]
    graphs: list[list] = [[] for _ in range(system.nodes)]
    for rows in iteration_rows(iteration, routed):
        tables[rows.node] += rows.table
        graphs[rows.node] += rows.graph
    mapped = list(CoreMapping(tables, graphs, system.cores).pieces())
    found = {}
    if totals.exists():
        found[f"core totals of {name}"] = list(_total_errors(totals, core_totals(mapped)))
    if files:
        found[f"core traces of {name}"] = list(_trace_errors(files, mapped, system.cores))
    return found


def _total_errors(path: Path, ours: dict[tuple[int, str, str], CoreTotal]) -> Iterable[float]:
    """Yield the error of each quantity; what either lacks of a node counts as 1."""
    seen = set()
    for where, row in read_rows(path, ("node", "layer", "opcode", *COLUMNS)):
        try:
            key = int(row["node"]), row["layer"], row["opcode"]
            theirs = [int(row[column]) for column in COLUMNS]
        except ValueError as error:
            raise FormatError(f"{where}: {error}") from None
        seen.add(key)
        for mine, reference in zip(ours.get(key, (-1,) * len(COLUMNS)), theirs, strict=True):
            yield abs(mine - reference) / (reference or 1)
    nodes = {node for node, _, _ in seen}
    yield from [1.0] * sum(len(COLUMNS) for key in ours if key[0] in nodes and key not in seen)


def _trace_errors(
    files: dict[tuple[int, int], Path], mapped: list[NodePieces], cores: int
) -> Iterable[float]:
    for node in sorted({node for node, _ in files}):
        texts = dict.fromkeys(range(cores), b"")
        pieces = [piece for made in mapped if made.node == node for piece in made.pieces]
        for core, text in format_pieces(pieces, np.zeros(cores, np.int64)):
            texts[core] += text
        for (at, core), file in files.items():
            if at == node:
                lines = texts.get(core, b"").split(b"\n")
                pairs = list(zip_longest(lines, read_unpacked(file).split(b"\n")))
                yield sum(a != b for a, b in pairs) / len(pairs)
