"""Mapping of axes onto the network, against groups that are written out device by device."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.analysis.explain import operation_costs
from perfmodel.base.axes import columns_from_rows
from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import MAPPING_AXES, MAPPINGS
from perfmodel.cli.main import cli
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.expert_exchange import stage_members, stage_strides
from perfmodel.kernels.collective.table import blank_network, torus_share
from perfmodel.kernels.step import placement as kernel
from perfmodel.operations.operations import LayerKeys
from perfmodel.strategy.enumerate import enumerate_strategies, strategies_from_rows, strategy_grid
from perfmodel.strategy.mapping import axis_order, axis_strides, layer_placement, placement
from perfmodel.strategy.rules import STATUS_NAMES
from perfmodel.sweeps.several import sweep
from perfmodel.training.workload import layer_columns

SMALL = list(itertools.product([1, 2, 3], repeat=4))
DEFAULT, PIPELINE_INSIDE = "tensor-context-data-pipeline", "tensor-context-pipeline-data"
STAGE_AXES = ("tensor", "context", "data")


def coordinates(mapping, degrees):
    """Rank of every device on every axis, counted up as an odometer, innermost first."""
    rows = []
    counter = dict.fromkeys(MAPPING_AXES, 0)
    for _ in range(int(np.prod(list(degrees.values())))):
        rows.append(dict(counter))
        for axis in mapping.split("-"):
            counter[axis] += 1
            if counter[axis] < degrees[axis]:
                break
            counter[axis] = 0
    return rows


def groups_of(mapping, degrees, axes):
    """Devices of every group of some axes, in order of device numbers."""
    groups = {}
    for device, ranks in enumerate(coordinates(mapping, degrees)):
        others = tuple(rank for axis, rank in ranks.items() if axis not in axes)
        groups.setdefault(others, []).append(device)
    return list(groups.values())


def cut(groups, members, step):
    """Groups of every `step`-th rank, `members` of them, of larger groups."""
    span = members * step
    return [
        group[first + offset : first + span : step]
        for group in groups
        for first in range(0, len(group), span)
        for offset in range(step)
    ]


def described(split):
    """Devices, counted from the first, of a group as the closed form describes it."""
    inner, stride, outer, outer_stride = split
    return [i * stride + j * outer_stride for j in range(outer) for i in range(inner)]


def relative(group):
    return [device - group[0] for device in group]


def per_domain(group, domain):
    """Members of a group in each domain that holds any."""
    counts = np.bincount(np.array(group) // domain)
    return set(counts[counts > 0].tolist())


def aligned(mapping, degrees, domain):
    """Whether no axis crosses a domain's border in the middle of its ranks."""
    spans = np.cumprod([degrees[axis] for axis in mapping.split("-")])
    return all(domain % span == 0 or span % domain == 0 for span in spans)


def all_splits(mapping, degrees):
    """Closed form and written-out groups of every axis and of data × context."""
    strides = axis_strides(mapping, degrees)
    for axis in MAPPING_AXES:
        degree, stride = degrees[axis], strides[axis]
        split = kernel.split(degree, 1, degree, stride, degree * stride)
        yield axis, split, groups_of(mapping, degrees, (axis,))
    c, d = degrees["context"], degrees["data"]
    row = kernel.data_row(c, strides["context"], d, strides["data"])
    groups = groups_of(mapping, degrees, ("context", "data"))
    yield "data × context", kernel.split(c * d, 1, *row), groups


def stage_row(mapping, degrees):
    strides = axis_strides(mapping, degrees)
    t, c, d, p = (degrees[axis] for axis in MAPPING_AXES)
    return kernel.stage_row(t, c, d, p, strides["pipeline"])


def test_labels_are_the_orders_of_the_kernel():
    labels = ["-".join(MAPPING_AXES[axis] for axis in order) for order in kernel.ORDERS]
    assert labels == list(MAPPINGS)
    assert len(set(MAPPINGS)) == 24
    # What stored results of earlier versions call 0 and 1.
    assert MAPPINGS[:2] == (DEFAULT, PIPELINE_INSIDE)


def test_orders_are_read_from_labels_and_codes():
    assert axis_order("data-tensor-context-pipeline") == ("data", "tensor", "context", "pipeline")
    assert axis_order(1) == ("tensor", "context", "pipeline", "data")
    for wrong in ("data-tensor", "tensor-context-data-data", 24, -1):
        with pytest.raises(StrategyError, match="not an order of tensor, context, data, pipeline"):
            axis_order(wrong)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_groups_are_exactly_those_written_out(mapping):
    for values in SMALL:
        degrees = dict(zip(MAPPING_AXES, values, strict=True))
        strides = kernel.axis_strides(MAPPINGS.index(mapping), *values)
        assert dict(zip(MAPPING_AXES, strides, strict=True)) == axis_strides(mapping, degrees)
        for axis, split, groups in all_splits(mapping, degrees):
            for group in groups:
                assert relative(group) == described(split), (axis, degrees)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_members_inside_every_domain_are_counted(mapping):
    """Every domain that holds any member of any group holds as many as the closed form says."""
    for values in itertools.product([1, 2, 4], repeat=4):
        degrees = dict(zip(MAPPING_AXES, values, strict=True))
        splits = list(all_splits(mapping, degrees))
        for domain in (2, 8, 16):
            for axis, split, groups in splits:
                found = kernel.members_in_domain(*split, domain)
                for group in groups[:: max(1, len(groups) // 4)]:
                    assert per_domain(group, domain) == {found}, (axis, degrees, domain)


@given(
    mapping=st.sampled_from(MAPPINGS),
    values=st.tuples(*[st.sampled_from([1, 2, 3, 5, 6])] * 4),
    domain=st.sampled_from([4, 6, 8, 9, 72]),
)
def test_domains_that_cut_groups_are_counted_within_what_they_hold(mapping, values, domain):
    degrees = dict(zip(MAPPING_AXES, values, strict=True))
    for axis, split, groups in all_splits(mapping, degrees):
        counts = set().union(*(per_domain(group, domain) for group in groups))
        found = kernel.members_in_domain(*split, domain)
        assert min(counts) <= found <= max(counts), axis
        if aligned(mapping, degrees, domain):
            assert counts == {found}


def network(*sizes):
    made = blank_network(len(sizes))
    made.levels["domains"] = sizes
    return made


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_one_stride_keeps_the_members_of_a_node(mapping):
    """What prices a group has its members per node, where any whole stride has."""
    uneven = 0
    for values in [*SMALL, *itertools.product([1, 2, 4], repeat=4), (8, 2, 4, 8), (2, 8, 8, 4)]:
        degrees = dict(zip(MAPPING_AXES, values, strict=True))
        for _, split, groups in all_splits(mapping, degrees):
            inner, stride, outer, outer_stride = split
            members = inner * outer
            for node in (4, 8, 72):
                found = kernel.even_stride(*split, network(node, 0))
                if outer == 1:
                    assert found == stride
                    continue
                uneven += 1
                wanted = kernel.members_in_domain(*split, node)
                if aligned(mapping, degrees, node):
                    assert per_domain(groups[0], node) == {wanted}
                assert stride <= found <= max(outer_stride // inner, 1)
                kept = min(max(node // found, 1), members)
                if kept != wanted:
                    possible = {min(max(node // s, 1), members) for s in range(1, node + 1)}
                    assert wanted not in possible
                    assert kept > wanted
    between = abs(axis_order(mapping).index("data") - axis_order(mapping).index("context")) > 1
    assert (uneven > 0) == between


def test_one_stride_serves_more_levels_where_it_can():
    # Two of every four devices: halves of a node of 8, of a rack of 32 and of the whole.
    assert kernel.even_stride(2, 1, 64, 4, network(8, 4, 0)) == 2
    # Four in a node, and 16 nodes further on four more: no even group has both.
    assert kernel.even_stride(4, 1, 64, 128, network(8, 0)) == 2
    assert kernel.even_stride(4, 1, 64, 128, network(8, 4, 0)) == 2
    # One in a node and four in a rack of 32, then nothing for three racks: 8 … 8 serves both.
    assert kernel.even_stride(4, 8, 16, 128, network(8, 4, 0)) == 8


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_expert_groups_are_exactly_those_written_out(mapping):
    """Ranks of one expert, expert-parallel ranks and copies, over the ranks of a stage."""
    flagged = kept = 0
    for values in [*SMALL, (2, 2, 4, 2), (4, 1, 6, 3), (1, 6, 4, 2)]:
        degrees = dict(zip(MAPPING_AXES, values, strict=True))
        t, c, d, _ = values
        plane = t * c * d
        stages = groups_of(mapping, degrees, STAGE_AXES)
        block, jump = stage_row(mapping, degrees)
        for inner, expert in itertools.product((1, 2, 3), (1, 2, 3, 4, 6)):
            spread = inner * expert
            if plane % spread:
                continue
            parts = {
                "expert tensor": (inner, 1),
                "expert": (expert, inner),
                "copies": (plane // spread, spread),
            }
            written = {name: cut(stages, *part) for name, part in parts.items()}
            same = all(
                relative(group) == described(kernel.split(*parts[name], block, 1, jump))
                for name, groups in written.items()
                for group in groups
            )
            row = {f"{axis}_parallel": degrees[axis] for axis in MAPPING_AXES}
            row |= {"expert_parallel": expert, "expert_tensor_parallel": inner}
            columns = columns_from_rows([{**row, "mapping": mapping}])
            out = np.zeros(1, np.uint8)
            names = ("mapping", *(f"{axis}_parallel" for axis in MAPPING_AXES))
            kernel.cut_expert_groups(
                *(columns[name] for name in names),
                columns["expert_parallel"],
                columns["expert_tensor_parallel"],
                out,
            )
            if out[0]:
                # Some group is cut in the middle, so that not all of them are alike.
                shapes = {tuple(relative(group)) for name in parts for group in written[name]}
                assert len(shapes) > 3 or not same, (degrees, inner, expert)
                flagged += 1
            else:
                assert same, (degrees, inner, expert)
                kept += 1
    assert kept
    assert (flagged > 0) == (mapping.split("-").index("pipeline") in (1, 2))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_shard_sets_are_exactly_those_written_out(mapping):
    for values in [*SMALL, (2, 2, 6, 2), (1, 6, 4, 2), (3, 4, 4, 2)]:
        degrees = dict(zip(MAPPING_AXES, values, strict=True))
        t, c, d, p = values
        strides = axis_strides(mapping, degrees)
        row = kernel.data_row(c, strides["context"], d, strides["data"])
        groups = groups_of(mapping, degrees, ("context", "data"))
        for size in (2, 3, 4, 6):
            if c * d % size:
                continue
            columns = [np.array([value]) for value in (MAPPINGS.index(mapping), t, c, d, p, 1)]
            out = np.zeros(1, np.uint8)
            kernel.cut_shard_sets(*columns, np.array([size]), False, out)
            if out[0]:
                sets = {tuple(relative(group)) for group in cut(groups, size, 1)}
                assert len(sets) > 1
                continue
            for part in ((size, 1), (c * d // size, size)):
                split = kernel.split(*part, *row)
                assert all(relative(group) == described(split) for group in cut(groups, *part)), (
                    degrees,
                    size,
                )


def test_the_default_order_needs_no_further_columns():
    row = {"tensor_parallel": 4, "context_parallel": 2, "data_parallel": 8, "expert_parallel": 16}
    assert layer_placement(columns_from_rows([row])) == {}
    dense = {**row, "pipeline_parallel": 2, "expert_parallel": 1, "mapping": PIPELINE_INSIDE}
    assert layer_placement(columns_from_rows([dense])) == {}
    # Beside another order its columns say the same.
    both = columns_from_rows([row, {**row, "mapping": "data-context-tensor-pipeline"}])
    found = {name: column.tolist() for name, column in layer_placement(both).items()}
    assert found == {
        "tensor_stride": [1, 16],
        "context_stride": [4, 8],
        "stage_block": [1, 1],
        "stage_jump": [1, 1],
    }
    keys = LayerKeys(layer_columns(both))
    alone = LayerKeys(layer_columns(columns_from_rows([row])))
    members, step = np.full(2, 16.0), np.ones(2)
    assert keys.tensor_stride[0] == alone.tensor_stride[0]
    assert keys.context_stride[0] == alone.context_stride[0]
    one = stage_strides(alone.columns, members[:1], step[:1], (8, 0))
    assert stage_strides(keys.columns, members, step, (8, 0))[0] == one[0]
    some = stage_members(alone.columns, members[:1], step[:1], 8)
    assert stage_members(keys.columns, members, step, 8).tolist() == [some[0], 8.0]


def test_experts_over_a_pipeline_inside_the_data_axis(grid_of, h100, small_moe):
    """Eight expert ranks, four per block of a stage, on nodes of eight with two stages."""
    grid = grid_of(
        small_moe,
        tensor_parallel=4,
        pipeline_parallel=2,
        data_parallel=2,
        expert_parallel=8,
        mapping=PIPELINE_INSIDE,
    )
    (expert,) = [group for group in placement(grid, h100) if group.axis == "expert"]
    assert (expert.members, expert.stride, expert.blocks, expert.block_stride) == (8, 1, 2, 8)
    assert expert.inside == (4, 8)
    assert expert.level_name == h100.system.network[1].name
    shapes = {
        cost.shape for cost in operation_costs(small_moe, grid, h100) if "all_to_all" in cost.name
    }
    assert all(f"over 8 ranks, 2 apart ({expert.level_name})" in shape for shape in shapes)
    assert shapes


def test_placement_of_a_strategy(grid_of, h100, small_dense):
    grid = grid_of(
        small_dense,
        tensor_parallel=2,
        context_parallel=2,
        pipeline_parallel=4,
        data_parallel=4,
        mapping="context-tensor-pipeline-data",
    )
    inner, outer = (level.name for level in h100.system.network)
    found = [
        (group.axis, group.members, group.stride, group.blocks, group.inside, group.level_name)
        for group in placement(grid, h100)
    ]
    assert found == [
        ("context", 2, 1, 1, (2, 2), inner),
        ("tensor", 2, 2, 1, (2, 2), inner),
        ("pipeline", 4, 4, 1, (2, 4), outer),
        ("data", 4, 16, 1, (1, 4), outer),
        ("data × context", 8, 1, 4, (2, 8), outer),
    ]
    impossible = strategies_from_rows(
        small_dense, 7, [{"tensor_parallel": 2, "sequence_length": 64, "global_batch_size": 8}]
    )
    with pytest.raises(StrategyError, match="no placement"):
        placement(impossible, h100)


def test_every_communication_of_a_layer_follows_the_mapping(grid_of, h100, small_moe):
    grid = grid_of(
        small_moe,
        tensor_parallel=2,
        context_parallel=2,
        context_parallel_kind="all_gather",
        pipeline_parallel=2,
        data_parallel=2,
        expert_parallel=2,
        expert_tensor_parallel=2,
        recompute="full",
        mapping="pipeline-data-tensor-context",
    )
    inner, outer = (level.name for level in h100.system.network)
    found = {}
    for cost in operation_costs(small_moe, grid, h100):
        axis = cost.kind.partition(" ")[0]
        if cost.level:
            inside_experts = cost.name.startswith(("mlp.dispatch", "mlp.combine"))
            found.setdefault((axis, inside_experts), set()).add(cost.shape.partition("over ")[2])
    assert found == {
        ("tensor", False): {f"2 ranks, 4 apart ({inner})"},
        ("context", False): {f"2 ranks, 8 apart ({outer})"},
        # Two data ranks share an expert, two tensor ranks hold the two halves of all experts.
        ("tensor", True): {f"2 ranks, 2 apart ({inner})"},
        ("expert", True): {f"2 ranks, 4 apart ({inner})"},
    }


RESULTS = ("step_time", "tensor_parallel_total", "memory_total")


def results_by_mapping(model, hardware, devices, **fields):
    grid = strategy_grid(
        model,
        devices,
        sequence_length=4096,
        global_batch_size=64,
        virtual_pipeline=1,
        micro_batch_size=1,
        recompute="none",
        zero_stage=1,
        mapping="all",
        **fields,
    )
    dataset = sweep(model, grid, hardware, threads=1, dtype="float64").isel(hardware=0)
    assert sorted(dataset["mapping"].values.tolist()) == sorted(MAPPINGS)
    return {
        order: {name: float(dataset[name][i]) for name in RESULTS}
        for i, order in enumerate(dataset["mapping"].values)
    }


def test_all_orders_are_swept_and_price_what_they_cross(small_dense, h100):
    found = results_by_mapping(
        small_dense,
        h100,
        64,
        tensor_parallel=8,
        context_parallel=1,
        pipeline_parallel=2,
        expert_parallel=1,
    )
    tensor = {name: row["tensor_parallel_total"] for name, row in found.items()}
    first = [time for name, time in tensor.items() if name.replace("context-", "")[0] == "t"]
    assert len(first) == 8
    assert len(set(first)) == 1
    # Eight devices of a node, four, two, one: the fewer share it, the longer it takes.
    by_stride = [
        tensor[name]
        for name in (DEFAULT, "pipeline-tensor-data-context", "data-tensor-pipeline-context")
    ]
    assert by_stride == sorted(set(by_stride))
    # Memory does not depend on where devices stand.
    assert len({row["memory_total"] for row in found.values()}) == 1


def test_axes_of_one_rank_change_nothing(small_moe, h100):
    """Without context ranks, orders that differ only in their place cost the same."""
    found = results_by_mapping(
        small_moe,
        h100,
        32,
        tensor_parallel=2,
        context_parallel=1,
        pipeline_parallel=2,
        expert_parallel=8,
    )
    same = {}
    for name, row in found.items():
        rest = "-".join(axis for axis in name.split("-") if axis != "context")
        same.setdefault(rest, set()).add(row["step_time"])
    assert len(same) == 6
    assert all(len(times) == 1 for times in same.values())
    assert len(set().union(*same.values())) > 1


def test_impossible_orders_are_reported_not_dropped(small_moe):
    axes = {
        "sequence_length": 4096,
        "global_batch_size": 48,
        "tensor_parallel": 2,
        "context_parallel": 1,
        "pipeline_parallel": 2,
        "data_parallel": 3,
        "expert_parallel": 2,
        "virtual_pipeline": 1,
        "micro_batch_size": 1,
        "recompute": "none",
        "zero_stage": 1,
        "mapping": "all",
    }
    found = enumerate_strategies(small_moe, 12, axes, keep_impossible=True)
    assert len(found.grid) == 24
    broken = {
        MAPPINGS[code]
        for code, status in zip(found.grid["mapping"], found.grid.status, strict=True)
        if STATUS_NAMES[int(status)] == "expert_group_spread"
    }
    # Blocks of three data ranks inside the pipeline cannot be filled by pairs.
    wanted = {
        name
        for name in MAPPINGS
        if name.replace("-context", "").replace("context-", "") == "data-pipeline-tensor"
    }
    assert broken == wanted
    assert found.rejected == {"expert_group_spread": len(wanted)}


def test_groups_of_an_axis_share_no_port_of_a_switch(h100):
    """Each device is in one group of an axis, so its port carries that group alone."""
    for mapping in MAPPINGS:
        degrees = {"tensor": 2, "context": 2, "data": 4, "pipeline": 2}
        for axes in (("tensor",), ("data",), ("context", "data"), STAGE_AXES):
            groups = groups_of(mapping, degrees, axes)
            assert sorted(itertools.chain.from_iterable(groups)) == list(range(32))
    # So only the members per node count, not how many groups lie between them.
    times = collective_times(h100, "all_reduce", 1e9, 8, [8, 16, 64])
    assert np.unique(times).size == 1


def loads_of_a_ring(positions, spacing, devices):
    """Groups that cross each link of a ring when every group walks around it."""
    loads = np.zeros(devices, int)
    for first in range(spacing):
        group = [first + i * spacing for i in range(positions)]
        for here, there in itertools.pairwise([*group, group[0] + devices]):
            for link in range(here, there):
                loads[link % devices] += 1
    return loads


def test_groups_that_interleave_on_a_ring_share_its_links():
    for spacing in (1, 2, 4):
        loads = loads_of_a_ring(16 // spacing, spacing, 16)
        assert set(loads) == {spacing}
        share = torus_share(16.0 / spacing, float(spacing), 16.0, 1.0, 1.0)
        assert share == pytest.approx(1 / spacing)


def test_an_oversubscribed_tree_is_shared_by_all_that_cross_it(h100):
    slow = h100.with_values({"system.network.1.oversubscription": 2.0})
    half = h100.with_values({"system.network.1.bandwidth": h100.system.network[1].bandwidth / 2})
    members, stride = [8, 8, 32, 2], [1, 8, 2, 64]
    times = collective_times(slow, "all_gather", 1e9, members, stride)
    np.testing.assert_allclose(times, collective_times(half, "all_gather", 1e9, members, stride))
    full = collective_times(h100, "all_gather", 1e9, members, stride)
    assert times[0] == full[0]
    assert np.all(times[1:] > 1.2 * full[1:])


def run_command(*arguments):
    result = CliRunner().invoke(cli, arguments, prog_name="perfmodel")
    return result.exit_code, result.output


PROBLEM = "--model llama-3.1-8b --hardware dgx-h100 --devices 32 --tp 8 --pp 2 --global-batch 32 "
PROBLEM += "--seq-len 4096 --recompute full --zero 1"


@pytest.mark.parametrize("command", ["project", "explain"])
def test_commands_say_what_each_axis_crosses(command):
    arguments = [command, *PROBLEM.split(), "--mapping", "data-tensor-context-pipeline"]
    code, text = run_command(*arguments, "-q")
    assert code == 0, text
    lines = [line.split() for line in text.splitlines()]
    assert ["data", "2", "1", "2", "2", "nvlink"] in lines
    assert ["tensor", "8", "2", "4", "8", "infiniband"] in lines
    assert ["pipeline", "2", "16", "1", "2", "infiniband"] in lines
    code, text = run_command(*arguments, "--json", "-q")
    rows = json.loads(text)["placement"]
    assert [(row["axis"], row["inside"]) for row in rows] == [
        ("data", [2, 2]),
        ("tensor", [4, 8]),
        ("pipeline", [1, 2]),
    ]


def test_the_command_line_takes_orders_and_all_of_them():
    sweep_arguments = ["sweep", *PROBLEM.split(), "--cp", "1", "--micro-batch", "1", "--vpp", "1"]
    wanted = f"{DEFAULT},data-tensor-context-pipeline"
    for mapping, count in ((wanted, 2), ("all", 24)):
        code, text = run_command(*sweep_arguments, "--mapping", mapping, "--json", "-q")
        assert code == 0, text
        assert json.loads(text)["possible"] == count
    order = "is not an order of tensor, context, data, pipeline, joined by '-'"
    one = "'all' should be one value"
    for command, mapping, message in (("sweep", "tensor-data", order), ("project", "all", one)):
        code, text = run_command(command, *PROBLEM.split(), "--mapping", mapping)
        assert code == 2
        assert message in text
    code, text = run_command("project", *PROBLEM.split(), "--mapping", f"{DEFAULT}s")
    assert f"did you mean {DEFAULT}" in text


def test_an_impossible_order_names_its_numbers():
    strategy = "--tp 2 --pp 2 --dp 3 --ep 2 --seq-len 4096 --global-batch 48"
    arguments = f"--model mixtral-8x7b --hardware dgx-h100 --devices 12 {strategy}".split()
    mapping = "data-pipeline-tensor-context"
    code, text = run_command("project", *arguments, "--mapping", mapping)
    assert code == 2
    assert "expert groups neither fill nor divide the blocks" in text
    assert f"data_parallel 3, mapping {mapping}" in text
