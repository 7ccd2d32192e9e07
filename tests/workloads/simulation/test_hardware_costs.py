"""Traces priced by our own models: on hardware profiles, and on ASTRA-sim's files."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError, HardwareError, StrategyError
from perfmodel.compute.collectives import collective_times
from perfmodel.workloads.simulation.hardware_costs import PRICED_AS, HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, MEM_LOAD, TraceBuilder, TraceSet
from tests.data import table_of
from tests.workloads.simulation.made import ALL_REDUCE, MIB, of_kind


def test_computation_takes_its_roofline_time_at_sustained_rates(h100):
    builder = TraceBuilder()
    builder.add("heavy", COMPUTE, num_ops=10**15, tensor_size=10**6)
    builder.add("light", COMPUTE, num_ops=10**6, tensor_size=10**12)
    builder.add("replayed", COMPUTE, duration=0.25)
    builder.add("load", MEM_LOAD, tensor_size=10**9)
    trace = builder.build()
    costs = HardwareCosts(h100)
    result = simulate(TraceSet((trace, trace)), costs)
    peak = h100.device.peak("bf16") * h100.calibrated("gemm", "issue_efficiency")
    bandwidth = h100.device.memory.bandwidth * h100.calibrated("stream", "memory_efficiency")
    times = [1e15 / peak, 1e12 / bandwidth, 0.25]
    assert result.gpu_time[0] == pytest.approx(sum(times))
    assert result.ends(0)[3] - result.starts(0)[3] == pytest.approx(1e9 / bandwidth)
    assert result.compute_bound_fraction[0] == pytest.approx(times[0] / sum(times))
    assert 0.8 < result.compute_utilization[0] * sum(times) / times[0] < 1.0
    counted = HardwareCosts(h100, "fp8", operation_flops=2.0, element_bytes=2.0)
    twice = simulate(TraceSet((trace, trace)), counted)
    fp8 = h100.device.peak("fp8") * h100.calibrated("gemm", "issue_efficiency_fp8")
    assert twice.gpu_time[0] == pytest.approx(2e15 / fp8 + 2 * times[1] + 0.25)
    assert "wall_time_nanoseconds" not in twice.summary()
    with pytest.raises(ValueError, match="not in whole nanoseconds"):
        twice.ticks("wall_time")


@pytest.mark.parametrize("name", TRACED)
def test_collectives_are_those_of_the_network_model(h100, name):
    trace = of_kind(TRACED.index(name))
    result = simulate(TraceSet((trace,) * 16), HardwareCosts(h100))
    priced, is_part = PRICED_AS[name]
    size = 4 if name == "barrier" else MIB * (16 if is_part else 1)
    assert result.wall_time[0] == collective_times(h100, priced, size, 16)[0]
    assert result.wall_time[0] > 0


@pytest.mark.parametrize(
    ("members", "shape"),
    [
        ((0, 1, 2, 3), (4, 1)),
        ((0, 8, 16, 24), (4, 8)),
        ((0, 4, 8, 12), (4, 4)),
        ((8, 10, 12, 14), (4, 2)),
        ((5, 3, 4, 2), (4, 1)),  # in the order of its ring
        ((7, 8), (2, 8)),  # neighbours on two nodes
        ((0, 1, 8, 9, 16, 17), (6, 4)),  # pairs on three nodes
        ((3,), (1, 1)),
    ],
)
def test_groups_keep_how_many_members_share_a_node(h100, members, shape):
    assert HardwareCosts(h100)._shape(members) == shape


def test_messages_cross_the_level_on_which_their_ends_differ(h100):
    pairs = np.array([[0, 7], [7, 8], [0, 8], [3, 3]])
    times = HardwareCosts(h100).message_times(pairs[:, 0], pairs[:, 1], np.full(4, MIB))
    inside, across = collective_times(h100, "point_to_point", MIB, 2, [1, 8])
    assert times.tolist() == [inside, across, across, 0.0]
    assert across > inside


def test_groups_run_beside_each_other_where_communicators_do(h100):
    def wall(streams):
        builder = TraceBuilder()
        for name in ("a", "b"):
            builder.add("c", COLLECTIVE, collective=ALL_REDUCE, communication_size=MIB, group=name)
        groups = {"a": (0, 1), "b": (0, 1)}
        costs = HardwareCosts(h100, communication_streams=streams)
        return simulate(TraceSet((builder.build(),) * 2, groups), costs).wall_time[0]

    assert wall("one") == pytest.approx(2 * wall("per-group"))


def test_levels_of_the_network_as_dimensions(h100):
    trace = of_kind(ALL_REDUCE, involved=[False, True])
    result = simulate(TraceSet((trace,) * 32), HardwareCosts(h100))
    assert result.wall_time[0] == collective_times(h100, "all_reduce", MIB, 4, 8)[0]
    with pytest.raises(FormatError, match=r"involved dimensions \[0, 1\] on 12 ranks"):
        simulate(TraceSet((trace,) * 12), HardwareCosts(h100))


def test_wrong_settings(h100):
    with pytest.raises(StrategyError, match="communication streams 'two'"):
        HardwareCosts(h100, communication_streams="two")
    with pytest.raises(StrategyError, match="operation_flops is 0"):
        HardwareCosts(h100, operation_flops=0)
    with pytest.raises(HardwareError, match="no matrix rate"):
        HardwareCosts(h100, "fp3")
    small = h100.with_values({"system.network.1.size": 1})
    with pytest.raises(HardwareError, match="has 8 devices"):
        simulate(TraceSet((of_kind(ALL_REDUCE),) * 9), HardwareCosts(small))


PROJECTED = table_of(__file__, "projected")


@pytest.mark.parametrize("case", PROJECTED)
def test_traces_of_a_projection_take_about_its_time(case, request, grid_of, h100):
    """Within 2.1 % where communicators run side by side, 4.1 % one after another.

    What is left is overlap, which the projection takes as a share of the operations beside
    it, and a run as what fits. A bare roofline knows no shape of a kernel, and is far off.
    """
    from perfmodel.training.step.workload import projected_workload
    from perfmodel.workloads.export.chakra import projected_traces

    name, fields = PROJECTED[case]
    workload = projected_workload(
        request.getfixturevalue(name), grid_of(request.getfixturevalue(name), **fields), h100
    )
    traces = projected_traces(workload)

    def ratio(**settings):
        wall = simulate(traces, HardwareCosts(h100, **settings)).wall_time.max()
        return wall / workload.projection["step_time"]

    assert ratio(communication_streams="per-group") == pytest.approx(1.0, abs=0.03)
    assert ratio() == pytest.approx(1.0, abs=0.08)
    assert ratio() == ratio(compute="recorded")
    assert ratio(compute="roofline") < 0.95
