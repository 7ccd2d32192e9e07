"""Workloads that cannot run are refused with one line that names rank and node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError, FormatError, HardwareError, PerfModelError
from perfmodel.parity.astra.collective import AstraNetwork, uniform_system
from perfmodel.parity.astra.costs import AstraCosts
from perfmodel.parity.astra.network_costs import NetworkCosts
from perfmodel.simulation.run import simulate
from perfmodel.trace import (
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    METADATA,
    RECEIVE,
    SEND,
    TraceBuilder,
    TraceSet,
)

ALL_REDUCE, ALL_GATHER, BARRIER = (
    TRACED.index(name) for name in ("all_reduce", "all_gather", "barrier")
)


def costs(members=2, **settings):
    network = AstraNetwork(("Ring",), (members,), (50.0,), (500.0,))
    return AstraCosts(network, uniform_system(["ring"], **settings))


def reduce_of(builder, name, size=1024, kind=ALL_REDUCE, **settings):
    return builder.add(name, COLLECTIVE, collective=kind, communication_size=size, **settings)


def built(*nodes):
    """Return a trace of (name, kind, settings)."""
    builder = TraceBuilder()
    for name, kind, node in nodes:
        builder.add(name, kind, **node)
    return builder.build()


SUM = {"collective": ALL_REDUCE, "communication_size": 1024}


def refused(*traces, groups=None, error=FormatError, **settings):
    """Return the one line with which a workload is refused."""
    with pytest.raises(error) as caught:
        simulate(TraceSet(tuple(traces), groups or {}), costs(**settings))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_circle_of_parents():
    trace = built(
        ("start", COMPUTE, {"identifier": 1}),
        ("a", COMPUTE, {"identifier": 2, "data": [4, 1]}),
        ("b", COMPUTE, {"identifier": 3, "data": [2]}),
        ("c", COMPUTE, {"identifier": 4, "control": [3]}),
    )
    text = refused(trace, trace)
    assert "6 nodes never end" in text  # three of each rank
    assert "rank 0, node 2 (a) waits for its parent → rank 0, node 4 (c)" in text
    assert "start" not in text


def test_long_circles_are_shortened():
    nodes = [(f"n{i}", COMPUTE, {"data": [(i + 1) % 50]}) for i in range(50)]
    text = refused(built(*nodes), built(*nodes))
    assert "… 44 more" in text
    assert len(text) < 500


def test_collectives_in_opposite_order():
    one = built(
        ("first", COLLECTIVE, SUM | {"group": "a"}), ("x", COLLECTIVE, SUM | {"group": "b"})
    )
    two = built(
        ("first", COLLECTIVE, SUM | {"group": "b"}), ("x", COLLECTIVE, SUM | {"group": "a"})
    )
    text = refused(one, two, groups={"a": (0, 1), "b": (0, 1)})
    assert "node 0 (first) waits for another member → rank 1, node 1 (x) waits for its turn" in text


def test_a_node_that_waits_for_itself():
    trace = built(("a", COMPUTE, {"data": [0]}))
    assert "node 0 (a) waits for its parent → rank 0, node 0 (a)" in refused(trace, trace)


def test_receives_that_wait_for_each_other():
    traces = [
        built(
            ("get", RECEIVE, {"source": 1 - rank, "communication_size": 8}),
            ("give", SEND, {"destination": 1 - rank, "communication_size": 8, "data": [0]}),
        )
        for rank in (0, 1)
    ]
    text = refused(*traces)
    assert "node 0 (get) waits for its message → rank 1, node 1 (give) waits for its parent" in text


@pytest.mark.parametrize("kind", [SEND, RECEIVE])
def test_messages_without_other_end(kind):
    ends = {"source": 0, "destination": 1} if kind == SEND else {"source": 1, "destination": 0}
    trace = built(("lonely", kind, {"communication_size": 8, "tag": 5} | ends))
    other = built(("work", COMPUTE, {}))
    text = refused(trace, other)
    verb = "receives" if kind == SEND else "sends"
    assert text.startswith("rank 0, node 0 (lonely)")
    assert f"with tag 5, but rank 1 never {verb} it" in text


def test_messages_of_two_sizes():
    give = built(("give", SEND, {"destination": 1, "communication_size": 8}))
    get = built(("get", RECEIVE, {"source": 0, "communication_size": 9}))
    text = refused(give, get)
    assert "rank 0, node 0 (give) sends 8 B, but rank 1, node 0 (get) receives 9 B" in text


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"source": 1, "destination": 0}, "moves data of rank 1"),
        ({"destination": 9}, "has a peer 9 that is no rank"),
        ({}, "has a peer -1 that is no rank"),
        ({"destination": 1, "communication_size": -1}, "states no comm_size"),
        ({"destination": 1, "communication_size": 0}, "asserts that none is empty"),
    ],
)
def test_wrong_messages(settings, reason):
    trace = built(("give", SEND, {"communication_size": 8} | settings))
    get = built(("get", RECEIVE, {"source": 0}))
    assert reason in refused(trace, get)


def test_collectives_that_differ_between_members():
    one = built(("a", COLLECTIVE, SUM), ("b", COLLECTIVE, SUM))
    two = built(("c", COLLECTIVE, SUM), ("d", COLLECTIVE, SUM | {"communication_size": 7}))
    text = refused(one, two)
    assert "collective 2 of the group of all ranks differs" in text
    assert "rank 0, node 1 (b): all_reduce of 1024 B; rank 1, node 1 (d): all_reduce of 7 B" in text
    fewer = built(("c", COLLECTIVE, SUM))
    assert "rank 1: none" in refused(one, fewer)
    none = built(("work", COMPUTE, {}))
    assert "but rank 1 has no such collective" in refused(one, none)


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({}, "rank 0, node 0 (sum): communicator group 'g' has no list of ranks; known: none"),
        ({"g": (0, 2)}, "names rank 2; the workload has ranks 0 to 1"),
        ({"g": (0, 0)}, "should name different ranks"),
        ({"g": ()}, "should name different ranks"),
        ({"g": (1,)}, "uses group 'g', which has no rank 0; it has 1"),
    ],
)
def test_wrong_groups(groups, reason):
    trace = built(("sum", COLLECTIVE, SUM | {"group": "g"}))
    assert reason in refused(trace, trace, groups=groups)


def test_a_group_of_one_has_nothing_to_do():
    trace = built(("sum", COLLECTIVE, SUM | {"group": "g"}))
    other = built(("work", COMPUTE, {"duration": 1e-6}))
    result = simulate(TraceSet((trace, other), {"g": (0,)}), costs())
    assert result.ticks("wall_time") == (0, 1000)


def test_what_the_simulator_does_not_run():
    barrier = built(("wait", COLLECTIVE, {"collective": BARRIER}))
    assert "node 0 (wait) is a barrier: unsupported collective" in refused(barrier, barrier)
    load = built(("load", MEM_LOAD, {"tensor_size": 8}))
    assert "NO_MEMORY_EXPANSION" in refused(load, load)
    nameless = built(("sum", COLLECTIVE, {"collective": ALL_REDUCE}))
    assert "node 0 (sum) states no comm_size" in refused(nameless, nameless)
    empty = built(("gather", COLLECTIVE, {"collective": ALL_GATHER, "communication_size": 0}))
    text = refused(empty, empty)
    assert "rank 0, node 0 (gather), all_gather of the group of all ranks: size 0 B" in text


def test_dimensions_that_the_network_lacks():
    trace = built(("sum", COLLECTIVE, SUM | {"involved": [False]}))
    network = AstraNetwork(("Ring", "Ring"), (2, 2), (50.0, 50.0), (1.0, 1.0))
    with pytest.raises(FormatError, match=r"node 0 \(sum\): involved dimensions \[0\]"):
        simulate(TraceSet((trace,) * 4), AstraCosts(network, uniform_system(["ring", "ring"])))


def test_wrong_numbers_of_ranks_and_settings():
    trace = built(("sum", COLLECTIVE, SUM))
    text = refused(trace, trace, error=HardwareError, members=4)
    assert "the workload has 2 ranks, but npus_count of the network multiplies to 4" in text
    with pytest.raises(HardwareError, match="peak-perf"):
        costs(roofline_enabled=True)
    with pytest.raises(DataError, match="control_parents 'maybe'"):
        simulate(TraceSet((trace,)), costs(), control_parents="maybe")
    with pytest.raises(FormatError, match="no rank"):
        simulate(TraceSet(()), costs())


@pytest.mark.parametrize("duration", [np.nan, np.inf, 1e300, -1e-6])
def test_durations_that_are_none(duration):
    trace = built(("work", COMPUTE, {"duration": duration}))
    text = refused(trace, trace)
    assert f"node 0 (work) lasts {duration:g} s; durations should be 0 to 1e+09 s" in text


def test_times_that_cannot_be_counted():
    trace = built(("work", COMPUTE, {"duration": 1e8}))
    assert "cannot be counted in whole nanoseconds" in refused(trace, trace)


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


@settings(max_examples=60)
@given(st.data())
def test_any_columns_run_or_are_refused(data):
    """Random traces of three ranks never raise anything but an error of ours."""
    whole = st.integers(-1, 3)
    traces = []
    for _ in range(data.draw(st.integers(1, 3))):
        builder = TraceBuilder()
        for _ in range(data.draw(st.integers(0, 5))):
            builder.add(
                "n",
                data.draw(
                    st.sampled_from([0, METADATA, MEM_LOAD, COMPUTE, SEND, RECEIVE, COLLECTIVE])
                ),
                data=data.draw(st.lists(st.integers(0, 5), max_size=2)),
                control=data.draw(st.lists(st.integers(0, 5), max_size=2)),
                group=data.draw(st.sampled_from(["", "g", "missing", "0"])),
                involved=data.draw(st.sampled_from([None, None, [True], [False], [True] * 4])),
                inputs=[("x", data.draw(whole))],
                outputs=[("y", 3)],
                duration=data.draw(st.sampled_from([0.0, 1e-6, -1.0, np.nan])),
                num_ops=data.draw(whole),
                tensor_size=data.draw(whole),
                collective=data.draw(st.integers(-1, 9)),
                communication_size=data.draw(whole),
                source=data.draw(whole),
                destination=data.draw(whole),
                tag=data.draw(whole),
                on_cpu=data.draw(st.integers(-1, 1)),
            )
        traces.append(builder.build())
    workload = TraceSet(tuple(traces), {"g": (0, len(traces) - 1)})
    model = costs(max(len(traces), 2), roofline_enabled=True, peak_performance_teraflops=1.0)
    text = ""
    try:
        result = simulate(workload, model)
    except PerfModelError as error:
        text = str(error)
    else:
        assert (result.wall_time >= 0).all()
        assert result.summary()["nodes"] == workload.nodes
    assert "\n" not in text


def test_errors_of_a_rank_name_it():
    fine = built(("work", COMPUTE, {}))
    assert refused(fine, built(("sum", COLLECTIVE, {"collective": 0}))).startswith(
        "rank 1, node 0 (sum) states no comm_size"
    )
    assert refused(fine, built(("work", COMPUTE, {"data": [77]}))).startswith(
        "rank 1, node 0 (work) waits for node 77"
    )
    twice = replace(
        built(("a", COMPUTE, {}), ("b", COMPUTE, {})), identifiers=np.array([4, 4], np.int64)
    )
    assert refused(fine, twice) == "rank 1, two nodes have the id 4; ids should differ"


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("kinds", 8, "node type 8; there are 8"),
        ("collective", 10, "kind of collective 10; there are 10"),
        ("collective", -2, "kind of collective -2; there are 10"),
        ("group", 1, "communicator group 1; there are 1"),
        ("involved", 0, "list of involved dimensions 0; there are 0"),
    ],
)
def test_numbers_that_stand_for_nothing(column, value, reason):
    trace = built(("sum", COLLECTIVE, SUM | {"group": "g"}))
    wrong = replace(trace, **{column: np.array([value], getattr(trace, column).dtype)})
    text = refused(trace, wrong, groups={"g": (0, 1)})
    assert f"rank 1, node 0 (sum) has {reason}, numbered from 0" in text


@pytest.mark.parametrize("flags", [[], [True], [False]])
def test_fewer_flags_than_dimensions(flags):
    """ASTRA-sim reads on behind a list that is too short."""
    trace = built(("sum", COLLECTIVE, SUM | {"involved": flags}))
    network = AstraNetwork(("Ring", "Ring"), (2, 2), (50.0, 50.0), (1.0, 1.0))
    system = uniform_system(["ring", "ring"])
    for model in (AstraCosts(network, system), NetworkCosts(network, system)):
        with pytest.raises(FormatError, match=r"rank 0, node 0 \(sum\): involved dimensions \["):
            simulate(TraceSet((trace,) * 4), model)
    # More than there are do no harm; nobody else is in a group over no dimension.
    more = built(("sum", COLLECTIVE, SUM | {"involved": [True, True, False]}))
    none = built(("sum", COLLECTIVE, SUM | {"involved": [False, False]}))
    assert simulate(TraceSet((more,) * 4), AstraCosts(network, system)).ticks("wall_time")[0] > 0
    assert simulate(TraceSet((none,) * 4), AstraCosts(network, system)).ticks("wall_time")[0] == 0


def test_group_0_and_no_group_are_all_ranks():
    """ASTRA-sim's main branch calls all ranks "0"; one rank may use both names."""
    named = built(
        *[
            (f"n{i}", COLLECTIVE, SUM | {"group": group, "data": [i - 1] if i else []})
            for i, group in enumerate(["", "0", ""])
        ]
    )
    plain = built(*[(f"n{i}", COLLECTIVE, SUM | {"data": [i - 1] if i else []}) for i in range(3)])
    expected = simulate(TraceSet((plain, plain)), costs()).ticks("wall_time")
    for ranks in ((named, named), (named, plain), (plain, named)):
        for symmetry in (True, False):
            result = simulate(TraceSet(ranks), costs(), symmetry=symmetry)
            assert result.ticks("wall_time") == expected
    # A workload that lists ranks of "0" means those.
    other = TraceSet((named, built(("w", COMPUTE, {}))), {"0": (0,)})
    with pytest.raises(FormatError, match="group of all ranks, but rank 1 has no such"):
        simulate(other, costs())


def test_messages_to_oneself_need_both_ends():
    give = ("give", SEND, {"destination": 0, "communication_size": 8})
    get = ("get", RECEIVE, {"source": 0, "communication_size": 8})
    idle = built(("work", COMPUTE, {"duration": 1e-6}))
    result = simulate(TraceSet((built(give, get), idle)), costs())
    assert result.ticks("wall_time") == (0, 1000)
    assert "rank 0 never receives it" in refused(built(give), idle)


def test_messages_of_one_tag_pair_up_in_order():
    sends = [("s", SEND, {"destination": 1, "tag": 3, "communication_size": n}) for n in (8, 16)]
    gets = [("r", RECEIVE, {"source": 0, "tag": 3, "communication_size": n}) for n in (8, 16)]
    assert simulate(TraceSet((built(*sends), built(*gets))), costs()).ticks("wall_time")[0] > 0
    text = refused(built(*sends), built(*gets[::-1]))
    assert "rank 0, node 0 (s) sends 8 B, but rank 1, node 0 (r) receives 16 B" in text
    assert "rank 0, node 1 (s) sends" in refused(built(*sends), built(gets[0]))
    text = refused(built(sends[0]), built(*gets))
    assert "rank 1, node 1 (r) receives" in text
    assert "but rank 0 never sends it" in text


def test_times_out_of_range_name_the_longest_node():
    large = {"destination": 1, "communication_size": 2**62}
    give = built(("small", COMPUTE, {"duration": 1.0}), ("give", SEND, large))
    get = built(("get", RECEIVE, {"source": 0}))
    text = refused(give, get)
    assert "cannot be counted in whole nanoseconds; longest is rank 0, node 1 (give)" in text
    huge = built(("sum", COLLECTIVE, SUM | {"communication_size": 2**62}))
    assert "rank 0, node 0 (sum), all_reduce of the group of all ranks: size" in refused(huge, huge)


def test_standstill_of_ranks_that_one_stands_for_names_different_ranks():
    """Every rank waits for its neighbour's message before it sends its own."""
    traces = [
        built(
            ("get", RECEIVE, {"source": (rank - 1) % 3}),
            ("give", SEND, {"destination": (rank + 1) % 3, "communication_size": 8, "data": [0]}),
        )
        for rank in range(3)
    ]
    text = refused(*traces, members=3)
    assert "6 nodes never end" in text
    for rank in range(3):
        assert f"rank {rank}, node 0 (get) waits for its message" in text


def test_ranks_of_nothing():
    empty = built()
    result = simulate(TraceSet((empty, empty)), costs())
    assert result.ticks("wall_time") == (0, 0)
    assert result.summary()["nodes"] == 0
