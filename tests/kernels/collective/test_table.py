"""Where the members of a group lie: in nodes, domains and parts of a mesh."""

from __future__ import annotations

import pytest

from perfmodel.kernels.collective import table as column
from perfmodel.kernels.collective.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.collective.times import collective_time
from tests.kernels.collective.networks import level, network_of, nodes_of_eight


def test_partial_groups_of_a_mesh_use_their_own_links():
    mesh = network_of(level(8, 70e9, column.FULLY_CONNECTED, latency=0.0))
    whole = collective_time(ALL_GATHER, 8e9, 8, 1, mesh) * 8 / 7
    for members in (2, 3, 4):
        part = collective_time(ALL_GATHER, 8e9, members, 1, mesh) * members / (members - 1)
        assert part == pytest.approx(whole * 7 / (members - 1))
    mesh.levels[0].irregular_links = 0.8
    cliff = collective_time(ALL_GATHER, 8e9, 6, 1, mesh) * 6 / 5
    assert cliff == pytest.approx(whole * 7 / 0.8)


@pytest.mark.parametrize(
    ("members", "stride", "expected"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 64, 1), (4, 2, 4)]
)
def test_members_inside_a_node(members, stride, expected):
    assert column.members_inside(members, stride, 8.0) == expected


def test_the_least_filled_node_has_the_fewest_ports():
    # 12 ranks on nodes of eight lie as 8 + 4
    even = collective_time(ALL_GATHER, 1e9, 16, 1, nodes_of_eight())
    uneven = collective_time(ALL_GATHER, 1e9, 12, 1, nodes_of_eight())
    assert uneven > 1.9 * even * (11 / 12) / (15 / 16)


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER])
def test_a_whole_mesh_exchanges_small_messages_directly(kind):
    mesh = network_of(level(8, 500e9, column.FULLY_CONNECTED))
    passes = 2 if kind == ALL_REDUCE else 1
    assert collective_time(kind, 8.0, 8, 1, mesh) == pytest.approx(passes * 1e-6, rel=1e-3)
    assert collective_time(kind, 8.0, 4, 1, mesh) == pytest.approx(3 * passes * 1e-6, rel=1e-3)
