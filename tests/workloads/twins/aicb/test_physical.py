"""AICB's text workloads on a hardware profile: by hand, in its limits, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import DataError, HardwareError, StrategyError
from perfmodel.compute.collectives import collective_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.sweeps.several import sweep
from perfmodel.training.step.workload import projected_workload
from perfmodel.workloads.export.text import corrected_workload
from perfmodel.workloads.formats.aicb_text import TRANSFORMER, parse_aicb_text
from perfmodel.workloads.twins.aicb.physical import run_on_hardware

MIB = 2**20
FORWARD, INPUT, WEIGHT = range(3)


@pytest.fixture(scope="module")
def h100():
    return load_hardware("dgx-h100")


def workload(*rows, tensor=2, expert=1, pipeline=1, batches=1, message=0, policy=TRANSFORMER):
    """Make a workload; a row is (name, three computations [ns], {phase: (collective, size)})."""
    lines = []
    for name, times, sends in rows:
        cells = [name, -1]
        for phase, time in enumerate(times):
            cells += [time, *sends.get(phase, ("NONE", 0))]
        lines.append("\t".join(map(str, [*cells, 100])))
    header = (
        f"{policy} model_parallel_NPU_group: {tensor} ep: {expert} "
        f"pp: {pipeline} vpp: 4 ga: {batches} all_gpus: 1 checkpoints: 0 "
        f"checkpoint_initiates: 0 pp_comm: {message}"
    )
    return parse_aicb_text("\n".join([header, str(len(rows)), *lines]) + "\n")


def test_computation_and_communication_add_up(h100):
    found = workload(
        ("attention_layer", (1000, 2000, 3000), {FORWARD: ("ALLREDUCE", 64 * MIB)}),
        ("mlp_layer", (10, 20, 30), {INPUT: ("ALLGATHER", 8 * MIB)}),
    )
    result = run_on_hardware(found, 16, h100)
    reduce = collective_times(h100, "all_reduce", 64.0 * MIB, 2)[0]
    gather = collective_times(h100, "all_gather", 8.0 * MIB, 2)[0]
    assert result.compute == pytest.approx(6060e-9)
    assert result.forward.communication.tolist() == pytest.approx([reduce, 0.0])
    assert result.tensor_parallel == pytest.approx(reduce + gather)
    assert result.total == pytest.approx(6060e-9 + reduce + gather)
    assert result.bubble == result.pipeline_parallel == result.data_parallel == 0.0
    assert result.forward.bus_bandwidth[0] == pytest.approx(64 * MIB / reduce)


@pytest.mark.parametrize(
    ("phase", "text", "kind", "members", "stride", "part"),
    [
        (WEIGHT, "ALLREDUCE", "all_reduce", 16, 4, "data_parallel"),
        (FORWARD, "ALLTOALL_EP", "all_to_all", 2, 4, "expert_parallel"),
        (WEIGHT, "ALLTOALL_EP", "all_to_all", 2, 4, "expert_parallel"),
        (WEIGHT, "REDUCESCATTER_DP_EP", "reduce_scatter", 8, 8, "expert_data_parallel"),
        (INPUT, "REDUCESCATTER", "reduce_scatter", 4, 1, "tensor_parallel"),
    ],
)
def test_groups_lie_as_in_megatron(h100, phase, text, kind, members, stride, part):
    found = workload(("mlp_moelayer", (0, 0, 0), {phase: (text, MIB)}), tensor=4, expert=2)
    result = run_on_hardware(found, 64, h100)
    assert getattr(result, part) == pytest.approx(
        collective_times(h100, kind, float(MIB), members, stride)[0]
    )
    assert result.total == pytest.approx(result.exposed_communication)


def test_only_rows_of_micro_batches_fill_the_pipeline(h100):
    rows = [
        ("grad_gather", (5000, 0, 0), {}),
        ("optimizer1", (7000, 0, 0), {}),
        *[("attention_layer", (1000, 2000, 3000), {})] * 4,
    ]
    found = workload(*rows, tensor=1, pipeline=4, batches=2, message=16 * MIB)
    result = run_on_hardware(found, 64, h100)
    assert result.bubble == pytest.approx(3 / 2 * 4 * 6000e-9)
    send = collective_times(h100, "point_to_point", 16.0 * MIB, 2, 16)[0]
    assert result.pipeline_parallel == pytest.approx(2 * 2 * send)
    interleaved = run_on_hardware(found, 64, h100, virtual_pipeline=2)
    assert interleaved.bubble == pytest.approx(result.bubble / 2)
    assert interleaved.pipeline_parallel == pytest.approx(2 * result.pipeline_parallel)


def test_groups_of_one_device_and_empty_messages_take_no_time(h100):
    row = ("x", (0, 0, 0), {FORWARD: ("ALLREDUCE", MIB), WEIGHT: ("ALLREDUCE", MIB)})
    assert run_on_hardware(workload(row, tensor=1), 1, h100).total == 0.0
    empty = ("x", (0, 0, 0), {FORWARD: ("ALLREDUCE", 0)})
    assert run_on_hardware(workload(empty), 2, h100).total == 0.0


def test_more_bandwidth_never_takes_longer(h100):
    row = ("x", (100, 0, 0), {FORWARD: ("ALLREDUCE", 64 * MIB), WEIGHT: ("ALLGATHER", 256 * MIB)})
    system = h100.system
    faster = tuple(replace(level, bandwidth=2 * level.bandwidth) for level in system.network)
    better = replace(h100, system=replace(system, network=faster))
    found = workload(row, tensor=8)
    before, after = (run_on_hardware(found, 64, one).total for one in (h100, better))
    assert 100e-9 < after < before


def test_the_corrected_file_of_a_projection_takes_its_communication(h100):
    model = load_model("llama-3.1-8b")
    strategy = strategies_from_rows(model, 16, [{
        "sequence_length": 4096, "global_batch_size": 8, "tensor_parallel": 4,
    }])  # fmt: skip
    found = corrected_workload(projected_workload(model, strategy, h100))
    result = run_on_hardware(found, 16, h100)
    computed = sum(phase.compute_time.sum() for phase in (
        found.forward, found.input_gradient, found.weight_gradient,
    ))  # fmt: skip
    assert result.compute == pytest.approx(float(computed) * 1e-9)
    row = int(np.flatnonzero(np.char.startswith(found.name, "grad_param_comm"))[0])
    size, count = float(found.weight_gradient.size[row]), 4
    expected = collective_times(h100, "reduce_scatter", size, count, 4)[0]
    assert result.weight_gradient.communication[row] == pytest.approx(expected)
    projected = sweep(model, strategy, h100, dtype="float64").isel(strategy=0, hardware=0)
    for ours, name in (("tensor_parallel", "tensor"), ("data_parallel", "data")):
        total = float(projected[f"{name}_parallel_total"])
        assert getattr(result, ours) == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "devices", "words"),
    [
        ({"batches": 0}, 16, "'ga: 0' in the workload's header should be >= 1"),
        ({"expert": 3}, 16, "'ep: 3' in the workload's header does not divide the 8 data"),
        ({"tensor": 8, "pipeline": 4}, 16, "world_size 16 should be a whole number >= 32"),
        ({"policy": "DATA"}, 16, "known for HYBRID_TRANSFORMER_FWD_IN_BCKWD workloads only"),
    ],
)
def test_what_cannot_run_is_refused(h100, fields, devices, words):
    with pytest.raises((StrategyError, DataError), match=words):
        run_on_hardware(workload(("x", (1, 1, 1), {}), **fields), devices, h100)


def test_too_few_places_and_unknown_collectives_are_refused(h100):
    network = (replace(h100.system.network[0], size=8),)
    node = replace(h100, system=replace(h100.system, network=network))
    with pytest.raises(HardwareError, match="16 devices, but hardware profile"):
        run_on_hardware(workload(("x", (1, 1, 1), {})), 16, node)
    odd = workload(("x", (1, 1, 1), {FORWARD: ("ALLREDUCEALLTOALL", MIB)}))
    with pytest.raises(StrategyError, match="ALLREDUCEALLTOALL is no collective that runs"):
        run_on_hardware(odd, 16, h100)
    with pytest.raises(StrategyError, match="virtual_pipeline is 0"):
        run_on_hardware(workload(("x", (1, 1, 1), {})), 16, h100, virtual_pipeline=0)
