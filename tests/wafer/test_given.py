"""Systems from stated degrees."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.given import given_system


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
