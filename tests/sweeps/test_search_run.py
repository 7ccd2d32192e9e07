"""A search while it goes on: it stops in time, and nothing is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.sweeps import search_run
from perfmodel.sweeps.search import search
from tests.sweeps.test_search import PROBLEM, SPACES

NAME = "device counts and kinds, batches, precisions, mappings"


def test_it_stops_in_time_and_says_how_much_may_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model, devices, hardware, frameworks, axes = SPACES[NAME]
    ticks = iter(range(10**6))
    monkeypatch.setattr(search_run.time, "monotonic", lambda: float(next(ticks)))
    given = PROBLEM | axes
    found = search(model, hardware, devices, framework=frameworks, seconds=2.0, **given)
    assert found.bound is not None
    assert found.unsettled > 0
    settled = sum(found.proved.values()) + found.evaluated + sum(found.lacking.values())
    assert settled + found.unsettled == found.possible
    monkeypatch.undo()
    proved = search(model, hardware, devices, framework=frameworks, **given)
    rate = "tokens_per_second_per_device"
    assert found.bound >= proved.strategies[0][rate]
    if found.strategies:
        assert found.strategies[0][rate] <= proved.strategies[0][rate]
        assert found.gap > 0.0


@pytest.mark.parametrize("together", [16])
def test_how_many_parts_are_taken_together_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    few = {"virtual_pipeline": 1, "context_parallel": 1, "zero_stage": [0, 1], "recompute": "all"}
    usual = search("gpt2", "dgx-h100", 8, **PROBLEM, **few)
    for name in ("TOGETHER", "MOST_TOGETHER", "FIRST", "BOUNDED"):
        monkeypatch.setattr(search_run, name, together)
    found = search("gpt2", "dgx-h100", 8, **PROBLEM, **few)
    assert found.strategies == usual.strategies
    assert sum(found.proved.values()) + found.evaluated == found.possible == usual.possible


def test_lists_of_kinds_follow_each_other() -> None:
    offset, kind = np.array([0, 2, 2, 5]), np.array([2, 1, 0, 2])
    owner, rows = search_run._listed(offset, kind)
    assert owner.tolist() == [0, 0, 0, 2, 2, 3, 3, 3]
    assert rows.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
