"""ASTRA-sim's answer beside ours: parts that are runs, and that sum to the difference."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import MEM_LOAD, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.beside import PARTS, beside_astra_sim, worth_it
from tests.workloads.simulation.made import MIB, micros, pipeline, reduce_of

GROUPS = {"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}


def two_groups(ranks=4, on_cpu=False):
    """Two collectives of different groups at once, and work before and after."""
    traces = []
    for rank in range(ranks):
        builder = TraceBuilder()
        first = micros(builder, "work", 200, num_ops=10**6, tensor_size=10**6)
        one = reduce_of(builder, "one", 64 * MIB, group="12"[rank // 2], data=[first])
        two = reduce_of(builder, "two", 64 * MIB, group="34"[rank % 2], data=[first])
        if on_cpu:
            micros(builder, "host", 1000, on_cpu=1, data=[one, two])
        traces.append(builder.build())
    return TraceSet(tuple(traces), GROUPS)


def beside(traces, hardware="dgx-h100", **settings):
    costs = HardwareCosts(hardware, **settings)
    return beside_astra_sim(traces, costs, simulate(traces, costs))


def test_parts_sum_to_the_difference():
    for settings in ({}, {"contention": True}, {"communication_streams": "one"}):
        found = beside(two_groups(on_cpu=True), **settings)
        assert list(found.parts) == list(PARTS)
        assert found.wall_time + sum(found.parts.values()) == pytest.approx(found.ours, rel=1e-12)


def test_each_part_is_what_it_says():
    plain = beside(two_groups()).parts
    assert plain["launch and host"] == pytest.approx(0.0, abs=1e-9)
    assert plain["overlap"] < 0 == plain["congestion"]  # side by side is shorter
    assert beside(two_groups(), communication_streams="one").parts["overlap"] == 0.0
    assert beside(two_groups(), contention=True).parts["congestion"] > 0
    waiting = beside(two_groups(on_cpu=True)).parts
    assert waiting["launch and host"] == pytest.approx(1e-3)  # main counts no host
    assert waiting["protocol"] == pytest.approx(plain["protocol"], abs=2e-9)


def test_the_line_has_signs_and_shares_of_our_time():
    found = beside(two_groups(on_cpu=True))
    share = 100 * (found.wall_time - found.ours) / found.ours
    which = "less" if share < 0 else "more"
    assert f"{abs(share):.1f} % {which}: launch and host -" in found.line()
    assert found.line().startswith("astra-sim@main on this hardware's network")
    assert found.line().endswith("congestion 0 %")
    document = found.document()
    assert document["wall_time"] == found.wall_time
    assert document["ours_is_longer_by"]["launch_and_host"] == found.parts["launch and host"]


def test_what_astra_sim_refuses_is_an_error():
    def loads():
        builder = TraceBuilder()
        builder.add("load", MEM_LOAD, tensor_size=MIB)
        return builder.build()

    traces, costs = TraceSet((loads(),) * 2), HardwareCosts("dgx-h100")
    with pytest.raises(FormatError, match="remote memory"):
        beside_astra_sim(traces, costs, simulate(traces, costs))


def test_large_runs_and_recordings_with_lanes_are_left_alone():
    assert worth_it(pipeline())
    assert not worth_it(pipeline(1))
    lanes = TraceBuilder()
    micros(lanes, "kernel", 1, lane=1)
    assert not worth_it(TraceSet((lanes.build(),) * 2))
    many = TraceBuilder()
    for number in range(600):
        micros(many, str(number), 1)
    assert not worth_it(TraceSet((many.build(),) * 200))
