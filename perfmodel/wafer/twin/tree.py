"""Rows of all nodes and layers, and the tree of files that the generator writes of them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.base.files import TEMPORARIES, user_path
from perfmodel.wafer.generator_files import (
    GRAPH_HEADER,
    TABLE_HEADER,
    node_graph_rows,
    node_table_rows,
)
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.setting import ceiling
from perfmodel.wafer.system import bucket_sizes, shared_nodes
from perfmodel.wafer.twin.experts import LayerRows
from perfmodel.wafer.twin.routing import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from perfmodel.wafer.twin.setting import (
    LM_HEAD,
    PREFILL,
    Iteration,
    Routed,
    chosen_nodes,
    experts_of,
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
