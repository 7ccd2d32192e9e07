"""Distances in closed form against those of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.workloads.links.networks import topologies


@given(topologies())
def test_diameter_and_mean_distance_are_those_of_all_pairs(topology):
    count = topology.device_count
    hops = topology.hops(np.arange(count)[:, None], np.arange(count))
    assert topology.diameter == hops.max()
    if count > 1:
        assert topology.average_hops == pytest.approx(hops.sum() / (count * (count - 1)))
    else:
        assert topology.average_hops == 0.0
