"""Names, parts and directions of results of meshes of cores."""

from __future__ import annotations

from perfmodel.store.results import LARGER_IS_BETTER
from perfmodel.wafer.result_subject import (
    OTHER_VARIABLES,
    ROW_VARIABLES,
    TIME_COMPONENTS,
    VARIABLES,
)


def test_what_is_better_when_larger_is_what_queries_rank_by():
    for item in (*ROW_VARIABLES, *OTHER_VARIABLES):
        assert (item.better == "up") == (item.name in LARGER_IS_BETTER)


def test_parts_of_the_latency_are_times():
    assert len(TIME_COMPONENTS) == 8
    assert {VARIABLES[name].units for name in TIME_COMPONENTS} == {"s"}
