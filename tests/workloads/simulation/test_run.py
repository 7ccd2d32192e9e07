"""Execution traces run as ASTRA-sim runs them: exact figures, rules, symmetry.

Figures marked RUN come from runs of ASTRA-sim af2492b, congestion-unaware.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.result import BY_COLLECTIVE, FIGURES
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.amount import cases
from tests.workloads.simulation.made import (
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    MIB,
    REDUCE_SCATTER,
    SUM,
    built,
    micros,
    pipeline,
    reduce_of,
    refused,
    ring,
)
from tests.workloads.twins.astra.networks import simulate_collective


def test_messages_hold_the_sender_until_they_arrive_and_the_receiver_not_at_all():
    result = simulate(pipeline(), ring())
    # RUN, case 'pipe'; a receive waits from the beginning.
    assert result.ticks("wall_time") == (1056379, 2112758, 3169137, 4169137)
    assert result.ticks("exposed_communication") == (56379, 1112758, 2169137, 3169137)
    assert result.ticks("communication_time") == (56379, 1112758, 2169137, 3169137)
    assert result.ticks("gpu_time") == (1_000_000,) * 4
    assert len(result.classes) == 4


def test_ready_nodes_begin_in_order_of_identifier():
    # RUN, case 'chain': identifiers out of file order, a control parent, no duration.
    builder = TraceBuilder()
    micros(builder, "late", 7, identifier=5, data=[3])
    micros(builder, "comp", 100, identifier=3)
    reduce_of(builder, "C4", identifier=4, data=[3])
    micros(builder, "after", 50, identifier=9, data=[4], control=[5])
    micros(builder, "zero", 0, identifier=7, data=[3])
    result = simulate(TraceSet((builder.build(),) * 4), ring())
    assert result.ticks("wall_time") == (183829,) * 4
    assert result.ticks("exposed_communication") == (26828,) * 4
    assert result.ticks("gpu_time") == (157001,) * 4
    assert result.ticks("communication_time") == (33829,) * 4
    nanoseconds = np.rint(result.starts(3) * 1e9).astype(int)
    assert nanoseconds.tolist() == [100_000, 0, 100_000, 133_829, 107_000]


def test_host_device_and_communication_run_beside_each_other():
    # RUN, case 'types'.
    builder = TraceBuilder()
    micros(builder, "comp", 100, identifier=3, on_cpu=0)
    reduce_of(builder, "C4", identifier=4, data=[3], on_cpu=0)
    micros(builder, "cpu", 50, identifier=9, data=[3], on_cpu=1)
    micros(builder, "gpu", 60, identifier=10, data=[3])
    result = simulate(TraceSet((builder.build(),) * 4), ring())
    assert result.ticks("wall_time")[0] == result.ticks("gpu_time")[0] == 160_000
    assert result.ticks("exposed_communication")[0] == 0
    assert result.ticks("communication_time")[0] == 33_829
    assert result.ticks("cpu_time")[0] == 50_000


def test_groups_and_dimensions_of_the_reference_runs():
    network = AstraNetwork(("Ring", "Switch"), (4, 2), (50.0, 25.0), (500.0, 700.0))

    def wall(algorithms, traces, groups):
        system = uniform_system(algorithms, preferred_dataset_splits=2)
        return set(
            simulate(TraceSet(traces, groups), AstraCosts(network, system)).ticks("wall_time")
        )

    groups = {"a0": (0, 1, 2, 3), "a1": (4, 5, 6, 7)}
    groups |= {f"b{rank}": (rank, rank + 4) for rank in range(4)}
    traces = []
    for rank in range(8):
        builder = TraceBuilder()
        first = reduce_of(builder, "C1", 4 * MIB, group=f"a{rank // 4}")
        second = reduce_of(builder, "C2", MIB, ALL_GATHER, group=f"b{rank % 4}", data=[first])
        reduce_of(builder, "C3", MIB, ALL_TO_ALL, data=[second])
        traces.append(builder.build())
    assert wall(["ring", "ring"], tuple(traces), groups) == {217725}  # RUN, case 'groups'

    builder = TraceBuilder()
    first = reduce_of(builder, "C1", 4 * MIB, involved=[True, False])
    second = reduce_of(builder, "C2", 4 * MIB, involved=[False, True], data=[first])
    reduce_of(builder, "C3", 4 * MIB, REDUCE_SCATTER, involved=[True, True], data=[second])
    dims = (builder.build(),) * 8
    assert wall(["ring", "halvingDoubling"], dims, {}) == {369855}  # RUN, case 'dims'


def test_all_reduce_of_nothing_sends_a_byte_per_device_and_chunk():
    # RUN: 4 devices in a ring, 3070 ns (the text converter writes such nodes for NONE).
    builder = TraceBuilder()
    reduce_of(builder, "none", size=0)
    assert simulate(TraceSet((builder.build(),) * 4), ring()).ticks("wall_time")[0] == 3070


def test_roofline_times_and_utilizations():
    builder = TraceBuilder()
    builder.add("heavy", COMPUTE, num_ops=9 * 10**12, tensor_size=10**9)  # 10 ms at 900 TFLOP/s
    builder.add("light", COMPUTE, num_ops=10**9, tensor_size=16 * 10**9)  # 10 ms at 1600 GB/s
    builder.add("skipped", COMPUTE, num_ops=10**9, tensor_size=0)
    builder.add("no operations", COMPUTE, num_ops=0, tensor_size=1600)  # 1 ns
    costs = ring(roofline_enabled=True, peak_performance_teraflops=900.0)
    result = simulate(TraceSet((builder.build(),) * 4), costs)
    assert result.ticks("gpu_time")[0] == 20_000_001
    total = 20_000_002  # one more, as in Statistics.cc
    assert result.compute_bound_fraction[0] == pytest.approx(10_000_000 / total)
    compute = (1.0 * 10_000_000 + 10**11 / 900e12 * 10_000_000) / total
    assert result.compute_utilization[0] == pytest.approx(compute)
    memory = (10**11 / 1600e9 * 10_000_000 + 10_000_001) / total
    assert result.memory_utilization[0] == pytest.approx(memory)
    intensity = (9000 * 10_000_000 + 0.0625 * 10_000_000) / total
    assert result.operation_intensity[0] == pytest.approx(intensity)


def test_without_roofline_durations_are_replayed_and_utilizations_unknown():
    builder = TraceBuilder()
    builder.add("work", COMPUTE, num_ops=10, tensor_size=10, duration=3e-6)
    builder.add("host", COMPUTE, on_cpu=1, duration=9e-6)
    result = simulate(TraceSet((builder.build(),) * 4), ring())
    assert result.ticks("gpu_time")[0] == 3000
    assert result.ticks("cpu_time")[0] == result.ticks("wall_time")[0] == 9000
    assert result.ticks("exposed_communication")[0] == 6000
    assert np.isnan(result.compute_utilization).all()
    assert result.summary()["compute_utilization"] is None


def test_members_of_a_ring_end_one_by_one_after_the_last_has_begun():
    """Sends are one-sided: who waited is done before the late member's own sends come round."""
    traces = []
    for late in (0, 0, 30, 0):
        builder = TraceBuilder()
        work = micros(builder, "work", 1 + late)
        reduce_of(builder, "first", data=[work])
        reduce_of(builder, "second", data=[work])
        traces.append(builder.build())
    result = simulate(TraceSet(tuple(traces)), ring())
    alone = 33_829  # where all begin together
    walls = result.ticks("wall_time")
    # The late member's data go round once more than it takes itself.
    assert walls[2] == max(walls) == 31_000 + 2 * alone
    assert walls == (87_894, 93_276, 98_658, 82_512)
    assert result.ticks("communication_time") == tuple(
        wall - (31_000 if rank == 2 else 1000) for rank, wall in enumerate(walls)
    )
    assert len(result.classes) == 4


def test_groups_run_as_flat_rings_and_dimensions_as_slices():
    network = AstraNetwork(("Ring", "Switch"), (4, 2), (50.0, 25.0), (500.0, 700.0))
    system = uniform_system(["ring", "halvingDoubling"], preferred_dataset_splits=2)
    costs = AstraCosts(network, system)
    groups = {"a0": (0, 1, 2, 3), "a1": (4, 5, 6, 7), "pair": (0, 4)}

    def time(**settings):
        return simulate_collective(
            network, system, "all_reduce", 4 * MIB, **settings
        ).slowest_nanoseconds

    traces = []
    for rank in range(8):
        builder = TraceBuilder()
        reduce_of(builder, "group", 4 * MIB, group=f"a{rank // 4}")
        reduce_of(builder, "slice", 4 * MIB, involved=[False, True])
        reduce_of(builder, "all", 4 * MIB, involved=[True, True, True])
        if rank in (0, 4):
            reduce_of(builder, "pair", 4 * MIB, group="pair")
        traces.append(builder.build())
    result = simulate(TraceSet(tuple(traces), groups), costs)
    shared = time(members=(0, 1, 2, 3)) + time(involved_dimensions=(False, True)) + time()
    assert result.ticks("wall_time")[1] == shared
    assert result.ticks("wall_time")[0] == shared + time(members=(0, 4))
    assert result.representative.tolist() == [0, 1, 1, 1, 0, 1, 1, 1]


def test_broadcasts_replay_their_duration_without_waiting():
    traces = []
    for late in (0, 5):
        builder = TraceBuilder()
        work = micros(builder, "work", 1 + late)
        builder.add(
            "cast",
            COLLECTIVE,
            collective=BROADCAST,
            communication_size=8,
            duration=2e-6,
            data=[work],
        )
        traces.append(builder.build())
    result = simulate(TraceSet((traces[0], traces[1])), ring(2))
    assert result.ticks("wall_time") == (3000, 8000)


def test_metadata_takes_no_time_and_a_trace_may_begin_with_it():
    builder = TraceBuilder()
    first = builder.add("groups", METADATA)
    micros(builder, "work", 2, data=[first])
    assert simulate(TraceSet((builder.build(),) * 2), ring(2)).ticks("wall_time") == (2000, 2000)


def test_one_trace_alone_replays_its_communication():
    builder = TraceBuilder()
    work = micros(builder, "work", 10)
    reduce_of(builder, "sum", data=[work], duration=5e-6, group="unknown")
    builder.add("give", SEND, destination=7, data=[work], duration=4e-6)
    result = simulate(TraceSet((builder.build(),)), ring())
    assert result.ticks("wall_time") == (19_000,)


def test_peak_memory_counts_inputs_from_the_beginning_and_outputs_until_last_read():
    builder = TraceBuilder()
    first = micros(builder, "a", 1, inputs=[("weights", 10)], outputs=[("x", 100)])
    second = micros(builder, "b", 1, data=[first], inputs=[("x", 100)], outputs=[("y", 40)])
    micros(builder, "c", 1, data=[second], inputs=[("y", 40)], outputs=[("z", 7)])
    traces = TraceSet((builder.build(),) * 2)
    # a: weights and x; b: x and y (weights were read for the last time by a); c: y and z
    assert simulate(traces, ring(2)).peak_memory.tolist() == [140.0, 140.0]
    assert np.isnan(simulate(traces, ring(2), memory=False).peak_memory).all()


@st.composite
def grids(draw):
    """Data × tensor × pipeline ranks with messages; sometimes one rank is different."""
    data, tensor, stages = draw(st.tuples(*[st.integers(1, 2)] * 2, st.integers(1, 3)))
    if data * tensor * stages < 2:
        data = 2
    layers = draw(st.integers(1, 3))
    odd = draw(st.none() | st.integers(0, data * tensor * stages - 1))
    groups, traces = {}, []

    def rank_of(d, t, p):
        return t + tensor * (d + data * p)

    for p in range(stages):
        for d in range(data):
            groups[f"t{d}.{p}"] = tuple(rank_of(d, t, p) for t in range(tensor))
        for t in range(tensor):
            groups[f"d{t}.{p}"] = tuple(rank_of(d, t, p) for d in range(data))
    base = draw(st.lists(st.integers(1, 40), min_size=2, max_size=2))
    for p in range(stages):
        for d in range(data):
            for t in range(tensor):
                rank = rank_of(d, t, p)
                builder = TraceBuilder()
                slow = 7 if rank == odd else 0
                last = []
                if p:
                    source = rank_of(d, t, p - 1)
                    last = [builder.add("get", RECEIVE, source=source, communication_size=MIB)]
                for layer in range(layers):
                    work = micros(
                        builder, "f", base[0] + slow, data=last, outputs=[(f"x{layer}", 5)]
                    )
                    last = [
                        reduce_of(builder, "g", kind=ALL_GATHER, group=f"t{d}.{p}", data=[work])
                    ]
                    micros(builder, "w", base[1], data=last, inputs=[(f"x{layer}", 5)])
                    reduce_of(builder, "r", 5 * MIB, group=f"d{t}.{p}", data=[work])
                if p < stages - 1:
                    target = rank_of(d, t, p + 1)
                    builder.add("give", SEND, destination=target, communication_size=MIB, data=last)
                traces.append(builder.build())
    return TraceSet(tuple(traces), groups), odd


@settings(max_examples=cases(25))
@given(grids())
def test_one_rank_of_a_class_stands_for_all(grid):
    traces, odd = grid
    # No distance matters in a fully connected network.
    network = AstraNetwork(("FullyConnected",), (traces.devices,), (50.0,), (500.0,))
    costs = AstraCosts(network, uniform_system(["direct"]))
    full = simulate(traces, costs, symmetry=False)
    few = simulate(traces, costs)
    for name in (figure.name for figure in FIGURES):
        np.testing.assert_array_equal(getattr(full, name), getattr(few, name))
    for name in (figure.name for figure in BY_COLLECTIVE):
        np.testing.assert_array_equal(full.to_dataset()[name], few.to_dataset()[name])
    for rank in range(traces.devices):
        np.testing.assert_array_equal(full.starts(rank), few.starts(rank))
        np.testing.assert_array_equal(full.ends(rank), few.ends(rank))
    stages = len({len(trace.identifiers) * 2 + trace.kinds[0] for trace in traces.traces})
    if odd is None:
        assert len(few.classes) >= stages
        assert len(few.classes) <= 3
    assert full.nodes_run == traces.nodes


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
