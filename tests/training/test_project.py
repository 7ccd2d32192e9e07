"""Projected steps of uniform stages against the closed form of the bubble."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import load_framework
from perfmodel.training.schedule import ALL


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("m", [8, 32])
@pytest.mark.parametrize("v", [1, 2])
def test_bubble_of_uniform_stages(p, m, v, small_dense, h100, grid_of):
    """(p - 1)/(m v) of the compute (Narayanan et al. 2021, section 2.2), exactly.

    The edges of the model are taken away, so that stages are equal.
    """
    from perfmodel.kernels.variables import STEP_VARIABLES
    from perfmodel.training import project as training
    from perfmodel.training import schedule
    from perfmodel.training.workload import Workload

    model = replace(small_dense, layers=small_dense.layers * 2)
    grid = grid_of(model, pipeline_parallel=p, virtual_pipeline=v, micro_batches=m)
    work = Workload(model, grid)
    kinds = [part.kind for part in model_parts(model)]
    table = schedule.stage_table(model, [(p, v, "loop", "even", ALL)])
    counts, chunks = table.counts.copy(), table.chunk_counts.copy()
    for held in (counts, chunks):
        held[:, [kinds.index("embedding"), kinds.index("output")]] = 0
    work.counts, work.compositions = counts, table._replace(chunk_counts=chunks)
    out = np.empty((len(STEP_VARIABLES), 1))
    training.project_grid(work, h100, load_framework("megatron"), out, threads=1)
    found = {item.name: out[i, 0] for i, item in enumerate(STEP_VARIABLES)}
    busy = found["forward_time"] + found["backward_time"]
    stalls = found["host_time"] - h100.calibrated("host", "step_overhead")
    assert found["pipeline_bubble"] / (busy + stalls) == pytest.approx((p - 1) / (m * v), rel=1e-9)


def test_no_pipeline_has_no_bubble_and_no_sends(project, h100, small_dense):
    found = project(small_dense, h100)
    assert found["pipeline_bubble"] == 0
    assert found["pipeline_exposed"] == found["pipeline_total"] == 0


def test_gpipe_is_as_fast_as_1f1b_but_keeps_more(project, h100, small_dense):
    fields = {"pipeline_parallel": 4, "micro_batches": 16}
    gpipe = project(small_dense, h100, **fields, pipeline_schedule="gpipe")
    one = project(small_dense, h100, **fields)
    assert all(gpipe[name] == one[name] for name in gpipe if not name.startswith("memory_"))
    assert gpipe["memory_activations"] > one["memory_activations"]
    assert gpipe["memory_total"] > one["memory_total"]


def test_the_bubble_shrinks_with_micro_batches_and_chunks(project, h100, small_dense):
    fields = {"pipeline_parallel": 4}
    share = []
    for batches in (4, 8, 16, 32):
        found = project(small_dense, h100, **fields, micro_batches=batches)
        share.append(found["pipeline_bubble"] / found["step_time"])
    assert np.all(np.diff(share) < 0)
    one = project(small_dense, h100, **fields, micro_batches=8)
    two = project(small_dense, h100, **fields, micro_batches=8, virtual_pipeline=2)
    assert two["pipeline_bubble"] == pytest.approx(one["pipeline_bubble"] / 2, rel=0.05)
    assert two["pipeline_total"] > one["pipeline_total"]


@pytest.mark.parametrize(
    ("precision", "low", "expected"),
    [("bf16", True, 2.0), ("fp8", False, 2.0), ("fp8", True, 1.0), ("mxfp8", True, 2.0)],
)
def test_parameters_travel_as_they_are_stored_where_arrival_can_turn_them(precision, low, expected):
    from perfmodel.base.precisions import PRECISIONS
    from perfmodel.training.project import gather_bytes

    framework = load_framework("megatron", low_precision_parameters=low)
    assert gather_bytes(framework, PRECISIONS.index(precision)) == expected


@pytest.mark.parametrize(
    ("precision", "changes", "reduced"),
    [
        ("fp8", {}, True),
        ("fp8", {"scaling": "current"}, False),
        ("fp8", {"reduces_scales": False}, False),
        ("bf16", {}, False),
    ],
)
def test_delayed_scales_cost_two_reductions_for_every_chunk_and_micro_batch(
    precision, changes, reduced, project, h100, small_dense
):
    from perfmodel.compute.collectives import collective_times

    fields = {"tensor_parallel": 2, "data_parallel": 16, "pipeline_parallel": 2}
    fields |= {"virtual_pipeline": 2, "micro_batches": 8, "precision": precision}
    model = replace(small_dense, layers=small_dense.layers * 2)

    def total(**facts):
        framework = load_framework("megatron", **facts)
        return project(model, h100, framework=framework, **fields)["data_parallel_total"]

    none = total(**{**changes, "reduces_scales": False})
    each = collective_times(h100, "all_reduce", 4.0 * 12 * model.num_layers, 32)[0]
    expected = none + reduced * 2 * 8 * 2 * each  # micro-batches and chunks
    assert total(**changes) == pytest.approx(expected, rel=1e-9)


def test_copies_of_fsdp2_take_memory_traffic_once_per_gather_and_reduction(h100, small_dense):
    """14 B of every parameter and micro-batch: out of two gathers, 4 each, and into a reduction."""
    from perfmodel.analysis.projection import project
    from perfmodel.compute.stream import stream_times

    framework = load_framework("torchtitan")
    without = load_framework(framework, gather_copy_bytes=0.0, reduce_copy_bytes=0.0)

    def exposed(software, devices):
        found = project(
            small_dense,
            h100,
            devices,
            sequence_length=4096,
            global_batch_size=16,
            micro_batch_size=1,
            zero_stage=3,
            framework=software,
        )
        return found["data_parallel_exposed"]

    batches, rate = 16 // 8, stream_times(h100, 1e9, 1e9).time[0] / 2e9
    copied = exposed(framework, 8) - exposed(without, 8)
    bytes_moved = small_dense.parameter_count() * 14.0 * batches
    assert copied == pytest.approx(bytes_moved * rate, rel=0.01)  # tables are padded
    assert exposed(framework, 1) == exposed(without, 1) == 0.0


def test_nothing_hides_the_first_gather_nor_the_last_reduction(h100, small_dense):
    """Layers of no compute but all the time in the world still wait for one of each."""
    from perfmodel.analysis.projection import project

    def exposed(layers):
        model = replace(small_dense, layers=small_dense.layers * layers)
        found = project(
            model,
            h100,
            8,
            sequence_length=32768,
            global_batch_size=8,
            zero_stage=3,
            recompute="none",
            framework=load_framework("fsdp", reduce_copy_bytes=0.0),
        )
        return found["data_parallel_exposed"], found["data_parallel_total"]

    (few, little), (many, much) = exposed(1), exposed(4)
    hidden = 1.0 - h100.calibrated("network", "overlap_compute_tax")
    layers = len(small_dense.layers)
    # A third of what a layer moves is its forward gather, another its reduction.
    each = (much - little) / (3 * layers)
    tax = (many - few) / (3 * layers)
    assert tax == pytest.approx((1.0 - hidden) * each, rel=1e-6)
    edges = few - tax * layers
    assert edges > 2.0 / 3.0 * hidden * each


@pytest.mark.parametrize(("call_time", "held_up"), [(1e-9, False), (1.0, True)])
def test_owners_that_broadcast_are_held_up_by_their_hosts(
    call_time, held_up, project, h100, small_dense
):
    slow = h100.with_values({"calibration.host.collective_call_time": call_time})

    def total(**facts):
        framework = load_framework("internevo", **facts)
        fields = {"data_parallel": 16, "zero_stage": 1, "shard_group": 8}
        return project(small_dense, slow, framework=framework, **fields)["data_parallel_total"]

    reduce = total(broadcasts_parameters=False)
    assert total() == pytest.approx(7.0 if held_up else reduce, rel=0.1)
