"""Systems of nodes of cores: what goes together."""

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.system import WaferSystem

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
