"""SimAI-Analytical parity: formulas by hand, oddities, and the real binary's results."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError, HardwareError, StrategyError
from perfmodel.workloads.formats.aicb_text import TRANSFORMER, parse_aicb_text
from perfmodel.workloads.twins.simai.bandwidth import (
    SimaiSystem,
)
from perfmodel.workloads.twins.simai.step import SimaiOverlap, simulate

A100 = SimaiSystem(8, 8, "A100", "cx6")
MIB = 2**20
GIB = 2**30
ROW = "x\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tNONE\t0\t100"


def workload(*rows, tensor=2, expert=1, pipeline=1, layers=1, batches=1, message=0):
    """Make a workload; a row is (name, three computations [ns], {phase: (collective, size)})."""
    lines = []
    for name, times, sends in rows:
        cells = [name, -1]
        for time, phase in zip(times, ("forward", "input", "weight"), strict=True):
            cells += [time, *sends.get(phase, ("NONE", 0))]
        lines.append("\t".join(map(str, [*cells, 100])))
    header = (
        f"{TRANSFORMER} model_parallel_NPU_group: {tensor} ep: {expert} "
        f"pp: {pipeline} vpp: {layers} ga: {batches} all_gpus: 1 checkpoints: 0 "
        f"checkpoint_initiates: 0 pp_comm: {message}"
    )
    return parse_aicb_text("\n".join([header, str(len(rows)), *lines]) + "\n")


def one(phase, collective, size, world_size=512, system=A100, **degrees):
    """Time of one collective [s]."""
    result = simulate(
        workload(("x", (0, 0, 0), {phase: (collective, size)}), **degrees), world_size, system
    )
    phases = {
        "forward": result.forward,
        "input": result.input_gradient,
        "weight": result.weight_gradient,
    }
    return phases[phase].communication[0]


@pytest.mark.parametrize(
    ("phase", "collective", "size", "degrees", "seconds"),
    [
        # size / 2^30 / bandwidth × (n - 1) / n, twice that for an all-reduce, cut to ns.
        ("forward", "ALLREDUCE", 8 * MIB, {}, 32.552e-6),  # 2^-7 / 240 × 2 / 2
        # 4 of 8 adapters for a data-parallel group of 256: 94 GB/s.
        ("weight", "ALLGATHER", 6459228160, {}, 63745978e-9),  # seed_exec1 / 3 = 63746 us
        # Share 0.55 / 0.81 of 240 GB/s; EndToEnd of v15_mixtral says 96 us for 32 MiB.
        ("forward", "ALLGATHER", 32 * MIB, {}, 95.880e-6),
        # 23.5 × 4 / 4 × 7 / 4 × 0.63 / 0.80 = 32.386 GB/s; v15_mixtral says 844 us at 32.39.
        ("forward", "ALLTOALL_EP", 32 * MIB, {"expert": 8, "world_size": 128}, 844.31e-6),
        # Expert data parallel, 64 / 8 = 8 replicas on one adapter each: 23.5 GB/s, no share.
        ("weight", "REDUCESCATTER_DP_EP", GIB, {"expert": 8, "world_size": 128}, 37.234042e-3),
    ],
)
def test_collectives_by_hand(phase, collective, size, degrees, seconds):
    assert one(phase, collective, size, **degrees) == pytest.approx(seconds, rel=2e-5)


@pytest.mark.parametrize(
    ("members", "microseconds"),
    [*{2: 10, 4: 12, 8: 15, 16: 66, 32: 135, 64: 200, 128: 320}.items(), (1, 0), (3, 0), (256, 0)],
)
def test_latency_of_small_messages(members, microseconds):
    # aicb.md section 4: a table by group size, nothing for any other (Layer.cc:967).
    for size in (2, MIB - 1):
        time = one("weight", "ALLGATHER", size, world_size=members, tensor=1)
        assert time == pytest.approx(microseconds * 1e-6, abs=1e-12)


def test_an_unlisted_group_size_is_noted():
    row = ("x", (0, 0, 0), {"forward": ("ALLREDUCE", 100)})
    result = simulate(workload(row, tensor=6), 6, A100)
    assert result.notes == ("SimAI counts no time for small messages among 6 devices",)
    assert simulate(workload(row, tensor=4), 4, A100).notes == ()


def test_components_add_up_by_hand():
    # Forward 32552 ns of ALLREDUCE, input gradient 65104 ns; data parallel 2 of 2 nodes:
    # 16 MiB / 2^30 / 94 / 2 = 83.112 us.
    row = (
        "x",
        (1_000, 2_000, 3_000),
        {"forward": ("ALLREDUCE", 8 * MIB), "input": ("ALLREDUCE", 16 * MIB),
         "weight": ("ALLGATHER", 16 * MIB)},
    )  # fmt: skip
    embedding = ("embedding_layer", (10_000, 0, 0), {})
    result = simulate(workload(embedding, row, pipeline=3, layers=2, batches=4), 12, A100)
    assert result.tensor_parallel == pytest.approx(97.656e-6, abs=1e-9)
    assert result.data_parallel == pytest.approx(83.111e-6, abs=1e-9)
    assert result.compute == pytest.approx(16e-6, abs=1e-12)
    assert result.exposed_communication == pytest.approx(180.767e-6, abs=1e-9)
    # (pp - 1) / (ga vpp) of forward and input gradient and all computation, no embedding row.
    assert result.bubble == pytest.approx(2 / 8 * (97.656e-6 + 6e-6), abs=1e-9)
    assert result.pipeline_parallel == 0
    assert result.total == pytest.approx(
        result.compute + result.exposed_communication + result.bubble, abs=1e-12
    )
    assert result.expert_parallel == result.expert_data_parallel == 0


def test_bandwidths_as_reported():
    # EndToEnd of v15_mixtral: ALLGATHER over tp 2, algbw 325.93, busbw 162.96 (GiB/s).
    row = ("x", (0, 0, 0), {"forward": ("ALLGATHER", 32 * MIB)})
    phase = simulate(workload(row), 512, A100).forward
    assert phase.algorithm_bandwidth[0] / GIB == pytest.approx(325.93, abs=0.01)
    assert phase.bus_bandwidth[0] / GIB == pytest.approx(162.96, abs=0.01)


def test_the_smallest_forward_messages_are_padded():
    # Workload.cc pads messages below 4096 B, in the forward phase alone: 4 B show 0.38 GiB/s.
    row = ("x", (0, 0, 0), {"forward": ("ALLREDUCE", 4), "input": ("ALLREDUCE", 4)})
    result = simulate(workload(row), 512, A100)
    assert result.forward.algorithm_bandwidth[0] / GIB == pytest.approx(0.38, abs=0.005)
    assert result.input_gradient.algorithm_bandwidth[0] == pytest.approx(4 / 10e-6)


def test_the_forward_group_decides_where_input_gradients_count():
    expert = {"forward": ("ALLTOALL_EP", 32 * MIB), "input": ("ALLREDUCE", 8 * MIB)}
    tensor = {"input": ("ALLTOALL_EP", 32 * MIB)}
    both = simulate(workload(("x", (0, 0, 0), expert), expert=8), 128, A100)
    assert both.tensor_parallel == 0 < both.expert_parallel
    only = simulate(workload(("x", (0, 0, 0), tensor), expert=8), 128, A100)
    assert only.expert_parallel == 0 < only.tensor_parallel


def test_overlap_hides_its_share():
    row = (
        "x",
        (0, 0, 0),
        {"forward": ("ALLREDUCE", 8 * MIB), "weight": ("ALLGATHER", 16 * MIB)},
    )
    full = simulate(workload(row), 512, A100)
    half = simulate(workload(row), 512, A100, SimaiOverlap(data=0.5, tensor=1.0))
    assert half.tensor_parallel == 0 < full.tensor_parallel
    assert half.data_parallel == pytest.approx(full.data_parallel / 2, abs=1e-9)
    assert half.forward.communication[0] == full.forward.communication[0]


def test_pipeline_sends_divide_by_the_overlap():
    # 2 vpp ga pp_comm / 2^30 / 0.5 × (1 - 0.5): the ratio stands where the bandwidth belongs.
    row = ("x", (1, 1, 1), {})
    work = workload(row, pipeline=2, layers=3, batches=4, message=GIB)
    assert simulate(work, 4, A100, SimaiOverlap(pipeline=0.5)).pipeline_parallel == 24.0
    assert simulate(work, 4, A100).pipeline_parallel == 0.0


def test_what_simai_cannot_compute_is_noted():
    row = ("x", (0, 0, 0), {"input": ("ALLREDUCE", GIB)})
    alone = simulate(workload(row, tensor=1), 8, A100)
    # 0 / 0 becomes 2^63 ns, as g++ 13 on x86-64 converts not-a-number.
    assert alone.input_gradient.communication[0] == 2**63 / 1e9
    assert "one device" in alone.notes[0]
    none = simulate(workload(("x", (1, 1, 1), {}), batches=0), 8, A100)
    assert np.isnan(none.total)
    assert "divides the bubble by 0" in none.notes[0]
    few = SimaiSystem(8, 1, "A100", "cx6")
    row = ("x", (0, 0, 0), {"weight": ("ALLREDUCE", GIB)})
    assert "no adapter" in simulate(workload(row), 8, few).notes[0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tensor": 0}, StrategyError, "model_parallel_NPU_group: 0.*>= 1"),
        ({"tensor": 4, "pipeline": 4}, StrategyError, r"world_size 8 .* >= 16"),
        ({"message": 2**31}, DataError, "pp_comm: 2147483648"),
    ],
)
def test_bad_workloads_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        simulate(workload(("x", (1, 1, 1), {}), **change), 8, A100)


def test_other_kinds_of_workload_are_refused():
    with pytest.raises(DataError, match=TRANSFORMER):
        simulate(parse_aicb_text("MICRO\n0\n"), 8, A100)
    with pytest.raises(DataError, match="no rows"):
        simulate(workload(), 8, A100)
    with pytest.raises(FormatError, match="lacks 'model_parallel_NPU_group"):
        simulate(parse_aicb_text(f"{TRANSFORMER} ep: 1\n1\n{ROW}\n"), 8, A100)
    with pytest.raises(DataError, match="without checkpoints"):
        simulate(parse_aicb_text(f"{TRANSFORMER} checkpoints: 1 5\n1\n{ROW}\n"), 8, A100)


def test_messages_beyond_the_ratio_tables_are_refused():
    with pytest.raises(DataError, match="Data size out of range"):
        one("forward", "ALLGATHER", 16 * GIB + 1)
    assert one("forward", "ALLREDUCE", 16 * GIB + 1) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_type": "A1000"}, "gpu_type 'A1000'; did you mean A100"),
        ({"gpu_type": "A100", "nic_type": "cx8"}, "nic_type 'cx8'"),
        ({}, "needs a gpu_type or an nvlink_bandwidth"),
        ({"nvlink_bandwidth": float("nan")}, "nvlink_bandwidth nan"),
        ({"gpu_type": "A100", "nic_bandwidth": -1.0}, "nic_bandwidth -1"),
        ({"gpu_type": "A100", "nics_per_node": 0}, "nics_per_node 0"),
        ({"gpu_type": "A100", "nics_per_node": float("nan")}, "nics_per_node nan"),
        ({"gpu_type": "A100", "nics_per_node": "8"}, "nics_per_node '8'"),
        ({"gpu_type": "A100", "nic_bandwidth": "fast"}, "nic_bandwidth 'fast'"),
    ],
)
def test_bad_systems_are_refused(arguments, message):
    with pytest.raises(HardwareError, match=message):
        SimaiSystem(**{"devices_per_node": 8, "nics_per_node": 8} | arguments)


def test_bad_overlap_is_refused():
    with pytest.raises(StrategyError, match=r"overlap of data 1\.5"):
        SimaiOverlap(data=1.5)
    with pytest.raises(StrategyError, match=r"overlap of tensor None should be 0 to 1"):
        SimaiOverlap(tensor=None)
