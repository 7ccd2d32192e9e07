"""Traces that ASTRA-sim takes: what they keep, and what they state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.convert.synthetic import (
    Work,
    dependent_compute,
    pipeline,
    repeated_collectives,
)
from perfmodel.workloads.export.astra_sim import astra_network, astra_system
from perfmodel.workloads.export.astra_traces import accepted, states_durations, uses_groups_of_some
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    METADATA,
    SEND,
    OtherPeers,
    Trace,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.twins.astra.costs import AstraCosts

PEAK = 1e15


def ahead(trace: Trace) -> dict[int, set[int]]:
    """Return for every identifier those of all nodes that end before it begins."""
    found: dict[int, set[int]] = {}
    for at, node in enumerate(trace.identifiers.tolist()):  # parents come first here
        parents = {*trace.data_parents[at].tolist(), *trace.control_parents[at].tolist()}
        found[node] = parents.union(*(found[one] for one in parents))
    return found


@st.composite
def graphs(draw):
    builder = TraceBuilder()
    count = draw(st.integers(1, 12))
    for node in range(count):
        earlier = (
            st.lists(st.integers(0, node - 1), unique=True, max_size=4) if node else st.just([])
        )
        builder.add(
            f"node {node}",
            COMPUTE,
            duration=draw(st.sampled_from([0.0, 1.4e-6, 2.5e-6, 1e-3])),
            num_ops=5,
            tensor_size=7,
            on_cpu=draw(st.sampled_from([0, 1])),
            data=draw(earlier),
            control=draw(earlier),
            other={"mark": node} if draw(st.booleans()) else None,
        )
    return builder.build()


@given(graphs())
def test_without_the_host_the_same_nodes_wait_for_each_other(trace):
    found = accepted(TraceSet((trace,)), peak=PEAK, host=False)
    (after,) = found.traces.traces
    device = trace.on_cpu != 1
    kept = trace.identifiers[device]
    assert after.identifiers.tolist() == kept.tolist()
    before = ahead(trace)
    assert ahead(after) == {node: before[node] & set(kept.tolist()) for node in kept.tolist()}
    assert found.host_time[0] == pytest.approx(trace.duration[~device].sum())
    marks = {at: values["mark"] for at, values in after.other.items()}
    assert marks == {at: node for at, node in enumerate(kept.tolist()) if node in trace.other}
    assert [trace.names[node] for node in kept.tolist()] == list(after.names)


def test_metadata_is_for_versions_that_count_it():
    builder = TraceBuilder()
    first = builder.add("groups", METADATA)
    builder.add("work", COMPUTE, num_ops=1, tensor_size=1, data=[first])
    traces = TraceSet((builder.build(),))
    assert accepted(traces, peak=PEAK, host=True).traces.nodes == 2
    (alone,) = accepted(traces, peak=PEAK, host=False).traces.traces
    assert (list(alone.names), alone.data_parents[0].tolist()) == (["work"], [])


@given(graphs())
def test_times_are_whole_microseconds_and_at_least_one(trace):
    (after,) = accepted(TraceSet((trace,)), peak=PEAK, host=True).traces.traces
    micros = np.rint(after.duration * 1e6)
    assert (micros == after.duration * 1e6).all()
    assert ((micros > 0) == (trace.duration > 0)).all()
    assert np.abs(after.duration - trace.duration).max() <= 0.5000001e-6


def test_ranks_share_their_columns_afterwards(workload_of):
    traces = projected_traces(workload_of("pipeline"))
    found = accepted(traces, peak=PEAK, host=False).traces
    parts = found.parts
    assert any(isinstance(part, OtherPeers) for part in parts)
    columns = {
        id((part.trace if isinstance(part, OtherPeers) else part).duration) for part in parts
    }
    assert len(columns) == 4  # stages
    for before, after in zip(traces.traces, found.traces, strict=True):
        kept = before.on_cpu != 1
        assert kept.sum() == after.nodes < before.nodes
        for name in ("source", "destination", "tag", "communication_size", "group"):
            assert (getattr(before, name)[kept] == getattr(after, name)).all()
        assert before.group_names == after.group_names


def test_work_that_states_no_operations_takes_its_duration_by_the_roofline():
    hardware = load_hardware("dgx-h100")
    network = astra_network(hardware, 2)
    system = astra_system(hardware, network, roofline=True)
    peak = system.peak_performance_teraflops * 1e12
    for duration in (0.0, 1e-6, 7e-6, 1.234e-3, 3.0, 100.0):
        found = accepted(dependent_compute(2, 1, duration=duration), peak=peak, host=False)
        times = AstraCosts(network, system).local(found.traces.traces[0]).times
        assert times.tolist() == [max(1.0, round(duration * 1e9))]
        assert found.given_rates


@pytest.mark.parametrize(
    ("given_ops", "given_bytes", "ops", "size"), [(9, -1, 9, 1), (-1, 9, 1, 9), (8, 9, 8, 9)]
)
def test_what_work_states_stays(given_ops, given_bytes, ops, size):
    found = accepted(dependent_compute(2, 1, given_ops, given_bytes), peak=PEAK, host=False)
    trace = found.traces.traces[0]
    assert (trace.num_ops.tolist(), trace.tensor_size.tolist()) == ([ops], [size])
    assert not found.given_rates


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"kind": COLLECTIVE, "collective": TRACED.index("barrier"), "communication_size": 1},
            r"rank 0, node 0 \(wrong\) is a collective that ASTRA-sim does not run; it runs all_re",
        ),
        ({"kind": SEND, "communication_size": 0}, "is a message of 0 B, at which ASTRA-sim stops"),
        ({"kind": MEM_LOAD}, "loads or stores remote memory"),
    ],
)
def test_nodes_at_which_astra_sim_stops_are_refused(columns, words):
    builder = TraceBuilder()
    builder.add("wrong", **columns)
    with pytest.raises(FormatError, match=words):
        accepted(TraceSet((builder.build(),)), peak=PEAK, host=True)


def test_whether_collectives_leave_ranks_out():
    pair = repeated_collectives(4, "all_reduce", 8, 1, [range(2), range(2, 4)])
    assert uses_groups_of_some(pair)
    assert not uses_groups_of_some(repeated_collectives(4, "all_reduce", 8, 1))
    assert not uses_groups_of_some(repeated_collectives(4, "all_reduce", 8, 1, [range(4)]))
    unused = TraceSet(repeated_collectives(4, "all_reduce", 8, 1).traces, pair.groups)
    assert not uses_groups_of_some(unused)


def test_whether_computation_states_its_time():
    work = Work(1e-3)
    assert states_durations(pipeline(2, 2, work, work, 8))
    assert states_durations(repeated_collectives(2, "all_reduce", 8, 1))
    assert not states_durations(dependent_compute(2, 2, 100, 100))
