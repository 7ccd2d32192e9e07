"""Where STAGE puts the parts of a model: pipeline stages, ranks and communicator groups.

Source: astra-sim/symbolic_tensor_graph, branch ``recomp``, `main.py` and
`symbolic_tensor_graph/graph/graph_distributer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.workloads.twins.stage.arguments import StageArguments


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor that crosses pipeline stages, from one place of the model to the next or previous.

    Places are 0: input embedding, 1 to layers: layers, layers + 1: output embedding.
    """

    producer: int
    consumer: int


def stage_order(arguments: StageArguments) -> list[int]:
    """Return pipeline stages in the order of their ranks: as places first name them."""
    last = arguments.layers + 1
    places = [0, last, *range(1, last)]
    return list(dict.fromkeys(place % arguments.pipeline_parallel for place in places))


def stage_places(arguments: StageArguments, stage: int) -> list[int]:
    """Return the places of the model on a stage: layers go round the stages, one by one."""
    last = arguments.layers + 1
    return [place for place in (0, last, *range(1, last)) if stage_of(arguments, place) == stage]


def stage_links(arguments: StageArguments, stages: Sequence[int]) -> list[Link]:
    """Return the tensors that cross stages, in the order of the generator's messages."""
    if arguments.pipeline_parallel == 1:
        return []
    links = []
    for stage in stages:
        for place in stage_places(arguments, stage):
            if place > 0:
                links.append(Link(place - 1, place))
            if place <= arguments.layers:
                links.append(Link(place + 1, place))
    return links


def communicator_groups(arguments: StageArguments) -> dict[str, tuple[int, ...]]:
    """Return the ranks of every group, also of groups with one rank.

    Numbers count on over data-, tensor- and sequence-parallel groups, for each with the
    pipeline stage first (graph_distributer.py, `_create_comm_groups`).
    """
    ranks = _rank_grid(arguments)
    groups = [
        np.moveaxis(ranks, 1 + axis, -1).reshape(-1, ranks.shape[1 + axis]) for axis in range(3)
    ]
    rows = (tuple(row) for group in groups for row in group.tolist())
    return {str(number): row for number, row in enumerate(rows, 1)}


def _rank_grid(arguments: StageArguments) -> Integers:
    """Return the rank at every (stage, dp, tp, sp)."""
    order = stage_order(arguments)
    dp, tp, sp = arguments.degrees.values()
    inside = np.arange(arguments.ranks_per_stage).reshape(sp, tp, dp).transpose(2, 1, 0)
    stages = np.argsort(order)[:, None, None, None]
    return stages * arguments.ranks_per_stage + inside


def group_names(arguments: StageArguments, index: int) -> list[tuple[str, ...]]:
    """Return the names of the groups of every rank of a stage, for degrees above 1."""
    ranks = _rank_grid(arguments)
    names = np.empty((3, arguments.devices), np.int64)
    first = 1
    for axis in range(3):
        rows = np.moveaxis(ranks, 1 + axis, -1).reshape(-1, ranks.shape[1 + axis])
        names[axis, rows] = np.arange(first, first + len(rows))[:, None]
        first += len(rows)
    used = [axis for axis, ways in enumerate(arguments.degrees.values()) if ways > 1]
    start = index * arguments.ranks_per_stage
    chosen = names[used, start : start + arguments.ranks_per_stage].T
    return [tuple(map(str, row)) for row in chosen.tolist()]


def stage_of(arguments: StageArguments, place: int) -> int:
    """Return the pipeline stage of a place."""
    return place % arguments.pipeline_parallel
