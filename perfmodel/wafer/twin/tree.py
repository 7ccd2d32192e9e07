"""The generator's tree of files: ``nodes/``, ``graph/`` and ``footprint.json``."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from perfmodel.base.errors import DataError
from perfmodel.base.files import TEMPORARIES, user_path
from perfmodel.wafer.formats.node_graph import HEADER as GRAPH_HEADER
from perfmodel.wafer.formats.node_graph import node_graph_rows
from perfmodel.wafer.formats.node_table import HEADER as TABLE_HEADER
from perfmodel.wafer.formats.node_table import node_table_rows
from perfmodel.wafer.twin.node_rows import footprints, iteration_rows
from perfmodel.wafer.twin.nodes import PREFILL, Routed, chosen_nodes
from perfmodel.wafer.twin.rows import Rows
from perfmodel.wafer.twin.setting import Iteration

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
        By step, as of `perfmodel.wafer.twin.nodes.iterations`.
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
