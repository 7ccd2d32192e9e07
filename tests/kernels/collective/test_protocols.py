"""Protocols, kernels of serving engines and reduction in the switch."""

from __future__ import annotations

import math

import pytest

from perfmodel.kernels.collective.algorithms import ALL_REDUCE, IN_NETWORK, ONE_SHOT, TWO_SHOT
from perfmodel.kernels.collective.choice import AUTO
from perfmodel.kernels.collective.times import collective_time
from perfmodel.kernels.collective.tuning import LOW_LATENCY, SIMPLE
from tests.kernels.collective.networks import OUTER, algorithm_time, copy_of, nodes_of_eight


def test_kernels_of_serving_engines_by_hand():
    # One kernel reads whole buffers or parts of them, with a base of its own and one protocol.
    bases = {"shot_base": 2e-6, "low_latency_base": 9e-6, "simple_base": 9e-6}
    table = nodes_of_eight(shot_fraction=0.5, **bases)
    table.levels[1].shot_fraction = 0.5
    expected = {
        # the whole buffer to eight ranks beyond the adapter, both levels at once
        ONE_SHOT: 2e-6 + 8 * 1.6e9 / OUTER / 0.5 + 3e-6,
        # eight of sixteen parts, twice
        TWO_SHOT: 2e-6 + 2 * 8 / 16 * 1.6e9 / OUTER / 0.5 + 6e-6,
    }
    for algorithm, seconds in expected.items():
        shape = (1.6e9, 16, 1, table)
        time = algorithm_time(ALL_REDUCE, algorithm, LOW_LATENCY, *shape)
        assert time == pytest.approx(seconds, rel=1e-9), algorithm
        assert algorithm_time(ALL_REDUCE, algorithm, AUTO, *shape) == time
        assert algorithm_time(ALL_REDUCE, algorithm, SIMPLE, *shape) == math.inf


def test_switch_reduction_helps_large_groups_only(realistic):
    without = copy_of(realistic)
    without.levels["in_network_bandwidth"] = 0.0
    ratio = [
        collective_time(ALL_REDUCE, 1e9, n, 1, realistic)
        / collective_time(ALL_REDUCE, 1e9, n, 1, without)
        for n in (2, 8)
    ]
    # Bytes 1 + 1/n against 2 (n-1)/n: no gain for two, 1.75 / 1.125 for eight.
    assert ratio[0] == 1.0
    assert ratio[1] < 0.9


def test_in_network_needs_a_switch_that_reduces(realistic):
    without = copy_of(realistic)
    without.levels["in_network_bandwidth"] = 0.0
    assert algorithm_time(ALL_REDUCE, IN_NETWORK, SIMPLE, 1e6, 8, 1, without) == math.inf
    assert algorithm_time(ALL_REDUCE, IN_NETWORK, SIMPLE, 1e6, 8, 1, realistic) < math.inf
