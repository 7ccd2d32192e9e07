"""Ways of messages over links of the congestion-aware network."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.workloads.formats.astra_machine import AstraNetwork, mesh_shape, uniform_system
from perfmodel.workloads.twins.astra.machine import SHARED, Machine


def facts_of(topology, ranks):
    width, _ = mesh_shape(ranks)
    return np.array([ranks, SHARED.index(topology), width, 1])


def distance(topology, ranks, source, target):
    if topology == "Ring":
        return min((source - target) % ranks, (target - source) % ranks)
    if topology == "Mesh2D":
        width, _ = mesh_shape(ranks)
        along = abs(source % width - target % width)
        return along + abs(source // width - target // width)
    return 2 if topology == "Switch" else 1


@pytest.mark.parametrize("topology", SHARED)
@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
def test_every_way_leads_there_over_links_that_are_there(topology, ranks):
    from perfmodel.kernels.workloads.astra.links import far_end, link_ends, next_link

    facts = facts_of(topology, ranks)
    machine = Machine(AstraNetwork((topology,), (ranks,), (1.0,), (1.0,)), uniform_system(["ring"]))
    source_of, target_of = link_ends(facts, machine.links)
    for source, target in itertools.permutations(range(ranks), 2):
        node, steps = source, 0
        while node != target:
            link = next_link(facts, node, target)
            assert (source_of[link], target_of[link]) == (node, far_end(facts, link))
            node = far_end(facts, link)
            steps += 1
        assert steps == distance(topology, ranks, source, target)


@pytest.mark.parametrize(
    ("topology", "ranks", "links"),
    [
        ("Ring", 2, 2),
        ("Ring", 5, 10),
        ("FullyConnected", 5, 20),
        ("Switch", 5, 10),
        ("Mesh2D", 6, 14),
        ("Mesh2D", 3, 4),
    ],
)
def test_links_are_there_once(topology, ranks, links):
    from perfmodel.kernels.workloads.astra.links import link_ends

    machine = Machine(AstraNetwork((topology,), (ranks,), (1.0,), (1.0,)), uniform_system(["ring"]))
    source, target = link_ends(facts_of(topology, ranks), machine.links)
    pairs = set(zip(source[source >= 0].tolist(), target[target >= 0].tolist(), strict=True))
    assert len(pairs) == links == int((source >= 0).sum())
