"""What nodes and cores of a wafer do, as files.

Nodes: one netCDF, and a graph of one step. Cores: instructions as the generator's
text, as one netCDF file, and their totals.

Source: Brandes et al., "GraphML Progress Report", 2001; http://graphml.graphdrawing.org.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.base.files import atomic_path, user_path
from perfmodel.base.table import Table
from perfmodel.base.units import format_size
from perfmodel.model.presets import load_model
from perfmodel.store.files import save_results
from perfmodel.store.netcdf import read_netcdf
from perfmodel.wafer.core_columns import CoreColumns
from perfmodel.wafer.core_trace import FOLDER, CoreTexts, TracePiece, replaced_traces
from perfmodel.wafer.cores.expert_routes import Routes
from perfmodel.wafer.cores.instructions import (
    CORE,
    GEMM,
    OPCODE,
    OPCODES,
    bytes_times_links,
    core_totals,
)
from perfmodel.wafer.cores.products import CoreOperation
from perfmodel.wafer.cores.program import core_operations
from perfmodel.wafer.nodes.rows import Operation, operation_graph, working
from perfmodel.wafer.nodes.workload import node_operations, node_table
from perfmodel.wafer.routing import RoutingOf
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem

# Graphs of operations as GraphML, which networkx, yEd and Gephi read.

TYPES = {str: "string", int: "long", float: "double"}


def write_graphml(
    path: str | os.PathLike[str],
    vertices: Iterable[Mapping[str, str | int | float]],
    edges: Iterable[tuple[int, int]],
    keys: Mapping[str, type],
) -> tuple[int, int]:
    """Write a directed graph, completely or not at all.

    Parameters
    ----------
    path : str or path
    vertices : iterable of mapping of str to str, int or float
        Values of each vertex; vertices count from 0.
    edges : iterable of (int, int)
        From and to.
    keys : mapping of str to type
        Name of each value -> `str`, `int` or `float`.

    Returns
    -------
    (int, int)
        Vertices and edges written.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    counts = [0, 0]
    with atomic_path(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('<?xml version="1.0" encoding="UTF-8"?>\n')
        file.write('<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
        for name, kind in keys.items():
            file.write(
                f'<key id={quoteattr(name)} for="node" attr.name={quoteattr(name)} '
                f'attr.type="{TYPES[kind]}"/>\n'
            )
        file.write('<graph edgedefault="directed">\n')
        for number, values in enumerate(vertices):
            data = "".join(
                f"<data key={quoteattr(name)}>{escape(str(value))}</data>"
                for name, value in values.items()
            )
            file.write(f'<node id="n{number}">{data}</node>\n')
            counts[0] += 1
        for before, after in edges:
            file.write(f'<edge source="n{before}" target="n{after}"/>\n')
            counts[1] += 1
        file.write("</graph>\n</graphml>\n")
    return counts[0], counts[1]


# The node level of a wafer as files: one netCDF, and a graph of one step.

TABLE, GRAPH = "nodes.nc", "graph.graphml"
MOST_VERTICES = 2_000_000
"""Operations on nodes that are written as a graph."""


class WrittenNodes(NamedTuple):
    """What was written.

    Attributes
    ----------
    table : Table
    vertices, links : int
        Of the graph; 0 where none was asked for.
    files : list of Path
    operations : list of Operation
        Of all nodes.
    done : array of int, shape (operations, nodes)
        From `perfmodel.wafer.nodes.rows.working`; empty where no graph was asked for.
    """

    table: Table
    vertices: int
    links: int
    files: list[Path]
    operations: Sequence[Operation]
    done: Integers


def write_nodes(
    folder: str | os.PathLike[str],
    setting: CoreSetting,
    steps: Sequence[int],
    routing: RoutingOf | None,
    *,
    layers: Collection[str] | None = None,
    nodes: Sequence[int] | None = None,
    graph: bool = True,
) -> WrittenNodes:
    """Write ``nodes.nc``; and, of the first step, ``graph.graphml``.

    Parameters
    ----------
    folder : str or path
        Made where it does not exist.
    setting : CoreSetting
    steps : sequence of int
        Of decode, from 0; (0,) in prefill.
    routing : RoutingOf or None
    layers : collection of str, optional
    nodes : sequence of int, optional
        Nodes of the table; the graph has all.
    graph : bool
        Whether the graph is written.

    Raises
    ------
    StrategyError, DataError
        What cannot be, or cannot be written.
    """
    place = Path(folder)
    operations = node_operations(setting, tuple(steps), routing, layers)
    table = node_table(setting, operations, tuple(steps), nodes)
    count = setting.system.nodes
    if graph and len(operations) * count > MOST_VERTICES:
        raise DataError(
            f"graph: {len(operations):,} operations on {count:,} nodes exceed {MOST_VERTICES:,}; "
            "choose --layers, or --no-graph"
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make '{place}': {error.strerror}") from None
    save_results(table, place / TABLE)
    files = [place / TABLE]
    if not graph:
        return WrittenNodes(table, 0, 0, files, operations, np.empty((0, count), np.int64))
    done = working(operations, count)
    vertices, links = _write_graph(place / GRAPH, operations, done)
    files.append(place / GRAPH)
    return WrittenNodes(table, vertices, links, files, operations, done)


def _write_graph(path: Path, operations: Sequence[Operation], done: Integers) -> tuple[int, int]:
    graph = operation_graph(operations, done)
    names = ("flops", "reads", "writes", "sent", "received")
    columns = {name: first_step(operations, name, done.shape[1]) for name in names}
    vertices: Iterator[dict[str, str | int | float]] = (
        {
            "name": operations[at].name,
            "node": node,
            "kind": "meeting" if meeting else operations[at].kind,
            **{name: 0.0 if meeting else float(columns[name][at, node]) for name in names},
        }
        for at, node, meeting in zip(
            graph.operation.tolist(), graph.node.tolist(), graph.meeting.tolist(), strict=True
        )
    )
    keys = {"name": str, "node": int, "kind": str, **dict.fromkeys(names, float)}
    return write_graphml(path, vertices, map(tuple, graph.edges.tolist()), keys)


def first_step(operations: Sequence[Operation], name: str, nodes: int) -> Floats:
    """Return a quantity of the first step, shape (operations, nodes)."""
    found = np.zeros((len(operations), nodes))
    for at, one in enumerate(operations):
        if name in one.values:
            value = np.asarray(one.values[name], np.float64)
            found[at] = value[:, 0] if value.ndim == 2 else value
    return found


TEXT, COLUMNAR = "text", "columns"
COLUMNS_FILE = "cores.nc"
FORMS = (TEXT, COLUMNAR)


class Written(NamedTuple):
    """What was written: totals of all instructions.

    Attributes
    ----------
    counts, moved : array of int, shape (7,)
        Instructions and bytes by opcode [B].
    macs, executed : int
        Multiply-adds that are asked for, and those of all products.
    busiest : int
        Sum over products and attentions of cores times the multiply-adds of the busiest one.
    links : int
        Bytes times links of the mesh [B].
    """

    counts: Integers
    moved: Integers
    macs: int
    executed: int
    busiest: int
    links: int

    @property
    def occupancy(self) -> float:
        """Useful multiply-adds over cores times those of the busiest, of all products."""
        return self.macs / self.busiest if self.busiest else 1.0


def setting_of_nodes(folder: str | os.PathLike[str]) -> CoreSetting | None:
    """Return what ``nodes.nc`` in a folder says that it is of; None where there is none.

    Raises
    ------
    DataError, ModelError
        The file is another, or its model is no preset.
    """
    path = user_path(folder) / TABLE
    if not path.exists():
        return None
    stated = read_netcdf(path).attrs
    try:
        system = json.loads(str(stated["system"]))
        for key in ("node_grid", "core_grid"):
            system[key] = tuple(system[key])
        return CoreSetting(
            load_model(str(stated["model"])),
            WaferSystem(**system),
            str(stated["phase"]),
            *(int(stated[key]) for key in ("batch", "input_length", "speculative")),
            *(float(stated[key]) for key in ("weight_bytes", "activation_bytes", "cache_bytes")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{path}' says not of what it is ({error}); state --model") from None


def write_cores(
    folder: str | os.PathLike[str],
    setting: CoreSetting,
    routes: Routes,
    *,
    nodes: Sequence[int],
    steps: Sequence[int],
    layers: frozenset[str],
    forms: Sequence[str] = FORMS,
    attributes: dict[str, Any] | None = None,
) -> Written:
    """Write the instructions of cores, in the memory of one layer of a node.

    Parameters
    ----------
    folder : str or path
        Text goes to ``traces/<phase>/node_<node>/<step>/core_<core>.csv`` in it, columns to
        ``cores.nc``. What was there of these is replaced when all is done.
    setting : CoreSetting
    routes : Routes
    nodes, steps : sequence of int
    layers : frozenset of str
        As `perfmodel.wafer.setting.check_layers` returns them.
    forms : sequence of {"text", "columns"}
    attributes : dict, optional
        Text and numbers for the netCDF file.

    Raises
    ------
    DataError
        The folder cannot be written.
    StrategyError
        A tile that a bank cannot hold.
    """
    if not str(folder):
        raise DataError("cannot write '': name a folder")
    target = user_path(folder)
    new = not target.exists()
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write '{target}': {error.strerror or error}") from None
    try:
        with contextlib.ExitStack() as stack:
            text = columns = None
            if TEXT in forms:
                text = stack.enter_context(replaced_traces(target / FOLDER))
            if COLUMNAR in forms:
                path = stack.enter_context(atomic_path(target / COLUMNS_FILE))
                columns = CoreColumns(path, setting.system, attributes or {})
                stack.callback(columns.close)
            return _write_into(text, columns, setting, routes, nodes, steps, layers)
    except BaseException:
        if new:
            with contextlib.suppress(OSError):  # not empty: someone else's by now
                target.rmdir()
        raise


def _write_into(
    folder: Path | None,
    columns: CoreColumns | None,
    setting: CoreSetting,
    routes: Routes,
    nodes: Sequence[int],
    steps: Sequence[int],
    layers: frozenset[str],
) -> Written:
    counts, moved = np.zeros(len(OPCODES), np.int64), np.zeros(len(OPCODES), np.int64)
    sums = np.zeros(4, object)
    sums[:] = 0
    for step in steps:
        name = f"{setting.phase}{step}" if setting.phase == "decode" else setting.phase
        for node in nodes:
            text = None
            if folder is not None:
                place = folder / setting.phase / f"node_{node}" / name
                text = CoreTexts([place], setting.system.cores)
            for operation in core_operations(setting, node, step, routes, layers):
                made = operation.instructions
                check_tiles(operation, setting)
                if text is not None:
                    text.add(place, [_text_of(operation, node * setting.system.cores)])
                if columns is not None:
                    columns.add(node, step, operation.name, operation.macs, made)
                total = core_totals(made)
                counts += total.counts
                moved += total.moved
                sums += (
                    operation.macs,
                    total.macs,
                    total.busiest_macs * setting.system.cores,
                    bytes_times_links(made, setting.system),
                )
            if text is not None:
                text.flush()
    return Written(counts, moved, *map(int, sums))


def check_tiles(operation: CoreOperation, setting: CoreSetting) -> None:
    """Refuse tiles that a core's bank cannot hold: both operands and the result of a product.

    Raises
    ------
    StrategyError
    """
    lines, arguments = operation.instructions.lines, operation.instructions.arguments
    products = arguments[lines[:, OPCODE] == GEMM]
    if not setting.bank_size or not len(products):
        return
    m, k, n = products[:, 0], products[:, 1], products[:, 2]
    sizes = (m * k + m * n) * setting.activation_bytes + k * n * setting.weight_bytes
    at = int(np.argmax(sizes))
    if sizes[at] > setting.bank_size:
        raise StrategyError(
            f"key 'bank_size': the tile {m[at]} x {k[at]} x {n[at]} of {operation.name} takes "
            f"{format_size(float(sizes[at]))}, a bank holds {format_size(setting.bank_size)}; take "
            "more cores, a smaller batch or shorter prompts"
        )


def _text_of(operation: CoreOperation, first_core: int) -> TracePiece:
    """Return an operation as a piece of text, with the cores counted from the node's first."""
    lines = operation.instructions.lines.copy()
    lines[:, CORE] -= first_core
    here = operation.instructions._replace(lines=lines)
    return TracePiece(here, operation.name, np.empty((1, 0), np.int64))
