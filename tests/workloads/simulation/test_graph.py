"""Parents of nodes: those that are there, and those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COMPUTE,
    TraceSet,
)
from tests.workloads.simulation.refusals import built, costs, refused


def test_parents_that_are_not_there():
    trace = built(("work", COMPUTE, {"control": [77]}))
    assert "node 0 (work) waits for node 77" in refused(trace, trace)
    # A recording alone: who called whom.
    alone = TraceSet((trace,))
    assert simulate(alone, costs()).ticks("wall_time") == (1,)
    with pytest.raises(FormatError, match="waits for node 77"):
        simulate(alone, costs(), control_parents="obey")
    data = built(("work", COMPUTE, {"data": [77]}))
    with pytest.raises(FormatError, match="waits for node 77"):
        simulate(TraceSet((data,)), costs())


def test_control_parents_of_recordings_are_ignored():
    trace = built(
        ("call", COMPUTE, {"control": [1], "on_cpu": 1, "duration": 2e-6}),
        ("kernel", COMPUTE, {"control": [0], "duration": 3e-6}),
    )
    recorded = replace(trace, metadata={"pid": 1, "start_ts": 0, "finish_ts": 9})
    assert simulate(TraceSet((recorded,) * 2), costs()).ticks("wall_time") == (3000, 3000)
    assert "wait for each other" in refused(trace, trace)
