"""Collectives of a layer, and groups of one device."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from perfmodel.workloads.twins.stage.arguments import (
    SPELLINGS,
    StageArguments,
)
from perfmodel.workloads.twins.stage.operations import Collective, operations
from perfmodel.workloads.twins.stage.traces import stage_traces
from tests.workloads.twins.stage.small import INNER, SMALL, TOKENS, WIDTH


def collectives(arguments: StageArguments) -> Counter:
    """Return how often a layer does each collective."""
    return Counter(
        collective
        for found in operations(arguments)
        if found.name.startswith("stack_0")
        for collective in (*found.first, *found.second)
    )


def test_collectives_of_a_layer():
    part, full, long = TOKENS * WIDTH // 4, TOKENS * WIDTH, 8 * TOKENS * WIDTH // 4
    reduced = Counter()
    for weight, count in ((WIDTH**2 // 4, 3), (WIDTH * INNER // 4, 2)):
        for degree in ("dp", "sp"):
            reduced[Collective("all_reduce", degree, weight)] = count
    plain = {
        Collective("all_gather", "tp", part): 4 + 6,
        Collective("reduce_scatter", "tp", full): 1 + 4,
        Collective("all_gather", "sp", part): 1 + 3,
        Collective("reduce_scatter", "sp", long): 1 + 2,
    }
    assert collectives(SMALL) == Counter(plain) + reduced
    again = collectives(replace(SMALL, activation_recompute=True)) - collectives(SMALL)
    assert again == {
        Collective("all_gather", "tp", part): 4,
        Collective("all_gather", "sp", part): 1,
    }


@pytest.mark.parametrize("degree", ["data_parallel", "tensor_parallel", "sequence_parallel"])
def test_a_degree_of_1_needs_no_collective(degree):
    word = {ours: spelling for spelling, ours in SPELLINGS.items()}[degree]
    for sharded in (False, True):
        arguments = replace(SMALL, weight_sharded=sharded)
        assert word in {each.degree for each in collectives(arguments)}
        without = collectives(replace(arguments, **{degree: 1}))
        assert word not in {each.degree for each in without}
        trace = stage_traces(replace(arguments, **{degree: 1})).traces[0]
        assert len(trace.group_names) == 2
