"""Files of the wafer workload generator: systems, tiles, and its nodes' operations.

``system.json``: one block each for prefill and decode, with every key of `KEYS`.

``tiling.json``: an object ``layers`` (pattern of operations, ``*`` for any text -> sides of a
tile) and one ``defaults`` (kind of operation -> sides). A side of ``null`` is the whole dimension.
The generator looks up the four attention kinds only; it finds tiles of products by itself.

Tables: lines of eight cells between semicolons, each ended by CR and LF: name, operation, bytes of
memory, multiply-accumulates, bytes read, bytes sent, group (``[0, 2]``, one node without
brackets for a unicast, ``N/A``) and dimensions, text such as
``[147, 7168] x [7168, 576] -> [147, 576]``.

Graphs: lines of five cells between semicolons, each ended by CR and LF: name, type, tensors read,
tensors made, and a cell that stays empty. A tensor is ``<node>:<name>``; one that another node
holds is how data come to it.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``configs/system.json``, ``configs/tiling.json``,
``src/generate_traces.py`` and, in ``src/node_level/common``, ``config.py``, ``stats.py`` and
``compute_graph.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.base.files import json_object, key_line, read_text, read_unpacked, shortened
from perfmodel.wafer.system import WaferSystem

# ``system.json``: the systems of prefill and decode.

LARGEST = 2**20  # B
PHASES = ("prefill", "decode")

KEYS: Mapping[str, str] = {
    "num_nodes": "nodes",
    "node_grid": "node_grid",
    "core_grid": "core_grid",
    "dp_attn": "data_parallel",
    "dp_ffn": "ffn_data_parallel",
    "tp_attn": "tensor_parallel",
    "tp_ffn": "ffn_tensor_parallel",
    "pp": "pipeline_parallel",
    "sp": "sequence_parallel",
    "ep": "expert_parallel",
    "n_redundant_shared_exp": "shared_copies",
    "expert_workload_model": "routing",
    "moe_comm": "expert_exchange",
}
"""Key of the file -> field of `WaferSystem`."""

WORKLOADS: Mapping[str, str] = {
    "uniform": "uniform",
    "identical": "balanced",
    "empirical_mmlu": "two_level",
}
"""Expert workload of the file -> routing. The counts of ``empirical_mmlu`` are another file
(``empirical:bincounts.json``); without it, what was fitted to them stands for them."""

_WORD = re.compile(
    "|".join(
        [r"(?<=')nodes(?=')", *(rf"\b{f}\b" for f in KEYS.values() if f not in ("nodes", *KEYS))]
    )
)
_KEY_OF = {field: key for key, field in KEYS.items()}


def read_systems(path: str | os.PathLike[str]) -> dict[str, WaferSystem]:
    """Read the systems of both phases.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    dict of str to WaferSystem
        ``prefill``, ``decode`` or both, as the file has them.

    Raises
    ------
    FormatError
        The file cannot be read, has neither block, lacks a key or has another, or its degrees
        and grids contradict each other; names file, line and key.
    """
    text, file = read_text(path, "a system.json", LARGEST), str(path)
    document = json_object(file, text, "'prefill' and 'decode'")
    for phase in document:
        if phase not in PHASES:
            raise FormatError(
                f"{file}:{key_line(text, phase)}: unknown block '{shortened(phase)}'"
                f"{did_you_mean(phase, PHASES)}"
            )
    if not document:
        raise FormatError(f"{file}:1: has neither 'prefill' nor 'decode'")
    return {
        phase: _system(block, file, phase, text, number)
        for number, (phase, block) in enumerate(document.items())
    }


def _system(block: Any, file: str, phase: str, text: str, number: int) -> WaferSystem:
    if not isinstance(block, dict):
        raise FormatError(f"{file}:{key_line(text, phase)}: '{phase}' should be an object of keys")

    def wrong(key: str, what: str) -> FormatError:
        line = key_line(text, key, number) if key in block else key_line(text, phase)
        return FormatError(f"{file}:{line}: {phase}: {what}")

    for key in block:
        if key not in KEYS:
            raise wrong(key, f"unknown key '{shortened(key)}'{did_you_mean(key, KEYS)}")
    for key in KEYS:
        if key not in block:
            raise wrong(key, f"key '{key}' is missing")
    values: dict[str, Any] = {KEYS[key]: value for key, value in block.items()}
    for key in ("node_grid", "core_grid"):
        if not isinstance(block[key], list):
            raise wrong(key, f"key '{key}': should be [rows, columns]")
        values[key] = tuple(block[key])
    workload = block["expert_workload_model"]
    if not isinstance(workload, str) or workload not in WORKLOADS:
        raise wrong(
            "expert_workload_model",
            f"key 'expert_workload_model': unknown '{shortened(workload)}'"
            f"{did_you_mean(str(workload), WORKLOADS)}",
        )
    values["routing"] = WORKLOADS[workload]
    if not isinstance(block["moe_comm"], str):
        raise wrong("moe_comm", f"key 'moe_comm': should be text, not {shortened(values)}")
    try:
        return WaferSystem(**values)
    except StrategyError as error:
        said = _WORD.sub(lambda found: _KEY_OF[found[0]], str(error))
        named = next((key for key in KEYS if re.search(rf"\b{key}\b", said)), "num_nodes")
        raise wrong(named, said) from None


# ``tiling.json``: sizes of tiles by kind and by layer.

BLOCKS = ("layers", "defaults")
SIDES: Mapping[str, int] = {
    "Linear": 3,
    "GroupedLinear": 4,
    "MLAQ": 4,
    "MLAKV": 3,
    "MHAQ": 4,
    "MHAKV": 4,
}
"""Kind of operation -> sides of its tile."""

Tile = tuple[int | None, ...]
"""Elements along each dimension; None for all of them."""


@dataclass(frozen=True)
class Tiling:
    """Sizes of tiles.

    Attributes
    ----------
    layers : mapping of str to Tile
        By pattern of an operation's name, the first that fits counts.
    defaults : mapping of str to Tile
        By kind of operation.
    """

    layers: Mapping[str, Tile]
    defaults: Mapping[str, Tile]

    def tile(self, kind: str, operation: str = "") -> Tile:
        """Return the tile of an operation.

        Raises
        ------
        FormatError
            There is none for its kind.
        """
        for pattern, sides in self.layers.items():
            if operation and fnmatchcase(operation, pattern):
                return sides
        if kind not in self.defaults:
            raise FormatError(f"tiling: no default for '{kind}'{did_you_mean(kind, self.defaults)}")
        return self.defaults[kind]


def read_tiling(path: str | os.PathLike[str]) -> Tiling:
    """Read sizes of tiles.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; names file, line and key.
    """
    text, file = read_text(path, "a tiling.json", LARGEST), str(path)
    document = json_object(file, text, "'layers' and 'defaults'")
    for key in document:
        if key not in BLOCKS:
            raise FormatError(
                f"{file}:{key_line(text, key)}: unknown block '{shortened(key)}'"
                f"{did_you_mean(key, BLOCKS)}"
            )
    found: dict[str, dict[str, Tile]] = {}
    for block in BLOCKS:
        entries = document.get(block, {})
        if not isinstance(entries, dict):
            raise FormatError(f"{file}:{key_line(text, block)}: '{block}' should be an object")
        found[block] = {}
        for name, sides in entries.items():
            place = f"{file}:{key_line(text, name)}: key '{shortened(name)}'"
            if block == "defaults" and name not in SIDES:
                raise FormatError(f"{place}: unknown kind{did_you_mean(name, SIDES)}")
            found[block][name] = _tile(sides, SIDES[name] if block == "defaults" else 0, place)
    return Tiling(found["layers"], found["defaults"])


def _tile(sides: Any, count: int, place: str) -> Tile:
    right = isinstance(sides, list) and all(
        side is None or (type(side) is int and 0 < side < 2**31) for side in sides
    )
    if not right or not sides or (count and len(sides) != count):
        wanted = f"{count} whole numbers" if count else "whole numbers"
        raise FormatError(f"{place}: should be a list of {wanted} above 0, or null for all")
    return tuple(sides)


# Tables of a node's operations.

TABLE_HEADER = (
    "uid;operation;memory_footprint (B);num_ops (MAC);hbm_reads (B);network_data (B);"
    "comm. group;Dimensions"
)
LARGEST_TABLE = 2**31  # B
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


def _table_text(path: str | os.PathLike[str]) -> str:
    return read_unpacked(path, LARGEST_TABLE).decode("utf-8-sig", errors="replace")


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
    file, lines = str(path), _table_text(path).splitlines()
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


# Graphs of a node's operations.

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
    file, lines = str(path), _table_text(path).splitlines()
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
