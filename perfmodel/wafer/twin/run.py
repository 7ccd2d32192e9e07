"""Runs of the generator: the tree of nodes of its first program, core traces of its second.

It reads ``nodes/decode/node_<node>/<step>.csv`` and ``graph/node_<node>/<step>.csv`` of all nodes
and writes ``traces/decode/node_<node>/<step>/core_<core>.csv`` beside them.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/generate_traces.py``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import shortened, user_path
from perfmodel.model.routing import read_counts
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.core_trace import write_core_traces
from perfmodel.wafer.generator_files import (
    GraphNode,
    NodeOperation,
    Tiling,
    read_node_graph,
    read_node_table,
)
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.twin.core_lines import DEFAULT_TILING
from perfmodel.wafer.twin.cores import PASSED_OVER, CoreMapping
from perfmodel.wafer.twin.routing import MODELS, GeneratorRouting
from perfmodel.wafer.twin.setting import PREFILL, Iteration, Routed, iterations
from perfmodel.wafer.twin.tree import write_tree

PHASES = ("decode", "prefill", "both")
STEPS = ("ends", "all")
ALIKE = {"balanced": "identical"}
"""What is distributed evenly has another name there."""


def run_nodes(
    folder: str | Path,
    model: ModelSpec,
    systems: dict[str, WaferSystem],
    batch: int,
    prompt: int,
    generated: int = 10,
    *,
    phase: str = "decode",
    steps: str | Sequence[int] = "ends",
    routing: str | Routed = "",
    nodes: Sequence[int] | None = None,
    layers: str = "all",
    speculative: int = 0,
    precision: str = "fp16",
) -> int:
    """Write the tree that the generator writes: ``nodes/``, ``graph/``, ``footprint.json``.

    Parameters
    ----------
    folder : str or path
        Made where it does not exist; an earlier tree in it is replaced.
    model : ModelSpec
        Of DeepSeek-V3's or Llama's shape.
    systems : dict of str to WaferSystem
        By phase, as of `perfmodel.wafer.generator_files.read_systems`.
    batch, prompt, generated : int
        Sequences, tokens that each reads, and tokens that each makes.
    phase : {"decode", "prefill", "both"}
    steps : {"ends", "all"} or sequence of int
        First and last step of decoding, all, or these.
    routing : str or callable, optional
        ``identical``, ``uniform`` or ``empirical:FILE``, drawn as the generator does, or
        step (-1 for the prefill) -> `RoutedTokens`. Not stated: what the system says.
    nodes : sequence of int, optional
    layers : str
        Names such as ``decode5,lm_head``, or ``all``.
    speculative : int
        Tokens that are guessed beside the next one.
    precision : {"fp16", "fp8"}

    Returns
    -------
    int
        Rows of tables.

    Raises
    ------
    ModelError, StrategyError, DataError
        What the generator does not have, a routing that does not fit, a folder that cannot be
        written.
    """
    if phase not in PHASES:
        raise DataError(f"key 'phase': unknown '{phase}'; known: {', '.join(PHASES)}")
    decoded = () if phase == "prefill" else _steps(generated, steps)
    asked = iterations(
        model,
        systems,
        batch,
        prompt,
        ((PREFILL,) if phase != "decode" else ()) + decoded,
        precision=precision,
        speculative=speculative,
        layers=layers,
    )
    routed: Routed | None
    if callable(routing):
        routed = routing
    else:
        routed = _drawn(asked, routing or next(iter(asked.values())).system.routing)
    kept = prompt + (generated if decoded else 0)
    return write_tree(folder, asked, routed, kept=kept, nodes=nodes)


def _steps(count: int, asked: str | Sequence[int]) -> tuple[int, ...]:
    """Return the steps of decoding that are looked at.

    Between the first and the last step all counts but those of experts are linear in the
    context (in whole tokens per node), so that the generator skips them.
    """
    if type(count) is not int or not 1 <= count <= 2**20:
        raise DataError(f"key 'osl': a whole number of 1 to {2**20} steps, not {count}")
    if isinstance(asked, str):
        if asked not in STEPS:
            raise DataError(f"key 'steps': unknown '{asked}'; known: {', '.join(STEPS)}")
        asked = range(count) if asked == "all" else (0, count - 1)
    if max(asked) >= count or min(asked) < 0:
        raise DataError(f"key 'steps': {max(asked)} is not among steps 0 to {count - 1}")
    return tuple(sorted(set(asked)))


def _drawn(asked: Mapping[int, Iteration], words: str) -> Routed | None:
    """Return the routing that words name; None where no layer needs one."""
    first = next(iter(asked.values()))
    if not first.routes:
        return None
    name, _, file = words.partition(":")
    name = ALIKE.get(name, name)
    if name not in MODELS or (name == "empirical") != bool(file):
        raise DataError(
            f"routing: the generator does not draw '{words}'; it has identical, uniform "
            "and empirical:FILE with counts per expert, as its bincounts.json"
        )
    counts = np.array(read_counts(file)) if file else None
    return GeneratorRouting(asked, name, counts)


# Core traces of a tree of nodes, as the generator's second program makes them.

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
