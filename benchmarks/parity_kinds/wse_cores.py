"""Compare core traces and their totals with what the wafer workload generator wrote.

``core_groups`` reads what it finds beside a tree of nodes: ``core_*.csv`` (instructions, bytes,
FLOPs and cores by node and layer) and traces of single cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from parity_kinds.rows import read_rows

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.core_trace import format_pieces
from perfmodel.wafer.cores.instructions import (
    ADD,
    ARGUMENTS,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    OPCODES,
    READ,
    WRITE,
)
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.twin.cores import CoreMapping, NodePieces
from perfmodel.wafer.twin.run import iteration_rows
from perfmodel.wafer.twin.setting import Iteration

TOTALS = {"out_deepseekv3": "core_deepseekv3_node0.csv", "out_small": "core_small_4nodes.csv"}
COLUMNS = ("count", "bytes", "flops", "cores_used")
_TRACE = re.compile(r"core_(\d+)\.csv(?:\.gz)?")
_NODE = re.compile(r"node_(\d+)")
_EXPERT = re.compile(r"_exp_\d+_")
_SUM = re.compile(r"_sum_\d+\.\d+$")


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


class CoreTotal(NamedTuple):
    """Instructions of a kind in a layer on a node.

    Attributes
    ----------
    lines : int
    bytes : int
        Read, written, copied or sent; a multicast counts once [B].
    flops : int
        Two per multiply-accumulate, one per addition.
    cores_used : int
    """

    lines: int
    bytes: int
    flops: int
    cores_used: int


def layer_name(operation: str) -> str:
    """Return the layer that an operation's totals are given under."""
    return _SUM.sub("", _EXPERT.sub("_exp_N_", operation))


def core_totals(mapped: Iterable[NodePieces]) -> dict[tuple[int, str, str], CoreTotal]:
    """Add up instructions by node, layer and kind.

    Experts of a node count as one layer, ``exp_N``, and so do the sums that put a layer's tokens
    together; barriers between layers are ``cross_layer``.

    Parameters
    ----------
    mapped : iterable of NodePieces
        As of `perfmodel.wafer.twin.cores.CoreMapping.pieces`.

    Returns
    -------
    dict of (int, str, str) to CoreTotal
        Node, layer and instruction, in the order in which they come first.
    """
    sums: dict[tuple[int, str, str], list[int]] = {}
    used: dict[tuple[int, str, str], set[int]] = {}
    for node, operation, pieces in mapped:
        layer = layer_name(operation)
        for piece in pieces:
            lines, arguments, _ = piece.instructions
            for opcode in np.unique(lines[:, OPCODE]).tolist():
                rows = lines[:, OPCODE] == opcode
                key = node, layer, OPCODES[opcode]
                total = sums.setdefault(key, [0, 0, 0])
                total[0] += int(np.count_nonzero(rows))
                total[1] += _bytes(opcode, arguments[rows])
                total[2] += _flops(opcode, lines[rows], arguments[rows])
                used.setdefault(key, set()).update(np.unique(lines[rows, CORE]).tolist())
    return {
        key: CoreTotal(lines, moved, flops, len(used[key]))
        for key, (lines, moved, flops) in sums.items()
    }


def _bytes(opcode: int, arguments: np.ndarray) -> int:
    if opcode in (READ, WRITE, MULTICAST):
        return int(arguments[:, 1].sum())
    return int(arguments[:, 2].sum()) if OPCODES[opcode] == "COPY" else 0


def _flops(opcode: int, lines: np.ndarray, arguments: np.ndarray) -> int:
    if opcode == GEMM:
        return 2 * int(arguments[:, :3].prod(axis=1).sum())
    if opcode == ADD:
        sides = np.arange(arguments.shape[1]) < lines[:, [ARGUMENTS]]
        return int(np.where(sides, arguments, 1).prod(axis=1).sum())
    return 0
