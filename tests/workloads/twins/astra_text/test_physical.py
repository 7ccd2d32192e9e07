"""Text workloads on our own network model: limits known by hand, and how ASTRA-sim differs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError, HardwareError, StrategyError
from perfmodel.workloads.formats.astra_text import parse_astra_text
from perfmodel.workloads.twins.astra_text.comparison import compare_modes
from perfmodel.workloads.twins.astra_text.native import run_native
from perfmodel.workloads.twins.astra_text.physical import run_physical
from perfmodel.workloads.twins.astra_text.physical_network import PhysicalNetwork, views
from tests.amount import cases
from tests.workloads.twins.astra_text.networks import (
    CUBE,
    CUBE_SYSTEM,
    MIB,
    micro,
    network_of,
    ring,
    system_of,
    typed,
)

GIB = 2.0**30
DELAY = 10  # [ns], the default endpoint delay


def seconds(network, collective, size, algorithms=None, **settings):
    names = algorithms or "_".join(["ring"] * network.dimensions)
    return run_physical(micro(collective, size), network, system_of(names, **settings)).total_time


POLICIES = (
    *("DATA", "DATA_REORDER", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA"),
    *("HYBRID_DLRM 1", "HYBRID_DLRM_ENHANCED 1", "HYBRID_TRANSFORMER group: 4"),
    *("HYBRID_TRANSFORMER group: 2", "DISTRIBUTED_INFERENCE", "MICRO"),
)


@pytest.mark.parametrize("members", [2, 3, 8, 13])
def test_a_large_all_reduce_on_a_ring_takes_its_bytes_over_all_links(members):
    size = 2**32
    bytes_time = 2 * (members - 1) / members * size / (2 * 25 * GIB)
    assert seconds(ring(members), "ALLREDUCE", size) == pytest.approx(bytes_time, rel=2e-4)
    half = seconds(ring(members), "REDUCESCATTER", size)
    assert half == pytest.approx(bytes_time / 2, rel=2e-4)
    shard = size // members
    assert seconds(ring(members), "ALLGATHER", shard) == pytest.approx(half, rel=2e-4)


def test_bytes_and_hops_of_single_dimensions():
    # 1 MiB among 8: all-reduce 2 · 7/8 MiB.
    part = 2 * 7 / 8 * MIB / GIB
    hop = 510e-9
    mesh = network_of(("FullyConnected", 8, 7, 25.0))
    assert seconds(mesh, "ALLREDUCE", MIB) == pytest.approx(part / 175 + 2 * hop, abs=2e-9)
    switch = network_of(("Switch", 8, 1, 25.0))
    up_and_down = 1010e-9
    assert seconds(switch, "ALLREDUCE", MIB) == pytest.approx(part / 25 + 2 * up_and_down, abs=2e-9)
    exchange = seconds(switch, "ALLTOALL", MIB)
    assert exchange == pytest.approx(part / 2 / 25 + up_and_down, abs=2e-9)
    # On a ring of 8, an exchange goes 2 hops on average: 2 MiB over both links.
    around = seconds(ring(), "ALLTOALL", 64 * MIB)
    assert around == pytest.approx(64 * MIB * 2 / (50 * GIB), rel=2e-3)


def test_interfaces_and_routers_and_memory_count():
    plain = network_of(("Switch", 8, 1, 25.0))
    slower = replace(plain, nic_latency_nanoseconds=(30.0,), router_latency_nanoseconds=(15.0,))
    apart = seconds(slower, "ALLREDUCE", MIB) - seconds(plain, "ALLREDUCE", MIB)
    assert apart == pytest.approx(2 * 75e-9, abs=2e-9)
    bound = replace(plain, memory_bandwidth_gb_per_second=(2.0,), memory_scale=(1.0,))
    bytes_time = 2 * 7 / 8 * 64 * MIB / 2e9
    assert seconds(bound, "ALLREDUCE", 64 * MIB) == pytest.approx(bytes_time, rel=1e-3)
    wide = replace(bound, memory_bandwidth_gb_per_second=(1000.0,))
    assert seconds(wide, "ALLREDUCE", MIB) == seconds(plain, "ALLREDUCE", MIB)


def test_pieces_of_a_collective_are_on_different_dimensions_at_once():
    """Two rings of different speed: the slower carries 1/4 of the bytes and hides."""
    network = network_of(("Ring", 4, 2, 40.0), ("Switch", 4, 1, 25.0), latency=1.0)
    size = 2**30
    inner = 2 * 3 / 4 * size / (80 * GIB)
    outer = 2 * 3 / 16 * size / (25 * GIB)
    time = seconds(network, "ALLREDUCE", size, "ring_ring")
    assert max(inner, outer) <= time < 1.05 * max(inner, outer) < inner + outer


def test_rings_of_equal_length_are_a_torus_whose_dimensions_work_at_once():
    square = network_of(("Ring", 16, 2, 62.0), ("Ring", 16, 2, 62.0))
    assert [len(view.system.network) for view in views(square, system_of("ring_ring"))] == [2, 1]
    size = 2**32
    time = seconds(square, "ALLREDUCE", size, "ring_ring")
    assert time == pytest.approx(2 * 255 / 256 * size / (4 * 62 * GIB), rel=1e-2)
    row = PhysicalNetwork(square, system_of("ring_ring")).times(
        "all_reduce", np.array([float(size)]), [(16, 16)]
    )
    assert row.time[0] == pytest.approx(2 * 15 / 16 * size / (2 * 62 * GIB), rel=1e-2)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("passes", [1, 3])
def test_without_communication_both_modes_agree_to_the_nanosecond(policy, passes):
    workload = typed(policy, forward="NONE", gradient="NONE", weight="NONE")
    exact = run_native(workload, CUBE, CUBE_SYSTEM, passes=passes)
    ours = run_physical(workload, CUBE, CUBE_SYSTEM, passes=passes)
    assert round(ours.total_time * 1e9) == exact.total_ns
    assert (np.round(ours.pass_end * 1e9) == exact.pass_end_ns).all()
    assert (np.round(ours.compute_time * 1e9) == exact.compute_ns).all()
    assert not ours.communication_time.any()
    assert np.isnan(ours.collective_time).all()
    assert (ours.links == -1).all()


def test_a_ring_in_one_chunk_differs_from_the_exact_mode_by_small_terms_alone():
    found = compare_modes(micro("ALLREDUCE", MIB, 5), ring(4), system_of())
    assert found.native.total_ns == 32367  # RUN of ASTRA-sim 1.0: microAllReduce on ring4
    # 1.5 MiB at 50 GiB/s, 6 · 510 ns and the update; without the endpoint delay at the start.
    own = 1.5 * MIB / (50 * GIB) + 6 * 510e-9 + 5e-9
    assert found.physical.total_time == pytest.approx(own, abs=1e-9)
    assert 0 < found.native.total_ns * 1e-9 - own <= (DELAY + 6) * 1e-9
    assert found.reasons[2][0] == ("small_terms",)
    assert found.stopped == ""


@pytest.mark.parametrize("policy", POLICIES)
def test_computation_and_exposed_communication_make_the_total(policy):
    workload = typed(policy)
    ours = run_physical(workload, CUBE, CUBE_SYSTEM, passes=2)
    computing = ours.compute_time.sum()
    assert ours.total_time >= computing
    assert ours.exposed_communication + computing == pytest.approx(ours.total_time, rel=1e-12)
    # Beyond what the loop waited for layer by layer: its steps, 1 ns each, and the tail.
    assert ours.exposed_time.sum() <= ours.exposed_communication + 1e-12
    issued = ours.communication_time > 0
    assert issued.any()
    assert (ours.collective_time[issued] > 0).all()
    assert (ours.communication_time[issued] >= ours.collective_time[issued] - 1e-9).all()
    assert (issued <= (ours.links >= 0)).all()


def test_data_parallelism_hides_what_model_parallelism_waits_for():
    """Same bytes: gradients of DATA overlap the backward pass, MODEL's forward blocks."""
    network = ring(4, bandwidth=50.0)
    row = "100000 {f} 2000000  200000 NONE 0  300000 {w} 2000000 1"
    layers = " ".join(f"l{i} -1 " + row for i in range(4))
    blocking = parse_astra_text("MODEL 4 " + layers.format(f="ALLREDUCE", w="NONE"))
    hidden = parse_astra_text("DATA 4 " + layers.format(f="NONE", w="ALLREDUCE"))
    waits = run_physical(blocking, network, system_of())
    overlaps = run_physical(hidden, network, system_of())
    one = waits.collective_time[0, 0]
    assert one == pytest.approx(1.5 * 2e6 / (100 * GIB) + 6 * 510e-9)
    assert overlaps.collective_time[2, 0] == one
    assert waits.exposed_communication == pytest.approx(4 * one, abs=100e-9)
    assert waits.exposed_time[0] == pytest.approx(one, abs=3e-9)
    # DATA: of four all-reduces only that of the first layer is seen, after the last gradient.
    assert overlaps.exposed_communication == pytest.approx(one, abs=100e-9)
    assert overlaps.exposed_time[:2].sum() == 0


def test_collectives_that_share_links_go_one_after_another():
    two = "MICRO 1 sum -1 0 NONE 0 0 NONE 0 0 ALLREDUCE 1048576 0"
    once = run_physical(parse_astra_text(two), ring(), system_of())
    thrice = run_physical(parse_astra_text(two), ring(), system_of(), passes=3)
    assert thrice.total_time == pytest.approx(3 * once.total_time, abs=3e-9)
    assert thrice.collectives.tolist() == [3]
    # ASTRA-sim with three chunks in flight gives each the whole bandwidth.
    greedy = system_of(active_chunks_per_dimension=3)
    exact = run_native(parse_astra_text(two), ring(), greedy, passes=3)
    assert exact.total_ns * 1e-9 < 0.4 * thrice.total_time


def test_different_dimensions_share_no_links_but_halves_of_one_do():
    group_of_4 = typed("HYBRID_TRANSFORMER group: 4")
    apart = run_physical(group_of_4, CUBE, CUBE_SYSTEM)
    assert set(apart.links[:2].ravel()) != set(apart.links[2])
    group_of_2 = typed("HYBRID_TRANSFORMER group: 2")
    shared = run_physical(group_of_2, CUBE, CUBE_SYSTEM)
    assert len(set(shared.links.ravel())) == 1
    mesh = network_of(("FullyConnected", 8, 7, 25.0))
    own_links = run_physical(group_of_2, mesh, system_of("direct"))
    assert set(own_links.links[0]) != set(own_links.links[2])
    assert "shared_halves" in compare_modes(group_of_2, CUBE, CUBE_SYSTEM).run_reasons
    assert "shared_halves" not in compare_modes(group_of_2, mesh, system_of("direct")).run_reasons


def test_the_systems_policy_says_which_waiting_collective_is_next():
    """Three gradients wait behind the first: LIFO takes layer 0's before the others'."""
    row = "1 NONE 0  1 NONE 0  1 ALLREDUCE 1048576 1"
    workload = parse_astra_text("DATA 4 " + " ".join(f"l{i} -1 {row}" for i in range(4)))
    last_in = run_physical(workload, ring(), system_of(scheduling_policy="LIFO"))
    first_in = run_physical(workload, ring(), system_of(scheduling_policy="FIFO"))
    assert last_in.total_time == first_in.total_time
    one = last_in.collective_time[2, 0]
    waited = (last_in.communication_time[2] / one).round().tolist()
    assert waited == [2.0, 3.0, 4.0, 1.0]
    assert (first_in.communication_time[2] / one).round().tolist() == [4.0, 3.0, 2.0, 1.0]


def test_what_cannot_be_sent_takes_no_time():
    empty = typed("DATA")
    none = replace(
        empty, weight_gradient=replace(empty.weight_gradient, size=np.zeros(4, np.int64))
    )
    ours = run_physical(none, CUBE, CUBE_SYSTEM)
    assert ours.exposed_communication < 100e-9
    alone = network_of(("Ring", 1, 2, 25.0))
    assert run_physical(typed("DATA"), alone, system_of()).exposed_communication < 100e-9
    found = compare_modes(none, CUBE, CUBE_SYSTEM)
    assert found.native is None
    assert "0 bytes" in found.stopped
    assert np.isnan(found.ratio).all()


TOPOLOGIES = st.sampled_from(["Ring", "FullyConnected", "Switch"])
DIMENSION = st.tuples(TOPOLOGIES, st.integers(1, 6), st.integers(1, 3), st.floats(0.1, 100.0))


def usable(dimensions):
    """Dimensions with links for every peer."""
    return network_of(
        *(
            (kind, members, links * {"Ring": 2, "FullyConnected": members}.get(kind, 1), rate)
            for kind, members, links, rate in dimensions
        )
    )


@settings(max_examples=cases(25))
@given(
    st.lists(DIMENSION, min_size=1, max_size=3),
    st.sampled_from(["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL"]),
    st.integers(1, 2**26),
    st.integers(0, 2),
)
def test_more_bandwidth_less_latency_or_fewer_bytes_are_never_slower(
    dimensions, collective, size, which
):
    network = usable(dimensions)
    time = seconds(network, collective, size)
    which %= len(dimensions)
    rates = list(network.link_bandwidth_gib_per_second)
    rates[which] *= 2
    wider = replace(network, link_bandwidth_gib_per_second=tuple(rates))
    assert seconds(wider, collective, size) <= time + 1e-9
    nearer = replace(network, link_latency_nanoseconds=(100.0,) * network.dimensions)
    assert seconds(nearer, collective, size) <= time + 1e-9
    assert seconds(network, collective, max(size // 2, 1)) <= time + 1e-9


@settings(max_examples=cases(20))
@given(
    st.sampled_from(POLICIES),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.integers(1, 2),
    st.floats(1.0, 20.0),
)
def test_slower_links_never_end_a_run_sooner_than_its_computation(policy, kinds, passes, bandwidth):
    words = ("NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER")
    workload = typed(policy, 3, *(words[kind] for kind in kinds))
    network = network_of(("Ring", 4, 2, bandwidth), ("FullyConnected", 4, 3, 25.0))
    system = system_of("ring_ring")
    ours = run_physical(workload, network, system, passes=passes)
    assert ours.total_time >= ours.compute_time.sum()
    # Every link's collectives fit into the run, one after another.
    for links in set(ours.links[ours.links >= 0]):
        used = (ours.links == links) & (ours.communication_time > 0)
        assert ours.collective_time[used].sum() <= ours.total_time + 1e-9


def test_halves_of_a_ring_have_half_of_its_links_or_share_them():
    network = ring(8, latency=1.0)
    large = "1 ALLREDUCE 1073741824  1 NONE 0  1 ALLREDUCE 1073741824 1"
    workload = parse_astra_text(f"HYBRID_TRANSFORMER group: 4 1 l -1 {large}")
    found = compare_modes(workload, network, system_of())
    # Inner group of 4: a line, half of the links. Outer pairs, 4 apart: four of them share.
    inner = 1.5 * GIB / (25 * GIB)
    assert found.physical.collective_time[0, 0] == pytest.approx(inner, rel=1e-3)
    assert found.ratio[0, 0] == pytest.approx(2.0, rel=1e-2)
    assert found.ratio[2, 0] > 3
    assert all(found.reasons[phase][0] == ("split_ring",) for phase in (0, 2))


@pytest.mark.parametrize(
    ("workload", "network", "options", "error", "words"),
    [
        (typed("DATA"), ring(), {"passes": 0}, StrategyError, "passes is 0"),
        (typed("DATA"), ring(), {"passes": True}, StrategyError, "whole number"),
        (typed("DATA"), ring(), {"communication_scale": np.nan}, StrategyError, "communication"),
        (typed("DATA"), ring(), {"compute_scale": -1.0}, StrategyError, "compute scale"),
        (typed("HYBRID_TRANSFORMER group: 3"), ring(), {}, StrategyError, "group of 3"),
        (typed("DATA", weight="ALLREDUCEALLTOALL"), ring(), {}, FormatError, "ALLREDUCEALLTOALL"),
        (micro("ALLREDUCE", 2**62), ring(), {"communication_scale": 2.0}, FormatError, "62 bits"),
        (micro("ALLREDUCE", 2**60), ring(bandwidth=1e-9), {}, FormatError, "2^52 ns"),
        (
            typed("DATA"),
            network_of(*[("Switch", 2**15, 1, 1.0)] * 3),
            {},
            HardwareError,
            "35184372088832 devices",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(workload, network, options, error, words):
    names = "_".join(["ring"] * network.dimensions)
    with pytest.raises(error) as caught:
        run_physical(workload, network, system_of(names), **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scales_act_on_bytes_and_computation():
    workload = typed("DATA")
    plain = run_physical(workload, ring(), system_of())
    scaled = run_physical(workload, ring(), system_of(), communication_scale=2.0, compute_scale=3.0)
    twice = typed("DATA")
    twice = replace(
        twice, weight_gradient=replace(twice.weight_gradient, size=2 * twice.weight_gradient.size)
    )
    assert (
        scaled.collective_time[2] == run_physical(twice, ring(), system_of()).collective_time[2]
    ).all()
    assert scaled.compute_time == pytest.approx(3 * plain.compute_time)


def test_the_physical_answer_is_there_where_the_simulator_stops():
    """Fewer bytes than chunks: ASTRA-sim 1.0 would cut chunks of 0 bytes for ever."""
    found = compare_modes(micro("ALLREDUCE", 3), ring(), system_of(preferred_dataset_splits=4))
    assert found.native is None
    assert "preferred-dataset-splits" in found.stopped
    assert found.physical.total_time > 0
    assert found.reasons[2][0] == ()
    assert found.largest_differences() == []
