"""What a run says: figures with units, collectives by kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.hwprofiles import Hardware
from perfmodel.store.files import save_results
from perfmodel.workloads.formats.astra_machine import uniform_system
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.result import (
    BY_COLLECTIVE,
    FIGURES,
    covered,
    simulation_tracks,
    write_simulation,
)
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    RECEIVE,
    SEND,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.cli.workloads.test_simulate import step
from tests.workloads.simulation.made import (
    ALL_REDUCE,
    ALL_TO_ALL,
    MIB,
    NETWORK,
    REDUCE_SCATTER,
    built,
    four,
    pipeline,
    reduce_of,
    ring,
)
from tests.workloads.twins.astra.networks import simulate_collective


def test_dataset_names_units_of_everything():
    result = simulate(pipeline(), ring())
    dataset = result.to_dataset()
    for name, variable in dataset.variables.items():
        assert variable.attrs["long_name"], name
        assert "units" in variable.attrs or variable.dtype.kind == "U", name
    assert dataset.wall_time.values.tolist() == pytest.approx(
        [value * 1e-9 for value in result.ticks("wall_time")]
    )
    summary = result.summary()
    assert summary["ranks"] == 4
    assert summary["sent_count"] == 3
    assert summary["sent_bytes"] == 9_000_000
    assert summary["slowest_rank"] == 3
    assert summary["wall_time_nanoseconds"] == result.ticks("wall_time")[3]
    assert summary["collectives"] == {}


def test_collectives_are_added_up_by_kind():
    builder = TraceBuilder()
    reduce_of(builder, "a", 4 * MIB)
    reduce_of(builder, "b", MIB, kind=ALL_TO_ALL)
    reduce_of(builder, "c", MIB, kind=REDUCE_SCATTER)
    reduce_of(builder, "d", 2 * MIB)
    costs = ring()
    summary = simulate(TraceSet((builder.build(),) * 4), costs).summary()

    def seconds(name, size):
        time = simulate_collective(costs.network, costs.system, name, size)
        return time.slowest_nanoseconds * 1e-9

    reduces = summary["collectives"]["all_reduce"]
    assert (reduces["count"], reduces["bytes"]) == (8, 24 * MIB)
    # They take turns, but count from when they begin.
    assert reduces["time"] == pytest.approx(
        4 * (seconds("all_reduce", 4 * MIB) + seconds("all_reduce", 2 * MIB))
    )
    assert set(summary["collectives"]) == {"all_reduce", "all_to_all", "reduce_scatter"}


def exact(**settings):
    return AstraCosts(NETWORK, uniform_system(["ring"], **settings))


def rooflined():
    """1 TFLOP/s and 100 GB/s: 10 FLOP per byte at the ridge."""
    return exact(
        roofline_enabled=True,
        peak_performance_teraflops=1.0,
        local_memory_bandwidth_gb_per_second=100.0,
    )


def test_overlapping_times_count_once():
    start = np.array([5.0, 0.0, 2.0, 20.0, 21.0, 30.0])
    end = np.array([7.0, 3.0, 6.0, 25.0, 22.0, 30.0])
    assert covered(start, end) == 7.0 + 5.0
    assert covered(np.zeros(0), np.zeros(0)) == 0.0


def test_times_of_device_host_and_communication_are_unions_of_what_runs():
    # The collective (33829 ns) begins with the device's 10 us and outlasts it; the device is
    # idle until it ends, then works on. The host works 8 us beside the first.
    trace = built(
        ("a", COMPUTE, {"duration": 10e-6}),
        ("sum", COLLECTIVE, {"collective": ALL_REDUCE, "communication_size": MIB}),
        ("host", COMPUTE, {"duration": 8e-6, "on_cpu": 1}),
        ("b", COMPUTE, {"duration": 4e-6, "data": [0, 1]}),
    )
    result = simulate(four(trace), exact())
    time = simulate_collective(NETWORK, uniform_system(["ring"]), "all_reduce", MIB)
    assert time.slowest_nanoseconds == 33_829
    assert result.ticks("wall_time")[0] == 33_829 + 4_000
    assert result.ticks("gpu_time")[0] == 10_000 + 4_000
    assert result.ticks("communication_time")[0] == 33_829
    assert result.ticks("cpu_time")[0] == 8_000
    # Only 23829 ns of the collective have no computation beside them.
    assert result.ticks("exposed_communication")[0] == 33_829 - 10_000


def test_exposed_communication_counts_idle_time_too():
    # Rank 1 waits for a message and never computes; rank 0 computes all the time.
    give = built(
        ("work", COMPUTE, {"duration": 1e-3}),
        ("give", SEND, {"destination": 1, "communication_size": MIB, "data": [0]}),
    )
    get = built(("get", RECEIVE, {"source": 0, "communication_size": MIB}))
    idle = built(("work", COMPUTE, {"duration": 2e-3}))
    result = simulate(TraceSet((give, get, idle, idle)), exact())
    message = 20_031  # floor(500 + 2**20 B / (50 GiB/s))
    assert result.ticks("exposed_communication") == (message, 1_000_000 + message, 0, 0)
    # A receive counts as communication from when it waits.
    assert result.ticks("communication_time") == (message, 1_000_000 + message, 0, 0)


def test_shares_and_means_weight_nodes_by_time():
    trace = built(
        # 3 us at the peak: 30 FLOP/B, a third of the bandwidth.
        ("compute bound", COMPUTE, {"num_ops": 3_000_000, "tensor_size": 100_000}),
        # 1 us at full bandwidth: 2 FLOP/B, a fifth of the peak.
        ("memory bound", COMPUTE, {"num_ops": 200_000, "tensor_size": 100_000}),
    )
    result = simulate(four(trace), rooflined())
    total = 3_000 + 1_000 + 1
    assert result.ticks("gpu_time")[0] == 4_000
    assert result.compute_bound_fraction[0] == pytest.approx(3_000 / total, rel=1e-12)
    assert result.compute_utilization[0] == pytest.approx((3_000 + 0.2 * 1_000) / total)
    assert result.memory_utilization[0] == pytest.approx((3_000 / 3 + 1_000) / total)
    assert result.operation_intensity[0] == pytest.approx((30 * 3_000 + 2 * 1_000) / total)


def test_at_the_ridge_a_node_counts_as_compute_bound():
    trace = built(("ridge", COMPUTE, {"num_ops": 1_000_000, "tensor_size": 100_000}))
    result = simulate(four(trace), rooflined())
    assert result.compute_bound_fraction[0] == pytest.approx(1_000 / 1_001)
    assert result.memory_utilization[0] == pytest.approx(1_000 / 1_001)


def test_host_work_dilutes_means_in_astra_sim_and_not_on_hardware(h100):
    # Statistics.cc adds up CPU and GPU time alike.
    trace = built(
        ("work", COMPUTE, {"num_ops": 3_000_000, "tensor_size": 100_000}),
        ("host", COMPUTE, {"duration": 3e-6, "on_cpu": 1, "num_ops": 5, "tensor_size": 5}),
    )
    alone = built(("work", COMPUTE, {"num_ops": 3_000_000, "tensor_size": 100_000}))
    assert simulate(four(trace), rooflined()).compute_utilization[0] == pytest.approx(3_000 / 6_001)
    both, one = (simulate(four(item), HardwareCosts(h100)) for item in (trace, alone))
    for name in ("compute_utilization", "memory_utilization", "operation_intensity"):
        assert getattr(both, name)[0] == pytest.approx(getattr(one, name)[0])
    assert both.operation_intensity[0] == pytest.approx(30.0)


def test_peak_memory_is_the_largest_sum_of_living_tensors():
    # w (1000) lives from 0 to the end of b, which reads it last; x (200) from the start of a
    # to the end of b; y (30) from the start of b to the end of c; z (4), never read, for ever.
    trace = built(
        ("a", COMPUTE, {"inputs": [("w", 1000)], "outputs": [("x", 200)]}),
        ("b", COMPUTE, {"data": [0], "inputs": [("w", 1000), ("x", 200)], "outputs": [("y", 30)]}),
        ("c", COMPUTE, {"data": [1], "inputs": [("y", 30)], "outputs": [("z", 4)]}),
        ("d", COMPUTE, {"data": [2], "outputs": [("big", 2000)]}),
    )
    assert simulate(four(trace), exact()).peak_memory[0] == 4 + 2000
    without = built(
        ("a", COMPUTE, {"inputs": [("w", 1000)], "outputs": [("x", 200)]}),
        ("b", COMPUTE, {"data": [0], "inputs": [("w", 1000), ("x", 200)], "outputs": [("y", 30)]}),
    )
    assert simulate(four(without), exact()).peak_memory[0] == 1230


def test_sizes_counts_and_times_by_collective():
    trace = built(
        ("a", COLLECTIVE, {"collective": ALL_REDUCE, "communication_size": MIB}),
        ("b", COLLECTIVE, {"collective": ALL_REDUCE, "communication_size": MIB, "data": [0]}),
    )
    figures = simulate(four(trace), exact()).to_dataset().sel(collective="all_reduce")
    assert figures.collective_bytes.values.tolist() == [2.0 * MIB] * 4
    assert figures.collective_count.values.tolist() == [2] * 4
    assert figures.collective_time.values == pytest.approx([2 * 33_829e-9] * 4)


def test_nothing_to_report_is_nan_and_not_nought():
    trace = built(("work", COMPUTE, {"duration": 1e-6}))
    result = simulate(four(trace), exact())
    for name in (
        "compute_bound_fraction",
        "compute_utilization",
        "memory_utilization",
        "operation_intensity",
        "peak_memory",
    ):
        assert np.isnan(getattr(result, name)).all()
        assert result.summary()[name] is None


def test_a_stored_run_reads_back_as_it_was(tmp_path, h100):
    """Every variable has a name and units; SI units; values do not change."""
    import xarray

    trace = built(
        ("load", MEM_LOAD, {"tensor_size": 10**6}),
        ("work", COMPUTE, {"num_ops": 10**9, "tensor_size": 10**6, "inputs": [("x", 7)]}),
        ("sum", COLLECTIVE, {"collective": ALL_REDUCE, "communication_size": MIB, "data": [1]}),
    )
    path = tmp_path / "run.nc"
    dataset = simulate(four(trace), HardwareCosts(h100)).to_dataset()
    save_results(dataset, path)
    with xarray.open_dataset(path) as stored:
        names = {figure.name for figure in (*FIGURES, *BY_COLLECTIVE)}
        assert set(stored.variables) == names | {"representative", "rank", "collective"}
        for name, variable in stored.variables.items():
            assert variable.attrs["long_name"], name
            assert variable.attrs["units"], name
        for name, unit in ((it.name, it.units) for it in (*FIGURES, *BY_COLLECTIVE)):
            assert stored[name].attrs["units"] == unit
        xarray.testing.assert_identical(stored.load(), dataset)
    assert dataset.wall_time.values[0] > 0
    assert dataset.representative.values.tolist() == [0, 0, 0, 0]


def test_every_distinct_rank_has_a_track_per_resource(h100: Hardware) -> None:
    traces = step(8)
    result = simulate(traces, HardwareCosts(h100))
    tracks = {(track.process, track.thread): track for track in simulation_tracks(traces, result)}
    assert {process for process, _ in tracks} == {"rank 0", "rank 1"}  # sends, and receives
    assert {thread for process, thread in tracks if process == "rank 0"} == {
        "compute",
        "communication",
    }
    compute = tracks["rank 0", "compute"]
    assert list(compute.names) == ["mul"]
    assert compute.start.tolist() == [0.0]
    assert compute.duration.tolist() == pytest.approx([2e-3])  # as recorded
    communication = tracks["rank 0", "communication"]
    assert list(communication.names) == ["sum", "pass"]
    assert (communication.start >= compute.duration[0]).all()
    assert list(communication.arguments["collective"]) == ["all_reduce", None]
    assert list(communication.arguments["bytes"]) == [2**20, 4096]


def test_the_file_holds_all_operations_until_the_end(h100: Hardware, tmp_path: Path) -> None:
    traces = step(8)
    result = simulate(traces, HardwareCosts(h100))
    written = write_simulation(traces, result, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    operations = [event for event in events if event["ph"] == "X"]
    assert written == len(operations) > 0
    end = max(event["ts"] + event["dur"] for event in operations)
    assert end == pytest.approx(float(result.wall_time.max()) * 1e6)
