"""Exports for the real ASTRA-sim: files that it reads, and that our own reader reads alike."""

from __future__ import annotations

import json
import shlex
from itertools import permutations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError, HardwareError
from perfmodel.base.units import GIB, format_time
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.workloads.convert.synthetic import dependent_compute, repeated_collectives
from perfmodel.workloads.export.astra_sim import (
    astra_export,
    astra_network,
    astra_system,
    command_lines,
    in_two_dimensions,
    peak_rate,
    write_astra_export,
)
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.formats.astra_files import read_network, read_system
from perfmodel.workloads.formats.astra_machine import AstraNetwork
from perfmodel.workloads.formats.chakra.files import read_traces
from perfmodel.workloads.formats.chakra.schema import messages
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.twins.astra.costs import AstraCosts, network_hardware
from perfmodel.workloads.twins.astra.versions import VERSIONS
from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.traces import stage_traces
from tests.workloads.formats.chakra.made import parts_of

DGX = load_hardware("dgx-h100")


def machines():
    return [load_hardware(name) for name in list_hardware() if not name.startswith("chip-")]


def test_a_node_and_its_adapters():
    network = astra_network(DGX, 32)
    inner, outer = DGX.system.network
    assert network.topology == ("Switch", "Switch")
    assert network.npus_count == (8, 4)
    # Bandwidth per device and direction in GiB/s, half of the latency for each of two hops in ns.
    assert network.bandwidth_gib_per_second == pytest.approx((450e9 / 2**30, 50e9 / 2**30))
    assert network.latency_nanoseconds == pytest.approx(
        (inner.latency / 2 * 1e9, outer.latency / 2 * 1e9)
    )


@pytest.mark.parametrize(
    ("ranks", "counts"), [(4, (4,)), (12, (6, 2)), (11, (11,)), (30, (6, 5)), (2, (2,))]
)
def test_dimensions_multiply_to_the_ranks_where_nodes_are_not_full(ranks, counts):
    assert astra_network(DGX, ranks).npus_count == counts


def test_every_profile_has_a_network_for_all_its_devices_and_for_some():
    for hardware in machines():
        bounded = int(np.prod([level.size or 2 for level in hardware.system.network]))
        for ranks in {2, 4, hardware.system.network[0].size or 6, min(bounded, 4096)}:
            network = astra_network(hardware, ranks)
            assert network.devices == ranks, hardware.name
            assert set(network.topology) <= {"Ring", "FullyConnected", "Switch"}


def test_a_full_level_comes_back_as_the_profile_has_it():
    """`network_hardware` says what a device of ASTRA-sim's files has: links, hops and rates."""
    for hardware in machines():
        level = hardware.system.network[0]
        if not level.size or level.topology.startswith("torus"):
            continue
        network = astra_network(hardware, level.size)
        system = astra_system(hardware, network)
        back = network_hardware(network, system)
        found = back.system.network[0]
        assert found.topology == level.topology, hardware.name
        assert found.bandwidth == pytest.approx(level.bandwidth / level.oversubscription)
        assert found.latency == pytest.approx(level.latency)
        assert back.device.memory.bandwidth == pytest.approx(hardware.device.memory.bandwidth)
        assert system.peak_performance_teraflops * 1e12 == pytest.approx(peak_rate(hardware))


def test_a_torus_is_a_ring_for_each_axis():
    pod = load_hardware("tpu-v5p-pod")
    network = astra_network(pod, 64)
    assert network.topology == ("Ring",) * 3
    assert network.npus_count == (4, 4, 4)
    six_links = pod.system.network[0].bandwidth / 6 / GIB
    assert network.bandwidth_gib_per_second == pytest.approx((six_links,) * 3)
    # Of an axis of 16, two neighbours share one link, not both.
    assert astra_network(pod, 2).bandwidth_gib_per_second == pytest.approx((six_links,))


def test_links_of_a_full_connection_are_those_of_all_its_devices():
    hardware = load_hardware("mi300x-server")
    whole, half = astra_network(hardware, 8), astra_network(hardware, 4)
    assert half.bandwidth_gib_per_second == pytest.approx(whole.bandwidth_gib_per_second)
    assert astra_system(hardware, whole).all_reduce_implementation == ("direct",)


def test_uplinks_leave_their_share():
    narrow = DGX.with_values({"system.network.1.oversubscription": 2.0})
    assert astra_network(narrow, 16).bandwidth_gib_per_second[1] == pytest.approx(25e9 / GIB)


@pytest.mark.parametrize(
    ("change", "ranks", "words"),
    [
        ({}, 1, "at least two devices, not 1"),
        ({"system.network.1.size": 2}, 32, "32 ranks, but hardware profile 'dgx-h100' has 16"),
        ({"system.network.1.size": 2}, 9, "9 ranks do not come out on levels of at most 8 x 2"),
        ({"system.network.0.topology": "mesh-2d"}, 8, "level 'nvlink' is a mesh-2d; ASTRA-sim"),
    ],
)
def test_networks_that_astra_sim_cannot_have(change, ranks, words):
    with pytest.raises(HardwareError, match=words):
        astra_network(DGX.with_values(change), ranks)


@pytest.mark.parametrize("name", ["Switch", "FullyConnected"])
def test_messages_take_as_long_on_two_dimensions(name):
    one = AstraNetwork((name,), (12,), (50.0,), (333.0,))
    two = in_two_dimensions(one)
    assert two is not None
    assert two.npus_count == (4, 3)
    pairs = np.array(list(permutations(range(12), 2)))
    sizes = np.full(len(pairs), 12345)
    times = [
        AstraCosts(network, astra_system(DGX, network)).message_times(*pairs.T, sizes)
        for network in (one, two)
    ]
    assert times[0].tolist() == times[1].tolist()


def test_rings_and_prime_numbers_of_devices_stay():
    assert in_two_dimensions(AstraNetwork(("Ring",), (8,), (50.0,), (333.0,))) is None
    assert in_two_dimensions(AstraNetwork(("Switch",), (7,), (50.0,), (333.0,))) is None


def test_the_peak_is_that_of_a_precision():
    assert peak_rate(DGX) == DGX.device.peak("bf16")
    assert peak_rate(DGX, "fp8") == DGX.device.peak("fp8")
    old = load_hardware("dgx-1-v100")
    assert "bf16" not in old.device.peak_flops
    assert peak_rate(old) == old.device.peak("fp16")
    with pytest.raises(HardwareError, match="no matrix rate"):
        peak_rate(old, "fp8")


PROJECTIONS = {
    "tensor": {"tensor_parallel": 4, "data_parallel": 2},
    "pipeline": {"pipeline_parallel": 4, "data_parallel": 2},
    "ring": {"context_parallel": 4, "zero_stage": 2},
    "exchange": {"context_parallel": 2, "context_parallel_kind": "all_to_all"},
}
versions = pytest.mark.parametrize("name", VERSIONS)


@pytest.fixture
def projected(small_workload):
    """Return a function that makes the traces of a case, by layers."""

    def make(case, **options):
        workload = small_workload("llama", micro_batches=2, **PROJECTIONS[case])
        return projected_traces(workload, granularity="layer", **options)

    return make


def nodes_of(path):
    """Return the messages of a file as ASTRA-sim's feeder reads them: each behind its length."""
    return [messages().node.FromString(part) for part in parts_of(path.read_bytes())[1:]]


@versions
@pytest.mark.parametrize("case", PROJECTIONS)
def test_files_say_what_a_version_reads_and_run_as_the_traces_do(case, name, projected, tmp_path):
    traces = projected(case, serial_communication=True)
    export = astra_export(traces, DGX, f"astra-sim@{name}")
    paths = write_astra_export(export, tmp_path / "t")
    assert all(path.is_file() for path in paths)
    assert json.loads((tmp_path / "t.memory.json").read_text()) == {
        "memory-type": "NO_MEMORY_EXPANSION"
    }
    network, system = (
        read_network(tmp_path / "t.network.yml"),
        read_system(tmp_path / "t.system.json"),
    )
    assert (network, system) == (export.network, export.system)
    assert network.devices == traces.devices
    hosts = 0
    for node in nodes_of(tmp_path / "t.0.et"):
        stated = {attribute.name: attribute for attribute in node.attr}
        for direction in ("inputs", "outputs"):
            assert not stated[direction].ListFields()[1:]  # a name and no value
        assert stated.keys().isdisjoint({"duration_seconds", "start_time_seconds", "lane"})
        hosts += stated["is_cpu_op"].bool_val
        if node.type == 4 and not stated["is_cpu_op"].bool_val:
            assert stated["num_ops"].int64_val > 0
            assert stated["tensor_size"].uint64_val > 0
    assert (hosts > 0) == (VERSIONS[name].counts_host and (traces.traces[0].on_cpu == 1).any())
    read = read_traces(tmp_path / "t")
    results = [
        simulate(some, AstraCosts(network, system, version=export.version))
        for some in (export.traces, read)
    ]
    assert (results[0].wall_time == results[1].wall_time).all()
    assert results[0].wall_time.max() > 0
    for before, after in zip(export.traces.traces, read.traces, strict=True):
        assert (before.duration == after.duration).all()
        assert list(before.names) == list(after.names)


def test_host_time_is_kept_or_left_out_and_said(projected):
    traces = projected("tensor", serial_communication=True)
    hosts = [trace.duration[trace.on_cpu == 1].sum() for trace in traces.traces]
    old, new = (astra_export(traces, DGX, f"astra-sim@{name}") for name in ("af2492b", "main"))
    assert f"host: {format_time(max(hosts))} of each rank;" in " ".join(old.notes)
    assert "counts it as exposed communication too" in " ".join(old.notes)
    assert "left out, since astra-sim@main loses its statistics" in " ".join(new.notes)
    assert all((trace.on_cpu == 0).all() for trace in new.traces.traces)
    assert min(hosts) > 0.009


def test_main_gets_two_dimensions_where_one_would_end_in_a_crash(projected):
    traces = projected("tensor", serial_communication=True)
    old, new = (astra_export(traces, DGX, f"astra-sim@{name}") for name in ("af2492b", "main"))
    assert old.network.npus_count == (8,)
    assert new.network.npus_count == (4, 2)
    assert new.system.all_reduce_implementation == ("ring", "ring")
    assert any("written as 4 x 2" in note for note in new.notes)
    assert any("Congestion_Aware takes one dimension" in note for note in new.notes)
    rings = DGX.with_values({"system.network.0.topology": "ring"})
    ring = astra_export(traces, rings, "astra-sim@main")
    assert ring.network.topology == ("Ring",)
    assert any("134 or 139 when all is printed" in note for note in ring.notes)


def test_durations_are_replayed_where_all_are_stated():
    timed = astra_export(dependent_compute(2, 2, duration=1e-3), DGX)
    assert not timed.system.roofline_enabled
    priced = astra_export(dependent_compute(2, 2, duration=1e-3), DGX, roofline=True)
    wall = [
        simulate(one.traces, AstraCosts(one.network, one.system)).wall_time.max()
        for one in (timed, priced)
    ]
    assert wall == pytest.approx([2e-3, 2e-3])
    stage = astra_export(stage_traces(StageArguments(data_parallel=2, layers=2)), DGX)
    assert stage.system.roofline_enabled


def test_stage_keeps_its_tensors(tmp_path):
    traces = stage_traces(StageArguments(data_parallel=2, tensor_parallel=2, layers=2))
    export = astra_export(traces, DGX)
    write_astra_export(export, tmp_path / "s")
    read = read_traces(tmp_path / "s")
    for before, after in zip(traces.traces, read.traces, strict=True):
        assert set(after.tensors) == set(before.tensors)
        assert after.identifiers.tolist() == before.identifiers.tolist()
        assert (after.num_ops == before.num_ops).all()


def test_command_lines_name_every_file(tmp_path):
    traces = repeated_collectives(16, "all_reduce", 2**20, 1, [range(8), range(8, 16)])
    export = astra_export(traces, DGX, "astra-sim@af2492b")
    prefix = tmp_path / "with space" / "t"
    prefix.parent.mkdir()
    written = {str(path) for path in write_astra_export(export, prefix)[16:]}
    real, ours = map(shlex.split, command_lines(export, prefix))
    assert real[0] == "AstraSim_Analytical_Congestion_Unaware"
    given = dict(word.removeprefix("--").split("=", 1) for word in real[1:])
    assert given.pop("workload-configuration") == str(prefix)
    assert set(given.values()) == written
    assert set(given) == {
        f"{name}-configuration" for name in ("comm-group", "system", "network", "remote-memory")
    }
    assert ours[:3] == ["perfmodel", "simulate", str(prefix)]
    assert ours[-2:] == ["--simulator", "astra-sim@af2492b"]
    alone = astra_export(repeated_collectives(16, "all_reduce", 2**20, 1), DGX)
    assert "comm-group" not in command_lines(alone, "t")[0]


def test_all_files_are_written_or_none(tmp_path):
    export = astra_export(repeated_collectives(4, "all_reduce", 8, 1), DGX)
    (tmp_path / "t.memory.json").mkdir()
    with pytest.raises(DataError, match=r"t\.memory\.json"):
        write_astra_export(export, tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["t.memory.json"]


def test_what_no_version_runs_is_refused(tmp_path):
    groups = repeated_collectives(4, "all_reduce", 8, 1, [range(2), range(2, 4)])
    with pytest.raises(HardwareError, match=r"no version 'may'.*af2492b or astra-sim@main"):
        astra_export(groups, DGX, "astra-sim@may")
    with pytest.raises(HardwareError, match="at least two devices"):
        astra_export(repeated_collectives(1, "all_reduce", 8, 1), DGX)
    with pytest.raises(DataError, match="reads no communicator groups from a path with 'empty'"):
        write_astra_export(astra_export(groups, DGX), tmp_path / "empty" / "t")
    with pytest.raises(
        FormatError, match=r"node 0 .* comes first and takes less than a nanosecond"
    ):
        astra_export(dependent_compute(2, 2, 10, 10), DGX, roofline=True)
    assert not list(tmp_path.iterdir())


def test_names_of_groups_are_numbers_for_main(projected):
    traces = projected("tensor", numbered_groups=False)
    with pytest.raises(FormatError, match=r"'data 0': astra-sim@main reads names .* as numbers"):
        astra_export(traces, DGX, "astra-sim@main")
    assert "tensor 0" in astra_export(traces, DGX, "astra-sim@af2492b").traces.groups
