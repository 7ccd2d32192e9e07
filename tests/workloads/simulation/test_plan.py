"""Communication at the same time shares the ports of its devices; alone it takes its own time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError
from perfmodel.compute.collectives import collective_times, link_occupancies
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.training.step.workload import projected_workload
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.costs import network_hardware
from tests.amount import cases

MIB, GIB = 2**20, 2**30
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = map(TRACED.index, ("all_reduce", "all_gather", "all_to_all"))


def ranks_of(count, *programs, groups=None):
    """A trace per rank: (kind, size, group, compute before) of each collective, all at once."""
    builders = [TraceBuilder() for _ in range(count)]
    for rank, builder in enumerate(builders):
        for name, kind, size, members, before in programs:
            if rank in members:
                first = [builder.add("work", COMPUTE, duration=before)] if before else []
                builder.add(
                    name, COLLECTIVE, collective=kind, communication_size=size,
                    group=name, data=first,
                )  # fmt: skip
    return TraceSet(
        tuple(builder.build() for builder in builders),
        {name: tuple(members) for name, _, _, members, _ in programs},
    )


def ends(traces, hardware, contention=True, **settings):
    """When each named operation ends, on the rank that is first to have it [s]."""
    result = simulate(traces, HardwareCosts(hardware, contention=contention), **settings)
    found = {}
    for rank, trace in enumerate(traces.traces):
        for name, end in zip(trace.names, result.ends(rank), strict=True):
            found.setdefault(name, end)
    return found


def test_two_equal_collectives_on_the_same_ports_wait_for_each_other(h100):
    """Each gets half of the ports: its bytes take twice as long, its latency does not."""
    traces = ranks_of(
        8,
        ("a", ALL_REDUCE, GIB, range(8), 0.0),
        ("b", ALL_REDUCE, GIB, [7, 6, 5, 4, 3, 2, 1, 0], 0.0),
    )
    alone = collective_times(h100, "all_reduce", GIB, 8)[0]
    busy = link_occupancies(h100, "all_reduce", [GIB], 8, 1)[0].max()
    assert ends(traces, h100, contention=False) == {"a": alone, "b": alone}
    shared = ends(traces, h100)
    assert shared["a"] == shared["b"] == pytest.approx(alone + busy, rel=1e-12)
    assert 1.9 < shared["a"] / alone <= 2.0


def test_a_later_one_slows_an_earlier_one_from_then_on(h100):
    """Two of B seconds of bytes, the second d later: the first has d done, then both share."""
    traces = ranks_of(
        8, ("a", ALL_GATHER, GIB, range(8), 0.0), ("b", ALL_GATHER, GIB, range(8)[::-1], 1e-3)
    )
    alone = collective_times(h100, "all_gather", 8 * GIB, 8)[0]
    busy = link_occupancies(h100, "all_gather", [8 * GIB], 8, 1)[0].max()
    shared = ends(traces, h100)
    assert shared["a"] == pytest.approx(2 * alone - 1e-3 - (alone - busy), rel=1e-9)
    assert shared["b"] == pytest.approx(alone + busy, rel=1e-9)  # no byte is lost


def test_disjoint_devices_and_other_levels_do_not_disturb(h100):
    traces = ranks_of(
        16,
        ("first node", ALL_REDUCE, GIB, range(8), 0.0),
        ("second node", ALL_REDUCE, GIB, range(8, 16), 0.0),
        ("across", ALL_REDUCE, GIB, (0, 8), 0.0),
    )
    assert ends(traces, h100) == ends(traces, h100, contention=False)


def test_what_is_sent_and_what_arrives_do_not_meet(h100):
    """A pair that sends both ways takes no longer; two that send to one device do."""

    def messages(*pairs):
        builders = [TraceBuilder() for _ in range(4)]
        for a, b in pairs:
            sides = {"source": a, "destination": b, "communication_size": GIB}
            builders[a].add(f"from {a}", SEND, **sides)
            builders[b].add(f"to {b}", RECEIVE, **sides)
        return TraceSet(tuple(builder.build() for builder in builders), {})

    alone = collective_times(h100, "point_to_point", GIB, 2)[0]
    busy = link_occupancies(h100, "point_to_point", [GIB], 2, 1)[0].max()
    assert set(ends(messages((0, 1), (1, 0)), h100).values()) == {alone}
    found = ends(messages((0, 2), (1, 2)), h100)
    assert found["from 0"] == found["from 1"] == found["to 2"]
    assert found["to 2"] == pytest.approx(alone + busy, rel=1e-9)


def test_a_send_and_a_collective_share_a_port(h100):
    """Of two on one port the shorter is slowed throughout, the longer by the shorter's bytes."""
    builders = [TraceBuilder() for _ in range(8)]
    for builder in builders[:4]:
        builder.add("sum", COLLECTIVE, collective=ALL_REDUCE, communication_size=GIB, group="g")
    sides = {"source": 0, "destination": 4, "communication_size": GIB // 4}
    builders[0].add("send", SEND, **sides)
    builders[4].add("receive", RECEIVE, **sides)
    traces = TraceSet(tuple(b.build() for b in builders), {"g": (0, 1, 2, 3)})
    sum_alone = collective_times(h100, "all_reduce", GIB, 4)[0]
    send_alone = collective_times(h100, "point_to_point", GIB // 4, 2)[0]
    send_busy = link_occupancies(h100, "point_to_point", [GIB // 4], 2, 1)[0].max()
    found = ends(traces, h100)
    latency = (sum_alone - link_occupancies(h100, "all_reduce", [GIB], 4, 1)[0].max()) - (
        send_alone - send_busy
    )  # of the collective beyond that of the send: while it waits the send is alone
    assert found["send"] == pytest.approx(send_alone + send_busy - latency, rel=1e-9)
    assert found["sum"] == pytest.approx(sum_alone + send_busy - latency, rel=1e-9)


@pytest.mark.parametrize("profile", ["tpu-v5p-pod", "mi300x-server"])
def test_groups_on_the_same_links_of_a_port_share_them(profile):
    """On tori and full connections a group may have some of a device's links: twice as long."""
    hardware = load_hardware(profile)
    traces = ranks_of(
        4, ("a", ALL_REDUCE, GIB, range(4), 0.0), ("b", ALL_REDUCE, GIB, (0, 2, 1, 3), 0.0)
    )
    alone = ends(traces, hardware, contention=False)
    busy, part = link_occupancies(hardware, "all_reduce", [GIB], 4, 1)
    assert part[0, 0] < 1.0
    assert ends(traces, hardware)["a"] == pytest.approx(alone["a"] + busy.max(), rel=1e-9)


# --- Worked by hand, as fluids on the links of a switch ------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "later", "ends_by_hand"),
    [
        # Alone, 2 x 3/4 of 4 GiB at 100 GB/s: 64.4 ms. On the same ports, together: twice that.
        ((0, 1, 2, 3), (0, 1, 2, 3), 0.0, (0.12884901888, 0.12884901888)),
        ((0, 1, 2, 3), (2, 3, 4, 5), 0.0, (0.12884901888, 0.12884901888)),
        # For 10 ms alone, then shared until the first is through, 10 ms before the second.
        ((0, 1, 2, 3), (3, 2, 1, 0), 0.01, (0.11884901888, 0.12884901888)),
        ((0, 1, 2, 3), (4, 5, 6, 7), 0.0, (0.06442450944, 0.06442450944)),
        # 2 x 7/8 of 4 GiB meet 2 x 1/2 of 4 GiB after 20 ms: 42.9 ms shared take 85.9 ms.
        (tuple(range(8)), (0, 1), 0.02, (0.11811160064, 0.10589934592)),
    ],
)
def test_ring_all_reduces_on_a_switch_share_its_links(first, second, later, ends_by_hand):
    """Max-min fair shares of the adapters' links; software overheads are the last 0.2 %."""
    size = 4 * GIB
    hardware = network_hardware(
        AstraNetwork(("Switch",), (8,), (100e9 / GIB,), (0.0,)), uniform_system(["ring"])
    )
    traces = ranks_of(
        8, ("a", ALL_REDUCE, size, first, 0.0), ("b", ALL_REDUCE, size, second, later)
    )
    found = ends(traces, hardware)
    assert (found["a"], found["b"]) == pytest.approx(ends_by_hand, rel=2e-3)


# --- Properties ----------------------------------------------------------------------------

programs = st.lists(
    st.tuples(
        st.sampled_from([ALL_REDUCE, ALL_GATHER, ALL_TO_ALL]),
        st.integers(1, 28).map(lambda bits: 2**bits),
        st.sampled_from(
            [
                range(16),
                range(8),
                range(8, 16),
                (0, 8),
                (1, 9),
                (0, 1),
                (4, 5, 6, 7),
                range(0, 16, 2),
            ]
        ),
        st.sampled_from([0.0, 1e-5, 3e-4]),
    ),
    min_size=1,
    max_size=6,
)


def traces_of(program):
    return ranks_of(16, *((f"c{i}", *operation) for i, operation in enumerate(program)))


@settings(max_examples=cases(40))
@given(program=programs)
def test_never_faster_than_alone_and_never_more_than_all_of_a_port(program, h100):
    traces = traces_of(program)
    free, shared = (ends(traces, h100, contention) for contention in (False, True))
    assert all(shared[name] >= free[name] for name in free)
    # A port is never asked for more than it has: all that passes it has passed by its end.
    for rank in range(16):
        for level in range(2):
            busy, last, first = 0.0, 0.0, np.inf
            for number, (kind, size, members, before) in enumerate(program):
                if rank not in members:
                    continue
                own = HardwareCosts(h100, contention=True).occupancy(
                    kind, np.array([size]), tuple(members)
                )[0][0, level]
                busy += own
                if own:
                    last, first = max(last, shared[f"c{number}"]), min(first, before)
            assert last - min(first, last) >= busy * (1 - 1e-6)


@settings(max_examples=cases(40))
@given(program=programs)
def test_symmetric_ranks_are_run_once_with_the_same_result(program, h100):
    traces = traces_of(program)
    once, every = (ends(traces, h100, symmetry=symmetry) for symmetry in (True, False))
    assert once.keys() == every.keys()
    for name, end in once.items():
        assert end == pytest.approx(every[name], rel=1e-7)


@settings(max_examples=cases(40))
@given(program=programs)
def test_one_after_another_takes_exactly_the_times_of_today(program, h100):
    """Where nothing overlaps, contention changes no bit."""
    builders = [TraceBuilder() for _ in range(16)]
    before = [[] for _ in range(16)]

    def add(rank, name, kind, size, group=""):
        return builders[rank].add(
            name, COLLECTIVE, collective=kind, communication_size=size, group=group,
            data=before[rank],
        )  # fmt: skip

    for number, (kind, size, members, work) in enumerate(program):
        name = f"c{number}"
        for rank, builder in enumerate(builders):
            met = add(rank, "all", ALL_REDUCE, 4)
            before[rank] = [builder.add("work", COMPUTE, duration=work, data=[met])]
            if rank in members:
                before[rank] = [add(rank, name, kind, size, name)]
    groups = {f"c{number}": tuple(operation[2]) for number, operation in enumerate(program)}
    traces = TraceSet(tuple(builder.build() for builder in builders), groups)
    free, shared = (
        simulate(traces, HardwareCosts(h100, contention=contention)) for contention in (False, True)
    )
    for rank in range(16):
        assert np.array_equal(free.starts(rank), shared.starts(rank))
        assert np.array_equal(free.ends(rank), shared.ends(rank))
    summary = shared.summary()
    assert summary.pop("contention") == "max-min fair"
    assert summary == free.summary()


def test_a_projected_step_shares_ports_the_same_on_every_rank(h100):
    """Tensor, pipeline and data groups at once, with messages: run once or on every rank."""
    model = load_model("llama-3.1-8b")
    strategy = strategies_from_rows(
        model,
        16,
        [
            {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4,
             "micro_batch_size": 1, "global_batch_size": 16, "sequence_length": 4096}
        ],
    )  # fmt: skip
    traces = projected_traces(projected_workload(model, strategy, h100))
    costs = HardwareCosts(h100, contention=True)
    once, every = (simulate(traces, costs, symmetry=symmetry) for symmetry in (True, False))
    assert len(once.classes) < len(every.classes) == 16
    np.testing.assert_allclose(once.wall_time, every.wall_time, rtol=1e-7)
    assert once.wall_time.max() >= simulate(traces, HardwareCosts(h100)).wall_time.max()


def test_half_of_the_bandwidth_is_what_two_have(h100):
    """Two alike take as long as one alone on ports of half the bandwidth, latencies aside."""
    levels = tuple(replace(level, bandwidth=level.bandwidth / 2) for level in h100.system.network)
    slow = replace(h100, system=replace(h100.system, network=levels))
    traces = ranks_of(
        16, ("a", ALL_TO_ALL, GIB, range(16), 0.0), ("b", ALL_TO_ALL, GIB, range(16)[::-1], 0.0)
    )
    one = ranks_of(16, ("a", ALL_TO_ALL, GIB, range(16), 0.0))
    assert ends(traces, h100)["a"] == pytest.approx(ends(one, slow)["a"], rel=0.02)


def test_hash_order_knows_no_contention(h100):
    traces = ranks_of(2, ("a", ALL_REDUCE, MIB, range(2), 0.0))
    with pytest.raises(DataError, match="knows no contention"):
        simulate(traces, HardwareCosts(h100, contention=True), issue_order="hash")
