"""Runs of the generator: the tree of nodes of its first program, core traces of its second.

The first writes rows of all nodes and layers: ``nodes/``, ``graph/`` and ``footprint.json``. The
second reads ``nodes/decode/node_<node>/<step>.csv`` and ``graph/node_<node>/<step>.csv`` of all
nodes and writes ``traces/decode/node_<node>/<step>/core_<core>.csv`` beside them.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/generate_traces.py``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import TEMPORARIES, shortened, user_path
from perfmodel.base.routing import read_counts
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.core_trace import write_core_traces
from perfmodel.wafer.generator_files import (
    GRAPH_HEADER,
    TABLE_HEADER,
    GraphNode,
    NodeOperation,
    Tiling,
    node_graph_rows,
    node_table_rows,
    read_node_graph,
    read_node_table,
)
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.setting import ceiling
from perfmodel.wafer.system import WaferSystem, bucket_sizes, shared_nodes
from perfmodel.wafer.twin.core_lines import DEFAULT_TILING
from perfmodel.wafer.twin.cores import PASSED_OVER, CoreMapping
from perfmodel.wafer.twin.experts import LayerRows
from perfmodel.wafer.twin.routing import MODELS, GeneratorRouting, Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from perfmodel.wafer.twin.setting import (
    LM_HEAD,
    PREFILL,
    Iteration,
    Routed,
    chosen_nodes,
    experts_of,
    iterations,
    layer_number,
)


def iteration_rows(
    iteration: Iteration, routed: RoutedTokens | None, nodes: Sequence[int] | None = None
) -> Iterator[Rows]:
    """Yield the rows of one layer on one node after another.

    What routing makes of a layer is worked out once for all nodes, so that layers come first:
    all nodes' slices of the batch, then all nodes' first layer, and so on.

    Parameters
    ----------
    iteration : Iteration
    routed : RoutedTokens or None
        Needed where a layer has experts.
    nodes : sequence of int, optional
        All of them where not stated.

    Raises
    ------
    DataError
        A routing that does not fit, a node that there is not, too many tokens.
    """
    chosen = [int(node) for node in chosen_nodes(iteration.system, nodes)]
    read = {}
    for node in chosen:
        rows = Rows(node, iteration.element)
        read[node] = _queries(rows, iteration)
        yield rows
    for layer in iteration.layers:
        routes = None
        if iteration.has_experts(layer):
            routes = Routes(iteration, experts_of(iteration, routed, layer))
        for node in chosen:
            rows = Rows(node, iteration.element)
            walk = LayerRows(iteration, rows, routes)
            if layer == LM_HEAD:
                walk.head(read[node])
            else:
                read[node] = walk.block(layer, layer_number(layer), read[node])
            yield rows


def _queries(rows: Rows, iteration: Iteration) -> Tensor:
    """Slice the node's share of the batch."""
    whole = Tensor("queries", (iteration.batch, iteration.length, iteration.model.hidden_size))
    first = int(iteration.starts[rows.node // iteration.system.cluster_nodes])
    return rows.slice(whole, first, first + int(iteration.local_batch[rows.node]))


def footprints(iteration: Iteration, context: int) -> Integers:
    """Return bytes of weights and cache per node, as of ``footprint.json``.

    Parameters
    ----------
    iteration : Iteration
        Its layers count, the LM head and the embedding do not; experts whether used or not,
        a latent attention as the absorbed one.
    context : int
        Tokens of a sequence that are kept.

    Returns
    -------
    array of int, shape (nodes,)
        [B]
    """
    model, system, element = iteration.model, iteration.system, iteration.element
    attention = np.array([_attention(iteration, node, context) for node in range(system.nodes)])
    total = np.zeros(system.nodes, np.int64)
    parts, shared = system.ffn_tensor_parallel, np.zeros(system.nodes, np.int64)
    shared[shared_nodes(system) if system.expert_parallel > 1 else slice(None)] = 1
    for layer in iteration.layers:
        if layer == LM_HEAD:
            continue
        total += attention
        spec = model.layers[layer_number(layer)].mlp
        if not spec.experts:
            width = ceiling(spec.intermediate_size, system.cluster_nodes)
            total += 3 * model.hidden_size * width * element
            continue
        held = bucket_sizes(spec.experts, system.expert_parallel)[iteration.ranks.expert]
        routed = held * ceiling(spec.expert_intermediate_size, parts)
        served = shared * ceiling(spec.shared_intermediate_size, parts)
        total += model.hidden_size * (spec.experts + 3 * (routed + served)) * element
    return total


def _attention(iteration: Iteration, node: int, context: int) -> int:
    """Return a node's bytes of weights and cache of an attention [B]."""
    one = replace(iteration, phase="decode", input_length=1, step=0, speculative=0)
    rows = Rows(node, iteration.element)
    x = Tensor("", (int(iteration.local_batch[node]), 1, one.model.hidden_size))
    LayerRows(one, rows, None, context).attention("", one.model.layers[0].attention, x)
    return sum(row.footprint for row in rows.table)


# The generator's tree of files: ``nodes/``, ``graph/`` and ``footprint.json``.

OPEN_NODES = 128
"""Nodes whose two files are open at once."""
_OURS = re.compile(
    r"(?:(?:prefill|decode)/)?node_\d+(?:/(?:prefill|decode\d+)\.csv)?|prefill|decode"
)


def write_tree(
    folder: str | Path,
    iterations: Mapping[int, Iteration],
    routed: Routed | None = None,
    *,
    kept: int,
    nodes: Sequence[int] | None = None,
) -> int:
    """Write what the generator writes of iterations.

    Trees of an earlier run are replaced, as the generator does; other files are not. Nothing is
    replaced before all is written.

    Parameters
    ----------
    folder : str or path
        Made where it does not exist.
    iterations : mapping of int to Iteration
        By step, as of `perfmodel.wafer.twin.setting.iterations`.
    routed : callable, optional
        Step -> `RoutedTokens`, asked once for each step, in their order.
    kept : int
        Tokens of a sequence in ``footprint.json``: prompt and all steps.
    nodes : sequence of int, optional
        All of them where not stated.

    Returns
    -------
    int
        Rows of tables.

    Raises
    ------
    DataError
        The folder cannot be written or holds other files under these names; a routing or a
        node that does not fit.
    """
    target = user_path(folder)
    for iteration in iterations.values():
        chosen_nodes(iteration.system, nodes)
    for name in ("nodes", "graph"):
        _check_ours(target / name)
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".wse-", dir=target))
    except OSError as error:
        raise DataError(f"cannot write '{target}': {error.strerror or error}") from None
    TEMPORARIES.add(building)
    try:
        count = 0
        for step, iteration in iterations.items():
            tokens = routed(step) if routed and iteration.routes else None
            chosen = [int(node) for node in chosen_nodes(iteration.system, nodes)]
            for at in range(0, len(chosen), OPEN_NODES):
                some = chosen[at : at + OPEN_NODES]
                count += _write_nodes(building, step, some, iteration_rows(iteration, tokens, some))
        last = iterations[max(iterations)]
        held = footprints(last, kept)[chosen_nodes(last.system, nodes)].tolist()
        (building / "footprint.json").write_text(json.dumps(held), encoding="utf-8")
        for name in ("nodes", "graph"):
            shutil.rmtree(target / name, ignore_errors=True)
            (building / name).rename(target / name)
        (building / "footprint.json").replace(target / "footprint.json")
    except OSError as error:
        raise DataError(f"cannot write '{target}': {error.strerror or error}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
        TEMPORARIES.discard(building)
        if made and not any(target.iterdir()):
            target.rmdir()
    return count


def _write_nodes(folder: Path, step: int, nodes: Sequence[int], parts: Iterable[Rows]) -> int:
    """Write the files of some nodes side by side, as layers come; return rows."""
    phase = "prefill" if step == PREFILL else "decode"
    name = "prefill.csv" if step == PREFILL else f"decode{step}.csv"
    count = 0
    with ExitStack() as stack:
        files: dict[int, tuple[TextIO, TextIO]] = {}
        for node in nodes:
            both = []
            for path, header in (
                (folder / "nodes" / phase / f"node_{node}" / name, TABLE_HEADER),
                (folder / "graph" / f"node_{node}" / name, GRAPH_HEADER),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
                file.write(header + "\r\n")
                both.append(file)
            files[node] = (both[0], both[1])
        for rows in parts:
            table, graph = files[rows.node]
            table.writelines(node_table_rows(rows.table))
            graph.writelines(node_graph_rows(rows.graph))
            count += len(rows.table)
    return count


def _check_ours(folder: Path) -> None:
    """Raise where a folder holds what no earlier run has written."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DataError(f"'{folder}' is no folder; the tree would stand there")
    for path in folder.rglob("*"):
        if not _OURS.fullmatch(path.relative_to(folder).as_posix()):
            raise DataError(
                f"'{folder}' holds '{path.relative_to(folder)}', which is none of the "
                "generator's files; name another folder"
            )


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
