"""Core traces of a tree of nodes, as the generator's second program makes them.

It reads ``nodes/decode/node_<node>/<step>.csv`` and ``graph/node_<node>/<step>.csv`` of all nodes
and writes ``traces/decode/node_<node>/<step>/core_<core>.csv`` beside them.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/generate_traces.py``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import shortened, user_path
from perfmodel.wafer.formats.core_trace_files import write_core_traces
from perfmodel.wafer.formats.node_graph import GraphNode, read_node_graph
from perfmodel.wafer.formats.node_table import NodeOperation, read_node_table
from perfmodel.wafer.formats.tiling import Tiling
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.core_tiles import DEFAULT_TILING
from perfmodel.wafer.twin.cores import PASSED_OVER, CoreMapping

PHASE = "decode"
"""The only one that the generator knows at this level."""


def read_nodes(
    folder: str | os.PathLike[str], step: str, nodes: int
) -> tuple[list[list[NodeOperation]], list[list[GraphNode]]]:
    """Read operations and graphs of all nodes of a step.

    Parameters
    ----------
    folder : str or path
        With ``nodes`` and ``graph``.
    step : str
        Such as ``decode0``.
    nodes : int

    Raises
    ------
    DataError
        The step is none of decoding, or the tree lacks a node.
    FormatError
        A file is damaged.
    """
    number = step.removeprefix(PHASE)
    if not (step.startswith(PHASE) and number.isascii() and number.isdigit()):
        raise DataError(
            f"step '{shortened(step)}': the generator has core traces of steps of decoding only, "
            f"such as '{PHASE}0'"
        )
    root = user_path(folder)
    tables, graphs = [], []
    for node in range(nodes):
        table = root / "nodes" / PHASE / f"node_{node}" / f"{step}.csv"
        graph = root / "graph" / f"node_{node}" / f"{step}.csv"
        for path in (table, graph):
            if not path.is_file():
                raise DataError(_missing(root, path, node, nodes))
        tables.append(read_node_table(table))
        graphs.append(read_node_graph(graph))
        named = {one.name for one in graphs[-1]}
        for row in tables[-1]:
            if row.name not in named and row.operation not in PASSED_OVER:
                raise FormatError(f"{graph}: has no '{shortened(row.name)}', which {table} has")
    return tables, graphs


def _missing(root: Path, path: Path, node: int, nodes: int) -> str:
    if not (root / "nodes").is_dir():
        return f"'{root}' holds no tree of nodes ('nodes', 'graph')"
    return f"'{path}' is missing: traces of cores need all {nodes} nodes, {node} too"


def write_traces(
    folder: str | os.PathLike[str],
    step: str,
    system: WaferSystem,
    *,
    element_bytes: int = 2,
    tiling: Tiling = DEFAULT_TILING,
    layers: Collection[str] | None = None,
    nodes: Iterable[int] | None = None,
) -> int:
    """Write the traces of all cores of a step beside the tree of nodes that they follow from.

    Parameters
    ----------
    folder : str or path
        With ``nodes`` and ``graph``; a folder ``traces`` is replaced.
    step : str
        Such as ``decode0``.
    system : WaferSystem
    element_bytes : int, optional
        [B]
    tiling : Tiling, optional
    layers : collection of str, optional
        Layers that get instructions, such as ``decode10``; all otherwise.
    nodes : iterable of int, optional
        Nodes whose traces are written; all otherwise.

    Returns
    -------
    int
        Lines written.

    Raises
    ------
    DataError
        The tree lacks a node, an operation stops the generator, a layer or node does not exist,
        or the folder cannot be written.
    FormatError
        A file is damaged.
    """
    written = sorted(set(range(system.nodes) if nodes is None else nodes))
    for node in written:
        if not 0 <= node < system.nodes:
            raise DataError(f"key 'nodes': there is no node {node}; there are {system.nodes}")
    tables, graphs = read_nodes(folder, step, system.nodes)
    mapping = CoreMapping(tables, graphs, system.cores, element_bytes, tiling, layers)
    pieces = ((made.node, made.pieces) for made in mapping.pieces())
    return write_core_traces(folder, step, written, system.cores, pieces)
