"""Shares of nodes, counted by hand."""

from __future__ import annotations

from perfmodel.wafer.ranks import (
    bucket_sizes,
    bucket_starts,
    expert_ranks,
    node_ranks,
    shared_nodes,
    shared_servers,
    token_owners,
)
from perfmodel.wafer.system import WaferSystem

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
