"""Algorithms of two levels: inside domains and across them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.workloads.schedules.schedule import schedule

SIZE = 5040.0


def test_hierarchical_all_reduce_by_hand():
    """2 domains of 4: 2 × 3/4 S inside, 2 × 1/2 × S/4 across, per member."""
    plan = schedule("all_reduce", "hierarchical", 8, SIZE, domain=4)
    inside = plan.source // 4 == plan.target // 4
    assert plan.bytes[inside].sum() / 8 == pytest.approx(1.5 * SIZE)
    assert plan.bytes[~inside].sum() / 8 == pytest.approx(0.25 * SIZE)
    assert np.all(plan.source[~inside] % 4 == plan.target[~inside] % 4)
    assert plan.steps == 3 + 1 + 1 + 3


@pytest.mark.parametrize("algorithm", ["hierarchical", "rail_aligned"])
def test_two_level_all_to_all_stays_on_rails(algorithm):
    """16 members on 4 nodes: each sends (n-d)/n S over its own adapter, in 3 messages of 4."""
    plan = schedule("all_to_all", algorithm, 16, SIZE, domain=4)
    across = plan.source // 4 != plan.target // 4
    assert np.all(plan.source[across] % 4 == plan.target[across] % 4)
    sent = np.bincount(plan.source[across], weights=plan.bytes[across])
    np.testing.assert_allclose(sent, 12 / 16 * SIZE)
    assert np.bincount(plan.source[across]).tolist() == [3] * 16  # direct sends 12
    assert set(plan.step[across]) == {1 if algorithm == "rail_aligned" else 0}
    # inside: 3 places, each with what it forwards to (or gets from) 4 nodes
    np.testing.assert_allclose(
        np.bincount(plan.source[~across], weights=plan.bytes[~across]), 3 * 4 / 16 * SIZE
    )
