"""Places of groups of nodes: against all permutations, and in numbers counted by hand."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.model.presets import load_model
from perfmodel.wafer.placement import (
    AxisCost,
    GroupBytes,
    _cells,
    layer_bytes,
    place_groups,
    placement_cost,
)
from perfmodel.wafer.system import WaferSystem

SENT = GroupBytes(tensor=2e6, sequence=5e6, data=1e5, pipeline=3e5, experts=4e6)


def wafer(
    grid: tuple[int, int], tensor: int = 1, sequence: int = 1, stages: int = 1
) -> WaferSystem:
    nodes = prod(grid)
    return WaferSystem(
        nodes=nodes,
        node_grid=grid,
        tensor_parallel=tensor,
        sequence_parallel=sequence,
        data_parallel=nodes // (tensor * sequence * stages),
        pipeline_parallel=stages,
        expert_parallel=nodes // stages,
    )


def cost_of(system: WaferSystem, places: np.ndarray, sent: GroupBytes = SENT) -> AxisCost:
    degrees = (
        system.tensor_parallel,
        system.sequence_parallel,
        system.data_parallel,
        system.pipeline_parallel,
    )
    volumes = (sent.tensor, sent.sequence, sent.data, sent.pipeline)
    return placement_cost(places, system.node_grid, degrees, volumes, sent.experts)


@pytest.mark.parametrize(
    "system",
    [
        wafer((2, 2), tensor=2),
        wafer((1, 4), tensor=2, sequence=2),
        wafer((2, 3), 3, 1, 2),
        wafer((1, 4), stages=4),
    ],
)
def test_small_wafers_have_the_best_of_all_permutations(system: WaferSystem) -> None:
    found = place_groups(system, SENT)
    best = min(
        cost_of(system, np.array(order)) for order in itertools.permutations(range(system.nodes))
    )
    assert found.cost.busiest == pytest.approx(best.busiest, rel=1e-12)


@pytest.mark.parametrize(
    "system",
    [
        wafer((7, 8), tensor=4, sequence=2),
        wafer((8, 8), tensor=8, stages=4),
        wafer((6, 4), tensor=3, sequence=2, stages=2),
        wafer((5, 9), tensor=9),
    ],
)
def test_places_cost_what_the_search_says(system: WaferSystem) -> None:
    found = place_groups(system, SENT)
    assert sorted(found.places) == list(range(system.nodes))
    assert cost_of(system, found.places) == pytest.approx(found.cost, rel=1e-12)
    assert cost_of(system, np.arange(system.nodes)) == found.given
    assert found.cost <= found.given


def test_rings_by_hand() -> None:
    """Four nodes sum 8 B: six steps of 2 B; on a line some link carries two ways' worth."""
    sent = GroupBytes(tensor=8.0)
    square = place_groups(wafer((2, 2), tensor=4), sent)
    assert square.cost == (12.0, 48.0)
    assert square.given == (12.0, 72.0)  # 0 1 2 3: two of four go around a corner
    line = place_groups(wafer((1, 4), tensor=4), sent)
    assert line.cost == (12.0, 72.0)


@pytest.mark.parametrize("sides", [(1, 5), (4, 1), (2, 2), (4, 3), (3, 4), (3, 3), (6, 5)])
def test_rings_visit_every_cell_and_their_neighbours(sides: tuple[int, int]) -> None:
    cells = _cells(*sides)
    assert sorted(cells) == list(itertools.product(range(sides[0]), range(sides[1])))
    ways = [
        abs(one[0] - other[0]) + abs(one[1] - other[1])
        for one, other in zip(cells, (*cells[1:], cells[0]), strict=True)
    ]
    if min(sides) > 1 and prod(sides) % 2 == 0:
        assert set(ways) == {1}
    elif min(sides) == 1:
        assert max(ways) <= 2


def test_stages_follow_one_another_and_silent_groups_keep_their_order() -> None:
    sent = GroupBytes(tensor=1.0, pipeline=1.0)
    found = place_groups(wafer((4, 4), tensor=4, stages=2), sent)
    assert found.cost == cost_of(wafer((4, 4), tensor=4, stages=2), found.places, sent)
    line = place_groups(wafer((1, 5), stages=5), sent)
    assert line.places.tolist() == [0, 1, 2, 3, 4]


def test_nothing_sent_leaves_nodes_where_they_are() -> None:
    found = place_groups(wafer((2, 3), tensor=3), GroupBytes())
    assert found.places.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.blocks["tensor"] == (1, 3)


def test_what_is_refused() -> None:
    with pytest.raises(StrategyError, match="'tensor'"):
        GroupBytes(tensor=float("nan"))
    with pytest.raises(StrategyError, match="'nodes': 4096 exceed 2048"):
        place_groups(wafer((64, 64)), SENT)


EXAMPLE = WaferSystem(
    nodes=56,
    node_grid=(7, 8),
    data_parallel=7,
    tensor_parallel=4,
    sequence_parallel=2,
    expert_parallel=56,
)


def test_sums_are_those_of_the_generators_example() -> None:
    """Reference table, d18: all-reduces of 2,107,392 and 4,816,896 B a node in a layer."""
    sent = layer_bytes(load_model("deepseek-v3"), EXAMPLE, batch=1024)
    assert sent.tensor == sent.pipeline == 2_107_392
    assert sent.sequence == 4_816_896
    # 18.4 tokens of a node to some 7.4 of 55 others and 7.9 rows back, against the example's
    # 2.05 MB and 5.68 MB of node 0 with experts of uneven loads and shared ones.
    assert sent.experts == pytest.approx(147 / 8 * 7168 * 2 * (7.4 + 7.86), rel=0.01)


def test_dense_models_exchange_nothing_and_prompts_sum_values() -> None:
    sent = layer_bytes(load_model("llama-3-70b"), EXAMPLE, batch=7, length=10)
    assert sent.experts == 0.0
    assert sent.sequence == 10 * 16 * 128 * 2
    latent = layer_bytes(load_model("deepseek-v3"), EXAMPLE, batch=7, length=10)
    assert latent.sequence == 10 * 32 * 128 * 2


def test_what_is_refused_volumes() -> None:
    for asked in ({"batch": 0}, {"batch": 1, "length": 2**50}):
        with pytest.raises(StrategyError, match="a whole number from 1"):
            layer_bytes(load_model("llama-3-8b"), EXAMPLE, **asked)
