"""Graphs of a node's operations, as the wafer workload generator writes them.

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

HEADER = "uid;Op Type;Inputs;Outputs;Attributes"
LARGEST = 2**31  # B
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
    if not lines or lines[0] != HEADER:
        raise FormatError(f"{file}, line 1: no graph of a node's operations: should be '{HEADER}'")
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
    return "".join([HEADER + "\r\n", *node_graph_rows(graph)])
