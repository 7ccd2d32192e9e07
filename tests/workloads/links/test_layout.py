"""Where the vertices of a network stand in a drawing."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.workloads.links.layout import vertex_positions
from tests.workloads.links.drawn import DRAWN


@pytest.mark.parametrize("name", DRAWN)
def test_no_two_vertices_stand_in_one_place(name):
    topology = DRAWN[name]
    places = vertex_positions(topology)
    assert places.shape == (topology.vertex_count, 2)
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    np.fill_diagonal(apart, 9.0)
    assert apart.min() > 0.3
