"""How long computation takes: as recorded, or by its roofline."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import (
    DataError,
    FormatError,
    HardwareError,
    PerfModelError,
    StrategyError,
)
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    MEM_LOAD,
    METADATA,
    RECEIVE,
    SEND,
    TraceBuilder,
    TraceSet,
)
from perfmodel.workloads.twins.astra.costs import AstraCosts, NetworkCosts
from tests.amount import cases
from tests.workloads.simulation.made import NETWORK, SUM, built, costs, four, refused

WORK = {"num_ops": 10**12, "tensor_size": 10**6}


@pytest.mark.parametrize("compute", ["auto", "recorded", "roofline"])
def test_compute_lasts_as_recorded_or_as_its_roofline(h100, compute):
    trace = built(
        ("both", COMPUTE, WORK | {"duration": 0.5}),
        ("priced", COMPUTE, WORK),
        ("recorded", COMPUTE, {"duration": 0.25}),
        ("neither", COMPUTE, {}),
        ("host", COMPUTE, WORK | {"duration": 0.125, "on_cpu": 1}),
    )
    costs = HardwareCosts(h100, compute=compute)
    result = simulate(four(trace), costs)
    roofline = 1e12 / costs.sustained_peak
    assert 0 < roofline < 0.01
    lasts = (result.ends(0) - result.starts(0)).tolist()
    expected = {
        "auto": [0.5, roofline, 0.25, 0.0, 0.125],
        "recorded": [0.5, 0.0, 0.25, 0.0, 0.125],
        "roofline": [roofline, roofline, 0.25, 0.0, 0.125],
    }[compute]
    assert lasts == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # Operations count against the time that was used.
    counted = [a for a, e in zip([1e12, 1e12], expected[:2], strict=True) if e > 0]
    device = sum(expected[:4])
    assert result.gpu_time[0] == pytest.approx(device)
    assert result.compute_utilization[0] == pytest.approx(sum(counted) / costs.peak / device)
    moved = len(counted) * 1e6 / costs.memory_bandwidth / device
    assert result.memory_utilization[0] == pytest.approx(moved)
    assert result.operation_intensity[0] == pytest.approx(1e6 * sum(expected[:2]) / device)
    assert result.compute_bound_fraction[0] == pytest.approx(sum(expected[:2]) / device)


def test_a_recording_of_a_faster_device_uses_more_than_there_is(h100):
    costs = HardwareCosts(h100)
    trace = built(("work", COMPUTE, WORK | {"duration": 0.5 * 1e12 / costs.peak}))
    assert simulate(four(trace), costs).compute_utilization[0] == pytest.approx(2.0)


def test_astra_sim_and_its_files_keep_their_own_rule():
    """``roofline-enabled`` of system.json decides, whatever durations a trace has."""
    trace = built(("work", COMPUTE, {"num_ops": 3_000_000, "tensor_size": 1_000, "duration": 5e-6}))
    system = {"peak_performance_teraflops": 1.0, "local_memory_bandwidth_gb_per_second": 100.0}
    for enabled, nanoseconds in ((True, 3_000), (False, 5_000)):
        files = uniform_system(["ring"], roofline_enabled=enabled, **system)
        assert (
            simulate(four(trace), AstraCosts(NETWORK, files)).ticks("wall_time")[0] == nanoseconds
        )
        ours = simulate(four(trace), NetworkCosts(NETWORK, files))
        assert ours.wall_time[0] == pytest.approx(nanoseconds * 1e-9, rel=0.01)
        assert np.isnan(ours.compute_utilization[0]) == (not enabled)


def test_the_command_line_takes_recorded_times_or_rooflines(tmp_path, h100):
    from click.testing import CliRunner

    from perfmodel.cli.main import cli
    from perfmodel.workloads.formats.chakra.files import write_traces

    trace = built(("work", COMPUTE, WORK | {"duration": 0.5}), ("priced", COMPUTE, WORK))
    write_traces(TraceSet((trace, trace)), tmp_path / "step")
    roofline = 1e12 / HardwareCosts(h100).sustained_peak

    def run(*options):
        arguments = ["simulate", str(tmp_path / "step"), "--hardware", "dgx-h100", "--json"]
        result = CliRunner().invoke(cli, [*arguments, *options])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    assert run()["wall_time"] == pytest.approx(0.5 + roofline)
    assert run("--compute", "auto") == run()
    assert run("--compute", "recorded")["wall_time"] == pytest.approx(0.5)
    assert run("--compute", "roofline")["wall_time"] == pytest.approx(2 * roofline)
    used = run("--compute", "roofline")["compute_utilization"]
    assert 0.5 < used < 1.0
    assert run()["compute_utilization"] == pytest.approx(used * 2 * roofline / (0.5 + roofline))


def test_there_are_three_ways_of_timing_computation(h100):
    with pytest.raises(StrategyError, match="compute times 'measured'; known: auto, recorded"):
        HardwareCosts(h100, compute="measured")


ALL_REDUCE, ALL_GATHER, BARRIER = (
    TRACED.index(name) for name in ("all_reduce", "all_gather", "barrier")
)


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


@settings(max_examples=cases(60))
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


def test_times_out_of_range_name_the_longest_node():
    large = {"destination": 1, "communication_size": 2**62}
    give = built(("small", COMPUTE, {"duration": 1.0}), ("give", SEND, large))
    get = built(("get", RECEIVE, {"source": 0}))
    text = refused(give, get)
    assert "cannot be counted in whole nanoseconds; longest is rank 0, node 1 (give)" in text
    huge = built(("sum", COLLECTIVE, SUM | {"communication_size": 2**62}))
    assert "rank 0, node 0 (sum), all_reduce of the group of all ranks: size" in refused(huge, huge)


def test_ranks_of_nothing():
    empty = built()
    result = simulate(TraceSet((empty, empty)), costs())
    assert result.ticks("wall_time") == (0, 0)
    assert result.summary()["nodes"] == 0
