"""Flows and work of instructions, and where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import ADD, COPY, GEMM, READ, WRITE, build, multicasts
from perfmodel.wafer.system import WaferSystem, core_places, mesh_sides
from perfmodel.wafer.traffic import between_nodes, link_loads, traffic_of

SYSTEM = WaferSystem(
    nodes=2, node_grid=(1, 2), core_grid=(2, 2), tensor_parallel=2, expert_parallel=2
)


def test_places_count_rows_of_the_whole_wafer() -> None:
    assert mesh_sides(SYSTEM) == (2, 4)
    assert core_places(SYSTEM).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_flows_and_work() -> None:
    one = np.array([1])
    parts = [
        build(READ, one, (4, 100)),
        build(READ, one, (4, 20)),
        build(WRITE, one, (1, 8)),
        build(GEMM, one, (2, 3, 4)),
        build(ADD, one, (5, 2)),
        build(COPY, one, (0, 7, 30)),
        multicasts(np.array([0]), np.array([16]), np.array([4, 6]), np.array([2])),
    ]
    found = traffic_of(parts, 8)
    flows = sorted(zip(found.sources, found.targets, found.sizes, found.trees, strict=True))
    assert flows == [(0, 4, 16, 0), (0, 6, 16, 0), (0, 7, 30, -1), (4, 1, 120, -1)]
    assert (found.macs[1], found.additions[1], found.local[1]) == (24, 10, 8)
    loads = link_loads(found, SYSTEM)
    # Core 4 stands in the third column of the first row, core 1 beside it in the second.
    assert loads.loads[1, 2] == 120
    # The multicast and the copy share the links of the first row; the multicast counts once.
    assert loads.loads[0, :2].tolist() == [46, 46]
    assert loads.busiest == 120
    table = between_nodes(found, SYSTEM)
    assert table.tolist() == [[8, 62], [120, 0]]


def test_a_core_that_is_not_there() -> None:
    with pytest.raises(DataError, match="bank 8 is none of the wafer's 0 to 7"):
        traffic_of([build(READ, np.array([1]), (8, 1))], 8)
