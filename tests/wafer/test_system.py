"""Systems of nodes of cores: what goes together."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.system import (
    WaferSystem,
    bucket_sizes,
    bucket_starts,
    expert_ranks,
    given_system,
    node_ranks,
    shared_nodes,
    shared_servers,
    token_owners,
)

GOOD = {
    "nodes": 8,
    "node_grid": (2, 4),
    "core_grid": (3, 5),
    "data_parallel": 2,
    "tensor_parallel": 2,
    "sequence_parallel": 1,
    "pipeline_parallel": 2,
    "expert_parallel": 2,
    "ffn_tensor_parallel": 2,
}


def test_sizes_that_follow():
    system = WaferSystem(**GOOD)
    assert (system.stage_nodes, system.cluster_nodes, system.cores) == (4, 2, 15)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("nodes", 0, "key 'nodes'"),
        ("nodes", True, "key 'nodes'"),
        ("nodes", 2**30, "key 'nodes'"),
        ("node_grid", (2, 2), "key 'node_grid'"),
        ("core_grid", (2, 2, 2), "key 'core_grid'"),
        ("core_grid", (2, -2), "key 'core_grid'"),
        ("data_parallel", 3, "data_parallel 3"),
        ("expert_parallel", 4, "expert_parallel 4"),
        ("shared_copies", 5, "key 'shared_copies'"),
        ("expert_exchange", "alltoal", "alltoall"),
        ("tensor_parallel", 1.5, "key 'tensor_parallel'"),
    ],
)
def test_what_does_not_go_together_is_named(key, value, word):
    with pytest.raises(StrategyError, match=word):
        WaferSystem(**{**GOOD, key: value})


def test_the_rest_follows():
    system = given_system(data_parallel=7, tensor_parallel=4, sequence_parallel=2)
    assert (system.nodes, system.node_grid, system.expert_parallel) == (56, (7, 8), 56)
    assert system.core_grid == (6, 6)
    system = given_system(data_parallel=4, pipeline_parallel=3, ffn_tensor_parallel=2)
    assert (system.nodes, system.expert_parallel) == (12, 2)
    assert given_system(tensor_parallel=13).node_grid == (1, 13)


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"tensor_parallel": 4, "ffn_tensor_parallel": 3}, "3 x 1 nodes do not divide a stage's 4"),
        ({"tensor_parallel": 4, "expert_parallel": 2}, "is 2, not the 4 of 'nodes'"),
        ({"tensor_parallel": 4, "node_grid": (3, 2)}, "3 x 2 nodes are not the 4"),
        ({"tensor_parallel": 2**23, "data_parallel": 4}, "33554432 nodes exceed"),
    ],
)
def test_contradictions(degrees, said):
    with pytest.raises(StrategyError, match=said):
        given_system(**degrees)


SYSTEM = WaferSystem(
    nodes=8,
    node_grid=(2, 4),
    data_parallel=2,
    tensor_parallel=2,
    pipeline_parallel=2,
    ffn_tensor_parallel=2,
    expert_parallel=2,
    shared_copies=2,
)


def test_the_first_buckets_get_one_more() -> None:
    assert bucket_sizes(7, 3).tolist() == [3, 2, 2]
    assert bucket_starts(7, 3).tolist() == [0, 3, 5, 7]
    assert bucket_sizes(1, 3).tolist() == [1, 0, 0]


def test_ranks_count_fastest_to_slowest() -> None:
    ranks = node_ranks(SYSTEM)
    assert ranks.tensor.tolist() == ranks.ffn_tensor.tolist() == [0, 1] * 4
    assert ranks.data.tolist() == ranks.expert.tolist() == [0, 0, 1, 1] * 2
    assert ranks.pipeline.tolist() == [0] * 4 + [1] * 4


def test_tokens_experts_and_copies_within_a_stage() -> None:
    assert token_owners(SYSTEM, 5).tolist() == [0, 0, 1, 2, 3]
    assert expert_ranks(SYSTEM, 5).tolist() == [0, 0, 0, 1, 1]
    assert shared_nodes(SYSTEM).tolist() == [0, 2]
    assert shared_servers(SYSTEM, 5).tolist() == [0, 0, 0, 2, 2]
