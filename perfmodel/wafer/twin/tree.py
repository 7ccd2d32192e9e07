"""Rows of all nodes and layers, and the tree of files that the generator writes of them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError
from perfmodel.base.files import TEMPORARIES, user_path
from perfmodel.wafer.cores.routing import RoutedTokens
from perfmodel.wafer.cores.setting import ceiling
from perfmodel.wafer.generator_files import (
    GRAPH_HEADER,
    TABLE_HEADER,
    node_graph_rows,
    node_table_rows,
)
from perfmodel.wafer.twin.experts import expert_rows, whole_expert_rows
from perfmodel.wafer.twin.routes import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor, attention_rows
from perfmodel.wafer.twin.setting import (
    LM_HEAD,
    PREFILL,
    Iteration,
    Routed,
    chosen_nodes,
    experts_of,
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
        if iteration.model.has_experts(layer):
            routes = Routes(iteration, experts_of(iteration, routed, layer))
        for node in chosen:
            rows = Rows(node, iteration.element)
            read[node] = _layer(rows, iteration, layer, routes, read[node])
            yield rows


def _queries(rows: Rows, iteration: Iteration) -> Tensor:
    """Slice the node's share of the batch."""
    whole = Tensor("queries", (iteration.batch, iteration.length, iteration.model.hidden))
    first = int(iteration.starts[rows.node // iteration.system.cluster_nodes])
    return rows.slice(whole, first, first + int(iteration.local_batch[rows.node]))


def _layer(
    rows: Rows, iteration: Iteration, layer: str, routes: Routes | None, x: Tensor
) -> Tensor:
    model, cluster = iteration.model, iteration.group(rows.node, "cluster")
    if layer == LM_HEAD:
        made = rows.linear(f"{layer}_head", x, ceiling(model.vocabulary, len(cluster)))
        return rows.all_reduce(f"{layer}_ar", made, cluster) if len(cluster) > 1 else made
    x = attention_rows(rows, iteration, layer, x)
    if routes is None:
        name = f"{layer}_dense" if model.latent else f"{layer}_ffn"
        width = ceiling(model.intermediate, len(cluster))
        return rows.feed_forward(name, x, width, cluster)
    add = expert_rows if iteration.exchanges else whole_expert_rows
    return add(rows, routes, f"{layer}_moe", x)


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
    model, system = iteration.model, iteration.system
    longest = Iteration(model, system, iteration.batch, 1, context, iteration.precision)
    attention = [_attention_weights(longest, node) for node in range(system.nodes)]
    total = np.zeros(system.nodes, np.int64)
    experts = np.bincount(iteration.expert_nodes, minlength=system.expert_parallel)
    shared = np.zeros(system.nodes, np.int64)
    stride = system.nodes // system.shared_copies if system.expert_parallel > 1 else 1
    shared[::stride][: system.shared_copies if system.expert_parallel > 1 else None] = 1
    parts = system.ffn_tensor_parallel
    for layer in iteration.layers:
        if layer == LM_HEAD:
            continue
        total += attention
        if not model.has_experts(layer):
            width = ceiling(model.intermediate, iteration.parallel)
            total += 3 * model.hidden * width * iteration.element
            continue
        width = ceiling(model.expert_intermediate, parts)
        wide = ceiling(model.shared_intermediate, parts)
        held = experts if experts.size > 1 else experts[0]
        elements = model.experts + 3 * (held * width + shared * wide)
        total += model.hidden * elements * iteration.element
    return total


def _attention_weights(iteration: Iteration, node: int) -> int:
    """Return a node's bytes of weights and cache of an attention [B]."""
    rows = Rows(node, iteration.element)
    batch = int(iteration.local_batch[node])
    attention_rows(rows, iteration, "", Tensor("", (batch, 1, iteration.model.hidden)))
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
            needed = any(map(iteration.model.has_experts, iteration.layers))
            tokens = routed(step) if routed and needed else None
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
