"""Grids of collectives: their conventions and the strides of their groups."""

from __future__ import annotations

from perfmodel.base.collectives import bus_factor
from perfmodel.compute.collectives import COLLECTIVES


def test_bus_factors_are_those_of_nccl_tests() -> None:
    factors = {name: bus_factor(name, 8)[0] for name in COLLECTIVES}
    assert factors == {
        "all_reduce": 14 / 8,
        "all_gather": 7 / 8,
        "reduce_scatter": 7 / 8,
        "all_to_all": 7 / 8,
        "broadcast": 1.0,
        "point_to_point": 1.0,
        "multicast": 1.0,
        "gather": 7 / 8,
        "scatter": 7 / 8,
    }
