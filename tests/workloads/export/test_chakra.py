"""Traces made from projections keep its totals, fit together across ranks, and run."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from perfmodel.analysis.explain import operation_costs
from perfmodel.analysis.single import one_strategy
from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import StrategyError
from perfmodel.software.framework import load_framework
from perfmodel.strategy.pipelines import named_pipeline
from perfmodel.training.step.groups import rank_groups
from perfmodel.training.step.workload import projected_workload
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.training.step.cases import CASES
from tests.workloads.export.traces import named_traces


def test_groups_can_be_numbered(workload_of):
    traces = projected_traces(workload_of("experts"))
    assert sorted(map(int, traces.groups)) == list(range(1, len(traces.groups) + 1))
    wrong = "granularity: 'layers' is not one of operation, layer"
    with pytest.raises(StrategyError, match=wrong):
        named_traces(workload_of("experts"), granularity="layers")


@pytest.fixture(scope="session")
def wall_time(h100):
    """Return a function that runs traces on the profile's network."""

    def run(traces, streams="per-group"):
        costs = HardwareCosts(h100, communication_streams=streams, compute="recorded")
        return float(simulate(traces, costs).wall_time.max())

    return run


def sizes_of(traces, rank):
    """Bytes by collective of one rank: whole buffers, as projections count."""
    trace = traces.traces[rank]
    sizes: dict[str, float] = defaultdict(float)
    for i in np.flatnonzero(trace.kinds == COLLECTIVE):
        name = TRACED[trace.collective[i]]
        members = len(traces.members(rank, int(i))) if name == "all_gather" else 1
        sizes[name] += int(trace.communication_size[i]) * members
    messages = trace.communication_size[trace.kinds == SEND].sum()
    if messages:
        sizes["point_to_point"] = int(messages)
    return sizes


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("granularity", ["operation", "layer"])
def test_every_rank_keeps_the_totals_of_its_stage(case, granularity, workload_of):
    workload = workload_of(case)
    traces = named_traces(workload, granularity=granularity)
    stages = rank_groups(workload.strategy).stage
    assert traces.devices == workload.devices
    for rank in {int(np.flatnonzero(stages == stage)[-1]) for stage in set(stages.tolist())}:
        trace = traces.traces[rank]
        totals = workload.totals(int(stages[rank]))
        device = (trace.kinds == COMPUTE) & (trace.on_cpu == 0)
        assert trace.duration[device].sum() == pytest.approx(
            totals.compute_time + totals.optimizer_time, rel=1e-9
        )
        # A node without matrix products states one operation; others round to whole ones.
        flops = int(trace.num_ops[device].sum())
        assert abs(flops - totals.flops) <= device.sum()
        expected: dict[str, float] = defaultdict(float)
        for (_, name), size in totals.bytes_by_collective.items():
            expected[name] += size
        sizes = sizes_of(traces, rank)
        assert set(sizes) == set(expected)
        for name, size in sizes.items():
            assert size == pytest.approx(expected[name], rel=1e-6), name


@pytest.mark.parametrize("case", CASES)
def test_nodes_wait_for_earlier_nodes_only(case, workload_of):
    traces = named_traces(workload_of(case))
    for trace in {id(trace): trace for trace in traces.traces}.values():
        parents = trace.parent_positions()
        children = np.repeat(np.arange(trace.nodes), np.diff(parents.offsets))
        assert (parents.values < children).all()
        assert len(set(trace.names)) > trace.nodes / 4
        assert trace.kinds.min() >= COMPUTE


@pytest.mark.parametrize("case", CASES)
def test_every_message_has_its_receiver(case, workload_of):
    traces = named_traces(workload_of(case))
    sent, received = Counter(), Counter()
    for rank, trace in enumerate(traces.traces):
        for kind, counter, own in (
            (SEND, sent, trace.source),
            (RECEIVE, received, trace.destination),
        ):
            rows = np.flatnonzero(trace.kinds == kind)
            assert (own[rows] == rank).all()
            counter.update(
                zip(
                    trace.source[rows].tolist(),
                    trace.destination[rows].tolist(),
                    trace.tag[rows].tolist(),
                    trace.communication_size[rows].tolist(),
                    strict=True,
                )
            )
    assert sent == received
    assert max(sent.values(), default=1) == 1  # a tag means one message
    assert all(source != destination for source, destination, _, _ in sent)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("streams", ["one", "per-group"])
def test_runs_to_its_end_near_the_projected_time(case, streams, workload_of, wall_time):
    workload = workload_of(case)
    wall = wall_time(named_traces(workload), streams)
    totals = [workload.totals(stage) for stage in range(len(workload.stages))]
    busy = max(total.compute_time + total.optimizer_time for total in totals)
    assert wall >= busy + workload.step_overhead
    ratio = wall / workload.projection["step_time"]
    assert 0.85 < ratio < (1.2 if streams == "per-group" else 2.0)


def test_one_device_takes_the_projected_time(workload_of, wall_time):
    workload = workload_of("one device")
    wall = wall_time(named_traces(workload))
    assert wall == pytest.approx(workload.projection["step_time"], rel=1e-6)


def test_a_pipeline_without_overlap_takes_the_projected_time(workload_of, wall_time):
    workload = workload_of("gpipe")
    wall = wall_time(named_traces(workload))
    assert wall == pytest.approx(workload.projection["step_time"], rel=0.02)


@pytest.mark.parametrize("case", ["two copies", "two copies of four stages"])
def test_two_copies_of_the_model_take_the_projected_time(case, workload_of, wall_time):
    workload = workload_of(case)
    wall = wall_time(named_traces(workload))
    assert wall == pytest.approx(workload.projection["step_time"], rel=0.03)


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ("all reduced", "overlap_gradient_reduce"),
        ("sharded", "overlap_parameter_gather"),
        ("interleaved", "overlap_pipeline"),
    ],
)
def test_what_the_framework_does_not_overlap_takes_longer(case, field, workload_of, wall_time):
    hidden = wall_time(named_traces(workload_of(case)))
    framework = load_framework("megatron", **{field: False})
    shown = wall_time(named_traces(workload_of(case, framework)))
    assert shown > hidden * 1.0005


def test_expert_exchanges_hide_behind_another_micro_batch(workload_of, wall_time):
    def run(overlap):
        framework = load_framework("megatron", overlap_expert_parallel=overlap)
        workload = workload_of("small_moe", framework, data_parallel=8, expert_parallel=8)
        return wall_time(named_traces(workload))

    assert run(True) < run(False)


def test_tensor_parallel_communication_runs_beside_what_hides_it(workload_of):
    workload = workload_of("tensor")
    trace = named_traces(workload).traces[0]
    names = {name: i for i, name in enumerate(trace.names)}
    parents = trace.parent_positions()
    before = "micro-batch 0 layer 3 "
    reduce = names[before + "weight gradient mlp.input.reduce_scatter"]
    product = names[before + "weight gradient mlp.up"]
    norm = names[before + "backward mlp.norm"]
    # Both need the data gradient; the weight gradient does not wait, what follows does.
    assert names[before + "backward mlp.up"] in parents[reduce]
    assert reduce not in parents[product]
    assert {reduce, product} <= set(parents[norm].tolist())


def test_ranks_of_a_stage_share_their_columns(workload_of):
    traces = named_traces(workload_of("pipeline")).traces
    first, second = traces[0], traces[1]  # data ranks 0 and 1 of stage 0
    for column in ("kinds", "duration", "data_parents", "names", "communication_size"):
        assert getattr(first, column) is getattr(second, column)
    assert first.group_names == second.group_names == ("data 0",)
    assert first.destination[first.kinds == SEND][0] == 2
    assert second.destination[second.kinds == SEND][0] == 3
    parts = named_traces(workload_of("pipeline")).parts
    assert parts[0].trace is parts[1].trace  # only peers are each rank's own
    whole = named_traces(workload_of("all reduced")).traces
    assert all(trace is whole[0] for trace in whole)


def test_a_table_is_written_as_the_schedule_that_it_is_of(small_dense, h100):
    axes = {"global_batch_size": 8, "sequence_length": 2048, "pipeline_parallel": 4}
    table = named_pipeline("zb_v", 4, 8)
    grids = (
        one_strategy(small_dense, 4, {**axes, "pipeline_schedule": "zb_v"}),
        one_strategy(small_dense, 4, axes, table=table),
    )
    named, read = (named_traces(projected_workload(small_dense, grid, h100)) for grid in grids)
    for one, other in zip(named.traces, read.traces, strict=True):
        assert one.names == other.names
        for column in ("kinds", "duration", "source", "destination", "tag"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
    first, second = (operation_costs(small_dense, grid, h100) for grid in grids)
    assert first == second
