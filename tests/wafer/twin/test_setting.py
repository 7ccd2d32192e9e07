"""Iterations: shares of the batch, groups, and what the generator asserts away."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.wafer.twin.setting import Iteration
from tests.wafer.twin.examples import CLUSTERS, ITERATIONS, LATENT, LLAMA, system


def test_shares_of_the_batch():
    iteration = ITERATIONS["clusters"]  # 7 sequences, two clusters of four nodes
    assert iteration.starts.tolist() == [0, 4, 7]
    assert iteration.local_batch.tolist() == [4, 4, 4, 4, 3, 3, 3, 3]
    assert iteration.owners.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert iteration.own_batch.tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
    assert iteration.shared_nodes.tolist() == [0, 0, 0, 0, 4, 4, 4]
    assert iteration.expert_nodes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7]


def test_groups():
    iteration = ITERATIONS["clusters"]
    groups = {axis: iteration.group(6, axis) for axis in ("tensor", "sequence", "cluster", "data")}
    assert groups == {
        "tensor": [6, 7],
        "sequence": [4, 6],
        "cluster": [4, 5, 6, 7],
        "data": [2, 6],
    }
    assert iteration.group(6, "experts") == list(range(8))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2}, "key 'pp': 2 stages"),
        ({"data_parallel": 4, "ffn_data_parallel": 2, "expert_parallel": 2}, "key 'dp_ffn': 2"),
        (
            {"data_parallel": 4, "ffn_tensor_parallel": 2, "expert_parallel": 2},
            "keys 'ep' and 'tp_ffn': 2 x 2; the generator asserts that one of them is num_nodes, 4",
        ),
        (
            {
                "data_parallel": 4,
                "ffn_tensor_parallel": 4,
                "expert_parallel": 1,
                "shared_copies": 2,
            },
            "key 'n_redundant_shared_exp': 2; the generator asserts 1",
        ),
    ],
)
def test_what_the_generator_asserts_away(fields, said):
    with pytest.raises(StrategyError, match=said):
        Iteration(LATENT, system(4, **fields), 8, 1, 9)


def test_more_nodes_than_experts():
    with pytest.raises(StrategyError, match="key 'ep': 16 exceeds the 12 experts"):
        Iteration(LATENT, system(16, data_parallel=16), 8, 1, 9)
    assert Iteration(LLAMA, system(16, data_parallel=16), 8, 1, 9).batch == 8


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((0, 1, 9), "key 'batch': a whole number of 1 to"),
        ((8, -1, 9), "key 'length': a whole number of 1 to"),
        ((8, 1, -9), "key 'context': a whole number of 0 to"),
        ((8, 1, float("nan")), "key 'context'"),
        ((2**20, 2**20, 9), "1048576 x 1048576 tokens exceed"),
        ((2, 2**30), "more multiply-accumulates than 63 bits count"),
        ((8, 1, 9, "bf16"), "key 'precision': unknown 'bf16'; did you mean fp16"),
    ],
)
def test_wrong_sizes(sizes, said):
    with pytest.raises(DataError, match=said):
        Iteration(LATENT, CLUSTERS, *sizes)
