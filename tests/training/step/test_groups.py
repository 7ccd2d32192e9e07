"""Groups of ranks: those of the mapping, written out rank by rank."""

from __future__ import annotations

from perfmodel.strategy.mapping import placement
from perfmodel.training.step.groups import rank_groups
from tests.training.step.cases import CASES


def test_groups_are_those_of_the_mapping(request, grid_of, h100):
    for case in ("experts", "shared experts", "mapped", "ring"):
        name, fields = CASES[case]
        grid = grid_of(request.getfixturevalue(name), **fields)
        groups = rank_groups(grid.row(0))
        named = {"data × context": "data", "expert tensor": "expert_tensor",
                 "expert copies": "expert_data", "pipeline": ""}  # fmt: skip
        for place in placement(grid, h100):
            kind = named.get(place.axis, place.axis)
            if not kind or (kind == "data" and int(grid["context_parallel"][0]) > 1
                            and place.axis == "data"):  # fmt: skip
                continue
            rows = groups.members[kind]
            assert rows.shape[1] == place.members, (case, kind)
            assert rows[0, 1] - rows[0, 0] == place.stride, (case, kind)
            # Every rank is in one group of a kind.
            assert sorted(rows.ravel().tolist()) == list(range(grid.devices))


def test_shard_sets_split_the_data_group(workload_of):
    groups = rank_groups(workload_of("shards").strategy).members
    assert groups["shard"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups["shard_copies"].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
