"""State in the host's memory: what leaves the device, what shows, and what needs a host."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import load_hardware, load_model, projected_workload, strategies_from_rows, sweep
from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.base.strategy_fields import OFFLOAD, OFFLOAD_TO
from perfmodel.hwprofiles import list_hardware
from perfmodel.kernels.step.offload import parked, update_exposed
from perfmodel.kernels.step.tables import HOST, STAGE_PLACE, blank_stages
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.model.build import dense_model
from perfmodel.software.framework import load_framework
from perfmodel.software.modules import INPUTS
from perfmodel.store.results import as_table, decide_safely
from perfmodel.strategy.rules import STATUS_NAMES
from perfmodel.training.stages import stage_memories
from tests.amount import cases


def tupled(**values):
    return namedtuple("Tupled", values)(**values)


RUN = {"sequence_length": 4096, "micro_batches": 2, "data_parallel": 8}
FAST = {"system.host.bandwidth": 1e15, "system.host.memory_bandwidth": 1e15}


@pytest.mark.parametrize("field", OFFLOAD)
@pytest.mark.parametrize("stage", [1, 3])
def test_what_leaves_the_device_waits_with_the_host(project, h100, llama_8b, field, stage):
    fields = {"zero_stage": stage, "framework": "fsdp" if stage == 3 else "megatron", **RUN}
    plain, half, whole = (project(llama_8b, h100, **{field: x}, **fields) for x in (0.0, 0.5, 1.0))
    assert plain["memory_host"] == plain["offload_exposed"] == 0.0
    assert plain["memory_total"] > half["memory_total"] > whole["memory_total"]
    assert half["memory_host"] == pytest.approx(whole["memory_host"] / 2)
    for found in (plain, half, whole):
        assert sum(found[x] for x in TIME_COMPONENTS) == pytest.approx(found["step_time"])
        assert sum(found[x] for x in MEMORY_COMPONENTS) == pytest.approx(found["memory_total"])
    component = field.replace("offload", "memory")
    left = {name: plain[name] - whole[name] for name in MEMORY_COMPONENTS}
    assert 0 < left[component] <= whole["memory_host"] * (1 + 1e-12)
    # Nothing but that, what is lost around it, and gradient shards that the host adds up.
    others = ("memory_fragmentation", "memory_gradients", "memory_buffers", component)
    assert all(left[name] == 0 for name in MEMORY_COMPONENTS if name not in others)


def test_a_link_without_limits_hides_all_but_the_update(project, h100, llama_8b):
    free = h100.with_values(FAST)
    for field in OFFLOAD:
        found = project(llama_8b, free, **{field: 1.0}, **RUN)
        assert found["offload_exposed"] < 1e-4 * found["step_time"]


def test_activations_show_where_they_outlast_their_pass(project, h100, small_dense):
    """Bytes over the link, out and back, less both passes of the lone stage."""
    slow = h100.with_values({"system.host.bandwidth": 1e9})
    fields = {"sequence_length": 4096, "micro_batches": 3}
    plain = project(small_dense, slow, **fields)
    found = project(small_dense, slow, offload_activations=1.0, **fields)
    copies = 2 * found["memory_host"] / 1e9
    passes = (plain["forward_time"] + plain["backward_time"]) / 3
    assert found["offload_exposed"] / 3 == pytest.approx(copies - passes, rel=1e-2)


@settings(max_examples=cases(25), deadline=None)
@given(
    shares=st.tuples(*[st.sampled_from([0.0, 0.25, 1.0])] * 3),
    zero=st.integers(0, 3),
    pipeline=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_more_with_the_host_is_never_faster_nor_larger(project, shares, zero, pipeline, recompute):
    model = load_model("llama-3.2-1b")
    fields = {
        "zero_stage": zero,
        "pipeline_parallel": pipeline,
        "recompute": recompute,
        **RUN,
    }
    plain = project(model, "dgx-h100", **fields)
    found = project(model, "dgx-h100", **fields, **dict(zip(OFFLOAD, shares, strict=True)))
    assert found["memory_total"] <= plain["memory_total"]
    assert found["offload_exposed"] >= 0.0
    if shares[1] == 0.0:
        assert found["step_time"] >= plain["step_time"] * (1 - 1e-12)


@pytest.mark.parametrize(
    ("billions", "seconds"), [(1, 0.22), (2, 0.51), (4, 1.03), (8, 2.41), (10, 2.57)]
)
def test_updates_of_the_host_as_zero_offload_measured_them(billions, seconds):
    """CPU-Adam on two Xeon 8168 (arXiv:2101.06840, table 4), 256 GB/s of host memory."""
    strategy = tupled(
        zero_stage=0,
        offload_optimizer=1.0,
        offload_parameters=1.0,
        offload_optimizer_to=HOST,
        offload_parameters_to=HOST,
    )
    load = tupled(weights=billions * 1e9, experts=0.0)
    stage = tupled(backward_window=1e9)
    host = tupled(
        optimizer_bytes=12.0,
        gradient_bytes=4.0,
        gather_bytes=2.0,
        reduce_bytes=2.0,
        host_bandwidth=12e9,
        host_memory_bandwidth=256e9,
        nvme_read=0.0,
        nvme_write=0.0,
        overlap_nvme=False,
    )
    group = tupled(members=1, shard_set=0)
    found = update_exposed(strategy, load, stage, tupled(dense=group, sparse=group), host, 0.0)
    assert found == pytest.approx(seconds, rel=0.18)


@pytest.mark.parametrize(
    ("billions", "layers", "share", "fits"),
    [
        (4, 20, 0.0, False),
        (10, 50, 0.0, False),
        (10, 50, 1.0, True),
        (13, 65, 1.0, True),
        (20, 98, 1.0, False),
    ],
)
def test_models_fit_one_v100_as_zero_offload_trained_them(billions, layers, share, fits):
    """Over 13 billion parameters on one device, 10 times as many as without (arXiv:2101.06840)."""
    hidden = 4096
    model = dense_model(
        "gpt",
        layers=layers,
        hidden_size=hidden,
        heads=hidden // 64,
        intermediate_size=4 * hidden,
        vocab_size=50304,
        gated=False,
        norm="layer",
        bias=True,
        tied_embeddings=True,
        position_embedding="learned",
        max_positions=1024,
    )
    assert model.parameter_count() == pytest.approx(billions * 1e9, rel=0.07)
    row = {"sequence_length": 1024, "global_batch_size": 512, "micro_batch_size": 4}
    row |= {"zero_stage": 2, "recompute": "full", "precision": "fp16", "offload_optimizer": share}
    one = load_hardware("dgx-1-v100").with_values({"system.host.memory_capacity": 1.5e12})
    grid = strategies_from_rows(model, 1, [row])
    found = sweep(model, grid, one, framework="megatron-deepspeed-2021", dtype="float64")
    assert bool(found["fits"].values.flat[0]) is fits


def test_the_device_updates_its_part_beside_the_host(project, h100, llama_8b):
    plain, half = (project(llama_8b, h100, offload_optimizer=x, **RUN) for x in (0.0, 0.5))
    assert half["optimizer_time"] == pytest.approx(plain["optimizer_time"] / 2, rel=0.01)


def test_what_the_host_cannot_hold_does_not_fit(h100, llama_8b):
    row = {"sequence_length": 4096, "global_batch_size": 8, "offload_optimizer": 1.0}
    grid = strategies_from_rows(llama_8b, 8, [row])
    small = h100.with_values({"system.host.memory_capacity": 1e9})
    for hardware, fits in ((h100, True), (small, False)):
        found = sweep(llama_8b, grid, hardware, dtype="float64")
        assert bool(found["fits"].values.flat[0]) is fits


@pytest.mark.parametrize("field", OFFLOAD)
def test_offload_without_a_host_is_one_line(project, llama_8b, field):
    with pytest.raises(StrategyError, match=f"{field}: offload without a host: l4-server"):
        project(llama_8b, "l4-server", **{field: 0.5})


def test_workloads_refuse_what_they_cannot_hold(llama_8b):
    row = {"sequence_length": 4096, "global_batch_size": 8, "offload_activations": 1.0}
    grid = strategies_from_rows(llama_8b, 8, [row])
    with pytest.raises(StrategyError, match="no copies to and from a host"):
        projected_workload(llama_8b, grid, "dgx-h100")


def test_hosts_of_profiles_are_whole(h100):
    for name in list_hardware():
        host = load_hardware(name).system.host
        given = (host.bandwidth, host.memory_capacity, host.memory_bandwidth)
        assert all(given) or not host.bandwidth, name
        # No link outruns the memory behind it but where a processor has one channel per device.
        assert host.bandwidth <= host.memory_bandwidth or not host.bandwidth, name
    with pytest.raises(HardwareError, match=r"needs 'system\.host\.memory_capacity'"):
        h100.with_values({"system.host.memory_capacity": 0.0})
    with pytest.raises(HardwareError, match=r"system\.host\.bandwidth"):
        h100.with_values({"system.host.bandwidth": -1.0})


def test_recomputed_layers_leave_their_inputs_alone(project, h100, small_dense):
    """MaxText's host offload of decoder layer inputs: full recomputation, inputs with the host."""
    fields = {"sequence_length": 4096, "recompute": "full", "offload_activations": 1.0}
    found = project(small_dense, h100, **fields)
    assert found["memory_host"] == pytest.approx(8 * 4096 * 2048 * 2)
    assert np.isfinite(found["step_time"])


NVME = {"offload_optimizer_to": "nvme", "offload_parameters_to": "nvme"}
WHOLE = {"offload_optimizer": 1.0, "offload_parameters": 1.0}


def test_drives_hold_what_the_hosts_memory_would(project, h100, llama_8b):
    """All bytes are somewhere: parameters, states, and the gradients that are read with them."""
    fields = {**WHOLE, "zero_stage": 3, "framework": "fsdp", **RUN}
    host = project(llama_8b, h100, **fields)
    nvme = project(llama_8b, h100, **NVME, **fields)
    assert nvme["memory_total"] == host["memory_total"]
    assert nvme["memory_nvme"] == pytest.approx(host["memory_host"], rel=1e-12)
    assert host["memory_nvme"] == 0.0 < nvme["memory_host"]
    assert nvme["step_time"] > host["step_time"]


def test_states_on_drives_are_read_and_written_once(project, h100, llama_8b):
    """Eight billion parameters over eight ranks: 16 B in, 12 B out, and gradients beforehand."""
    slow = h100.with_values({"system.host.nvme_read": 2e9, "system.host.nvme_write": 1e9})
    fields = {"offload_optimizer": 1.0, "zero_stage": 2, **RUN}
    host = project(llama_8b, slow, **fields)
    nvme = project(llama_8b, slow, offload_optimizer_to="nvme", **fields)
    updated = nvme["memory_nvme"] / 16.0
    turns = updated * (16.0 / 2e9 + 12.0 / 1e9)
    late = updated * 4.0 / 1e9 - host["backward_time"] / RUN["micro_batches"]
    assert late > 0.0
    more = nvme["offload_exposed"] - host["offload_exposed"]
    assert more == pytest.approx(turns + late, rel=0.02)


def test_drives_beside_the_update_take_no_longer(grid_of, h100, llama_8b):
    grid = grid_of(llama_8b, offload_optimizer=1.0, offload_optimizer_to="nvme", **RUN)
    turns, beside = (
        sweep(llama_8b, grid, h100, framework=it, dtype="float64")["offload_exposed"].item()
        for it in (load_framework("megatron"), load_framework("megatron", overlap_nvme=True))
    )
    assert beside < turns


@settings(max_examples=cases(25), deadline=None)
@given(
    place=st.sampled_from(["host", "nvme"]),
    share=st.sampled_from([0.25, 1.0]),
    key=st.sampled_from(["bandwidth", "memory_bandwidth", "nvme_read", "nvme_write"]),
    zero=st.integers(0, 3),
)
def test_slower_links_and_drives_are_never_faster(project, h100, place, share, key, zero):
    model = load_model("llama-3.2-1b")
    fields = dict.fromkeys(OFFLOAD, share) | dict.fromkeys(OFFLOAD_TO.values(), place)
    slow = h100.with_values({f"system.host.{key}": getattr(h100.system.host, key) / 4})
    fast, late = (project(model, it, zero_stage=zero, **fields, **RUN) for it in (h100, slow))
    assert late["step_time"] >= fast["step_time"] * (1 - 1e-12)
    assert late["memory_total"] == fast["memory_total"]


def test_what_drives_cannot_hold_does_not_fit(h100, llama_8b):
    row = {"sequence_length": 4096, "global_batch_size": 8, "offload_optimizer": 1.0}
    grid = strategies_from_rows(llama_8b, 8, [row | {"offload_optimizer_to": "nvme"}])
    small = h100.with_values({"system.host.nvme_capacity": 1e9})
    for hardware, fits in ((h100, True), (small, False)):
        found = as_table(sweep(llama_8b, grid, hardware, dtype="float64"))
        assert bool(found["fits"].values.flat[0]) is fits
        decide_safely(found)  # the device's margin is not that of the drives
        assert bool(found["fits"].values.flat[0]) is fits


@pytest.mark.parametrize("field", OFFLOAD)
def test_nvme_without_drives_is_one_line(project, llama_8b, field):
    where = OFFLOAD_TO[field]
    with pytest.raises(StrategyError, match=f"{where}: offload without NVMe: v100-pcie states no"):
        project(llama_8b, "v100-pcie", **{field: 0.5, where: "nvme"})
    with pytest.raises(HardwareError, match=r"drives need 'system\.host\.nvme_capacity'"):
        load_hardware("v100-pcie").with_values({"system.host.nvme_read": 1e9})


def pipeline_of(stages, bytes_of_stage):
    """`Stages` of a pipeline in which every stage has a composition of its own."""
    sums = blank_stages(stages)
    sums["activations"] = bytes_of_stage
    sums["first_stage"], sums["pair"] = np.arange(stages), np.arange(stages)[::-1]
    return tupled(sums=sums)


@pytest.mark.parametrize("stages", [2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("batches", [1, 6, 64])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_pairs_of_stages_keep_what_they_hand_over(stages, batches, share):
    """BPipe: what leaves arrives, and none keeps more than ⌈(p + 2) / 2⌉ micro-batches."""
    strategy = tupled(
        offload_activations=share, offload_activations_to=STAGE_PLACE, pipeline_parallel=stages
    )
    sizes = np.linspace(1.0, 2.0, stages)
    moved = np.array(
        [parked(strategy, batches, pipeline_of(stages, sizes), row) for row in range(stages)]
    )
    assert moved[:, 0].sum() == pytest.approx(moved[:, 1].sum())
    alike = np.array(
        [parked(strategy, batches, pipeline_of(stages, 1.0), row) for row in range(stages)]
    )
    kept = np.minimum(batches, stages - np.arange(stages)) - alike @ [1.0, -1.0]
    most = max(-(-(stages + 2) // 2), 1)
    if share == 1.0:
        assert kept.max() <= most
    assert kept.sum() == pytest.approx(np.minimum(batches, stages - np.arange(stages)).sum())


PAIRED = {"offload_activations": 1.0, "offload_activations_to": "stage"}


def test_early_stages_park_activations_on_late_ones(grid_of, h100, llama_8b):
    """Of eight stages the first keeps five of eight micro-batches, the last one three of them."""
    fields = {"pipeline_parallel": 8, "sequence_length": 4096, "micro_batches": 32}
    plain, paired = (
        stage_memories(llama_8b, grid_of(llama_8b, **run), h100, load_framework("megatron"))
        for run in (fields, {**fields, **PAIRED})
    )
    activations = MEMORY_COMPONENTS.index("memory_activations")
    first, last = (
        [memory[at].held[1, activations] for memory in (plain, paired)] for at in (0, -1)
    )
    assert first[1] == pytest.approx(first[0] * 5 / 8)
    assert last[1] - last[0] == pytest.approx(first[0] - first[1])


def test_parked_activations_show_where_their_link_is_slow(project, h100, small_dense):
    fields = {"pipeline_parallel": 8, "sequence_length": 4096, "micro_batches": 32}
    found = project(small_dense, h100, **PAIRED, **fields)
    assert found["memory_host"] == found["memory_nvme"] == 0.0
    # In one node NVLink carries them beside the passes; a link of 1 GB/s cannot.
    assert found["offload_exposed"] == 0.0
    slow = h100.with_values({"system.network.nvlink.bandwidth": 1e9})
    late = project(small_dense, slow, **PAIRED, **fields)
    assert late["offload_exposed"] > 0.0
    assert sum(late[x] for x in TIME_COMPONENTS) == pytest.approx(late["step_time"])


def test_pairs_need_no_host_but_a_pipeline(project, llama_8b):
    fields = {"sequence_length": 4096, "micro_batches": 8, "pipeline_parallel": 4}
    assert project(llama_8b, "l4-server", **PAIRED, **fields)["memory_host"] == 0.0
    rows = [
        {"sequence_length": 4096, "global_batch_size": 8, **PAIRED, **row}
        for row in ({}, {"pipeline_parallel": 4, "pipeline_schedule": "gpipe"})
    ]
    status = strategies_from_rows(llama_8b, 8, rows).status
    assert [STATUS_NAMES[code] for code in status] == ["no_paired_stage"] * 2


TOKENS, HIDDEN, HEADS, GROUPS, WIDTH = 4096, 4096, 32, 8, 14336


@pytest.mark.parametrize(
    ("words", "per_token"),
    [
        ("attn_norm", 2 * HIDDEN),
        ("qkv_linear", 2 * HIDDEN),
        ("core_attn", 2 * (HEADS + 2 * GROUPS) * 128 + 4 * HEADS),
        ("attn_proj", 2 * HEADS * 128),
        ("mlp_norm", 2 * HIDDEN),
        ("expert_fc1", 2 * 2 * HIDDEN),  # two experts a token
        ("moe_act", 2 * 2 * 2 * WIDTH),
        ("fused_group_mlp", 2 * 2 * (HIDDEN + 3 * WIDTH)),
        ("attn_proj moe_act", 2 * HEADS * 128 + 2 * 2 * 2 * WIDTH),
    ],
)
def test_modules_leave_their_inputs(project, h100, words, per_token):
    """Megatron-Core, ``offload_modules``: the tensors that a module saves, by its shapes."""
    framework = load_framework("megatron", offload_modules=words)
    fields = {"framework": framework, "sequence_length": TOKENS, "offload_activations": 1.0}
    found = project(load_model("mixtral-8x7b"), h100, **fields)
    assert found["memory_host"] == pytest.approx(32 * TOKENS * per_token)


PARTS = sorted(set(INPUTS) - {"fused_group_mlp"})


@settings(max_examples=cases(20), deadline=None)
@given(
    words=st.sets(st.sampled_from(PARTS), min_size=1),
    one=st.sampled_from(PARTS),
    recompute=st.sampled_from(["none", "selective", "full"]),
    name=st.sampled_from(["mixtral-8x7b", "deepseek-v2-lite", "llama-3.2-1b"]),
)
def test_more_modules_leave_no_less(project, words, one, recompute, name):
    model = load_model(name)
    fields = {"sequence_length": 4096, "recompute": recompute, "offload_activations": 1.0}
    some, more, whole = (
        project(
            model,
            "dgx-h100",
            load_framework("megatron", offload_modules=" ".join(it)),
            **fields,
        )
        for it in (words, {*words, one}, ())
    )
    assert some["memory_host"] <= more["memory_host"] <= whole["memory_host"] * (1 + 1e-12)
    assert some["offload_exposed"] <= more["offload_exposed"] <= whole["offload_exposed"]
    plain = project(model, "dgx-h100", sequence_length=4096, recompute=recompute)
    assert some["memory_total"] <= plain["memory_total"]


def test_a_module_that_is_none_is_one_line(project, h100, llama_8b):
    for words, message in (
        ("core_atn", "'core_atn' is no module; did you mean core_attn"),
        ("fused_group_mlp moe_act", "fused_group_mlp holds expert_fc1 and moe_act; name either"),
    ):
        framework = load_framework("megatron", offload_modules=words)
        with pytest.raises(StrategyError, match=message):
            project(llama_8b, h100, framework, sequence_length=4096)
