"""Tables and graphs of nodes' operations, as the wafer workload generator writes them.

Lines of eight cells between semicolons, each ended by CR and LF: name, operation, bytes of
memory, multiply-accumulates, bytes read, bytes sent, group (``[0, 2]``, one node without
brackets for a unicast, ``N/A``) and dimensions, text such as
``[147, 7168] x [7168, 576] -> [147, 576]``.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/stats.py``.

Lines of five cells between semicolons, each ended by CR and LF: name, type, tensors read,
tensors made, and a cell that stays empty. A tensor is ``<node>:<name>``; one that another node
holds is how data come to it.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/common/compute_graph.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked, shortened

# Tables of a node's operations, as the wafer workload generator writes them.

TABLE_HEADER = (
    "uid;operation;memory_footprint (B);num_ops (MAC);hbm_reads (B);network_data (B);"
    "comm. group;Dimensions"
)
LARGEST = 2**31  # B
MOST = 2**63 - 1
_LIST = re.compile(r"\[(-?\d+(?:, -?\d+)*)?\]")
_GROUP = re.compile(r"\[(\d+(?:, \d+)*)?\]|\d+|N/A")
ONE_NODE = "Unicast"
"""The operation whose group is one node."""


class NodeOperation(NamedTuple):
    """A row.

    Attributes
    ----------
    name, operation : str
    footprint : int
        Weights and keys and values that it needs [B].
    macs : int
        Multiply-accumulates.
    reads, sent : int
        [B]
    group : tuple of int or None
        Nodes that take part, or that are sent to.
    dimensions : str
        See `shapes`.
    """

    name: str
    operation: str
    footprint: int
    macs: int
    reads: int
    sent: int
    group: tuple[int, ...] | None
    dimensions: str


def shapes(dimensions: str) -> tuple[tuple[int, ...], ...]:
    """Return the lists of numbers in a cell of dimensions, in their order."""
    return tuple(
        tuple(map(int, found[1].split(", "))) if found[1] else ()
        for found in _LIST.finditer(dimensions)
    )


def read_node_table(path: str | os.PathLike[str]) -> list[NodeOperation]:
    """Read a node's operations in the order in which they run.

    Parameters
    ----------
    path : str or path
        Perhaps packed by gzip.

    Raises
    ------
    FormatError
        The file cannot be read or is no such table; names file and line.
    """
    data = read_unpacked(path, LARGEST)
    return parse_node_table(data.decode("utf-8-sig", errors="replace"), str(path))


def parse_node_table(text: str, file: str = "node table") -> list[NodeOperation]:
    """Read a node's operations from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_node_table`.
    """
    lines = text.splitlines()
    if not lines or lines[0] != TABLE_HEADER:
        raise FormatError(
            f"{file}, line 1: no table of a node's operations: should be '{TABLE_HEADER}'"
        )
    return [_row(line, f"{file}, line {at}") for at, line in enumerate(lines[1:], 2) if line]


def node_table_rows(operations: Iterable[NodeOperation]) -> Iterator[str]:
    """Yield the lines of operations, without the one of names of columns."""
    for name, operation, footprint, macs, reads, sent, group, dimensions in operations:
        if group is None:
            nodes = "N/A"
        elif operation == ONE_NODE:
            nodes = str(group[0])
        else:
            nodes = str(list(group))
        yield f"{name};{operation};{footprint};{macs};{reads};{sent};{nodes};{dimensions}\r\n"


def format_node_table(operations: Iterable[NodeOperation]) -> str:
    """Return a table as text."""
    return "".join([TABLE_HEADER + "\r\n", *node_table_rows(operations)])


def _row(line: str, place: str) -> NodeOperation:
    cells = line.split(";")
    if len(cells) != 8:
        raise FormatError(f"{place}: {len(cells)} cells; an operation has 8")
    numbers = []
    for column, cell in zip(TABLE_HEADER.split(";")[2:6], cells[2:6], strict=True):
        if not (cell.isascii() and cell.isdigit()) or len(cell) > 19 or int(cell) > MOST:
            raise FormatError(
                f"{place}: {column} '{shortened(cell)}' should be a whole number of at least 0"
            )
        numbers.append(int(cell))
    if not _GROUP.fullmatch(cells[6]):
        raise FormatError(f"{place}: group '{shortened(cells[6])}' should be [0, 1, …] or N/A")
    group = None if cells[6] == "N/A" else tuple(map(int, re.findall(r"\d+", cells[6])))
    footprint, macs, reads, sent = numbers
    return NodeOperation(cells[0], cells[1], footprint, macs, reads, sent, group, cells[7])


# Graphs of a node's operations, as the wafer workload generator writes them.

GRAPH_HEADER = "uid;Op Type;Inputs;Outputs;Attributes"
_TENSORS = re.compile(r"\[(?:'[^']*'(?:, '[^']*')*)?\]")
_TENSOR = re.compile(r"'(\d+:[^']*)'")


class GraphNode(NamedTuple):
    """An operation: its name, its type, and the tensors that it reads and makes."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_node_graph(path: str | os.PathLike[str]) -> list[GraphNode]:
    """Read a node's graph.

    Parameters
    ----------
    path : str or path
        Perhaps packed by gzip.

    Raises
    ------
    FormatError
        The file cannot be read or is no such graph; names file and line.
    """
    data = read_unpacked(path, LARGEST)
    return parse_node_graph(data.decode("utf-8-sig", errors="replace"), str(path))


def parse_node_graph(text: str, file: str = "node graph") -> list[GraphNode]:
    """Read a node's graph from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_node_graph`.
    """
    lines = text.splitlines()
    if not lines or lines[0] != GRAPH_HEADER:
        raise FormatError(
            f"{file}, line 1: no graph of a node's operations: should be '{GRAPH_HEADER}'"
        )
    found = []
    for at, line in enumerate(lines[1:], 2):
        if not line:
            continue
        cells = line.split(";")
        if len(cells) != 5:
            raise FormatError(f"{file}, line {at}: {len(cells)} cells; an operation has 5")
        for cell in cells[2:4]:
            if not _TENSORS.fullmatch(cell) or cell.count("'") != 2 * len(_TENSOR.findall(cell)):
                raise FormatError(
                    f"{file}, line {at}: '{shortened(cell)}' should be a list of tensors such as "
                    "['0:queries']"
                )
        inputs, outputs = (tuple(_TENSOR.findall(cell)) for cell in cells[2:4])
        found.append(GraphNode(cells[0], cells[1], inputs, outputs))
    return found


def node_graph_rows(graph: Iterable[GraphNode]) -> Iterator[str]:
    """Yield the lines of operations, without the one of names of columns."""
    for name, kind, inputs, outputs in graph:
        yield f"{name};{kind};{list(inputs)};{list(outputs)};\r\n"


def format_node_graph(graph: Iterable[GraphNode]) -> str:
    """Return a graph as text."""
    return "".join([GRAPH_HEADER + "\r\n", *node_graph_rows(graph)])
