"""Which ranks of a strategy communicate with each other, by the order of the axes (`mapping`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.strategy_fields import MAPPING_AXES
from perfmodel.strategy.mapping import axis_strides


@dataclass(frozen=True, slots=True)
class RankGroups:
    """Groups of every kind, and where each rank stands.

    Attributes
    ----------
    members : mapping of str to int64[groups, members]
        Integers of each group, ascending, by kind: "tensor", "context", "expert",
        "expert_tensor", "data", "expert_data", "shard", "shard_copies", "expert_shard",
        "expert_shard_copies", "table", "mirror".
    number : mapping of str to int64[ranks]
        Which group of a kind a rank belongs to; -1: none.
    stage : int64[ranks]
        Pipeline stage of each rank.
    pipeline_stride : int
        Distance between ranks of neighbouring stages.
    """

    members: Mapping[str, Integers]
    number: Mapping[str, Integers]
    stage: Integers
    pipeline_stride: int


def rank_groups(strategy: Mapping[str, Any]) -> RankGroups:
    """Return the groups of all ranks.

    Parameters
    ----------
    strategy : mapping of str to int, bool or str
        A possible one (`StrategyGrid.row`).

    Returns
    -------
    RankGroups

    Notes
    -----
    Data × context ranks share dense parameters. The ranks of a stage, ascending, hold the
    experts: first those that share an expert, then the expert-parallel ranks, then the
    copies. Shard sets are consecutive members of either (`docs/strategies.md`).
    """
    degrees = {axis: int(strategy[f"{axis}_parallel"]) for axis in MAPPING_AXES}
    strides = axis_strides(str(strategy["mapping"]), degrees)
    devices = int(np.prod(list(degrees.values())))
    ranks = np.arange(devices)
    place = {axis: ranks // strides[axis] % degrees[axis] for axis in MAPPING_AXES}
    pipeline = degrees["pipeline"]
    stage_ranks = np.stack([ranks[place["pipeline"] == s] for s in range(pipeline)])
    inner = int(strategy["expert_tensor_parallel"])
    degree = int(strategy["expert_parallel"])
    shard = int(strategy["shard_group"])
    spread = inner * degree
    width = stage_ranks.shape[1]
    # stage × copies × expert-parallel × expert-tensor
    experts = stage_ranks.reshape(pipeline, width // spread, degree, inner)

    members: dict[str, Integers] = {
        "tensor": _same(ranks, place, "tensor"),
        "context": _same(ranks, place, "context"),
        "data": _same(ranks, place, "data", "context"),
        "expert_tensor": experts.reshape(-1, inner),
        "expert": experts.transpose(0, 1, 3, 2).reshape(-1, degree),
        "expert_data": experts.transpose(0, 2, 3, 1).reshape(-1, width // spread),
    }
    if shard:
        members |= _shard_sets(members["data"], shard, "")
        held = max(1, shard * degrees["tensor"] // spread)
        members |= _shard_sets(members["expert_data"], held, "expert_")
    if pipeline > 1:
        members["table"] = np.stack([stage_ranks[0], stage_ranks[-1]], axis=1)
        near, far = stage_ranks[: pipeline // 2], stage_ranks[::-1][: pipeline // 2]
        members["mirror"] = np.stack([near.reshape(-1), far.reshape(-1)], axis=1)
    number = {}
    for kind, rows in members.items():
        number[kind] = np.full(devices, -1, np.int64)
        number[kind][rows] = np.arange(len(rows))[:, None]
    return RankGroups(members, number, place["pipeline"], strides["pipeline"])


def _same(ranks: Integers, place: Mapping[str, Integers], *axes: str) -> Integers:
    """Return the groups of ranks that differ in the given axes only, by their first member."""
    others = [place[axis] for axis in MAPPING_AXES if axis not in axes]
    order = np.lexsort((ranks, *others))
    count = int(np.prod([place[axis].max() + 1 for axis in axes]))
    rows = ranks[order].reshape(-1, count)
    return rows[np.argsort(rows[:, 0])]


def _shard_sets(rows: Integers, members: int, prefix: str) -> dict[str, Integers]:
    """Split groups into sets of consecutive members, and join those at the same place."""
    sets = rows.reshape(len(rows), -1, members)
    return {
        f"{prefix}shard": sets.reshape(-1, members),
        f"{prefix}shard_copies": sets.transpose(0, 2, 1).reshape(-1, sets.shape[1]),
    }
