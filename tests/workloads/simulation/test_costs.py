"""How long computation takes: as recorded, or by its roofline."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COMPUTE, TraceSet
from perfmodel.workloads.twins.astra.collective import uniform_system
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.astra.network_costs import NetworkCosts
from tests.workloads.simulation.built import NETWORK, built, four

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
