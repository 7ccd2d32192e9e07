"""Parts of a branch: they stand for all its strategies, and none is faster than its bound."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.hwprofiles import load_hardware
from perfmodel.sweeps.search import SearchResult, searched_problems
from perfmodel.sweeps.search_branch import Branch, Nodes, joined, parts_of
from perfmodel.sweeps.search_run import SearchRun
from perfmodel.sweeps.several import named
from perfmodel.training.bounds import SLACK
from tests.sweeps.test_search import PROBLEM, SPACES


def branches(name: str) -> list[tuple[Branch, Nodes]]:
    """Return the branches of a space, with their layouts that fit."""
    model, devices, hardware, frameworks, axes = SPACES[name]
    asked = named(model, hardware, devices, frameworks, PROBLEM | axes, "none")
    rows = [load_hardware(item) for item in hardware]
    run = SearchRun(
        searched_problems(**asked), rows, 5, "step_time", False, None, None, SearchResult()
    )
    return [(branch, run._layouts(branch)) for branch in run._branches()]


@pytest.mark.parametrize(
    "name", ["device counts and kinds, batches, precisions, mappings", "experts"]
)
def test_no_part_is_faster_than_its_bound(name: str) -> None:
    compared = 0
    for branch, nodes in branches(name)[:4]:
        single = nodes.take(np.flatnonzero(nodes.way >= 0)[:50])
        if not single.layout.size:
            continue
        table = branch.projected(single)
        step, fits = table["step_time"].values[:, 0], table["fits"].values[:, 0]
        assert np.all(step[fits] >= single.bound[fits] * SLACK)
        floor = branch.floor(single, table)
        assert np.all(step >= floor * SLACK)
        assert np.all(branch.rank(single) <= branch.rank(single, step) + 1e-12)
        compared += int(fits.sum())
    assert compared > 10


def test_parts_are_taken_apart_and_joined_again() -> None:
    ((_, nodes), *_) = branches("experts")
    pieces = list(parts_of(nodes, 7))
    assert [it.layout.size for it in pieces[:-1]] == [7] * (len(pieces) - 1)
    for one, other in zip(joined(pieces), nodes, strict=True):
        np.testing.assert_array_equal(one, other)
    assert nodes.take(np.array([2, 0])).layout.tolist() == nodes.layout[[2, 0]].tolist()


def test_less_memory_counts_where_the_90th_percentile_has_to_fit() -> None:
    ((branch, _), *_) = branches("experts")
    from dataclasses import replace

    capacity = branch.hardware.device.memory.capacity
    assert branch.capacity == capacity
    assert replace(branch, safe=True).capacity < capacity
