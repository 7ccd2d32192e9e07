"""Fine-tuning with adapters: what it saves in time and memory; packed and padded sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import strategies_from_rows
from perfmodel.kernels.variables import MEMORY_COMPONENTS, TIME_COMPONENTS
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.presets import load_model
from perfmodel.strategy.rules import STATUS_NAMES
from perfmodel.training.flops import adapter_parameters
from tests.amount import cases

RUN = {"sequence_length": 4096, "micro_batches": 4}


def lora(model, rank=16, targets=("all_linear",), frozen=""):
    return model.with_adapters(AdapterSpec(rank, targets, frozen))


def test_only_adapters_have_gradients_and_an_optimizer(project, h100, llama_8b):
    tuned = lora(llama_8b)
    found = project(tuned, h100, data_parallel=8, zero_stage=1, **RUN)
    adapters = adapter_parameters(tuned)
    assert found["memory_gradients"] == pytest.approx(4 * adapters)
    assert found["memory_optimizer"] == pytest.approx(12 * adapters / 8)
    # The vocabulary of 128,256 is padded to a multiple of 128: not at all.
    whole = llama_8b.parameter_count()
    assert found["memory_parameters"] == pytest.approx(2 * (whole + adapters))


def test_four_bits_hold_the_layers_alone(project, h100, llama_8b):
    tuned = lora(llama_8b, targets=("q_proj", "v_proj"), frozen="nf4")
    found = project(tuned, h100, **RUN)["memory_parameters"]
    edges = 2 * 128256 * 4096 + 4096
    layers = llama_8b.parameter_count() - edges
    stored = 2 * edges + 0.51587 * layers + 2 * adapter_parameters(tuned)
    assert found == pytest.approx(stored, rel=1e-4)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_adapters_take_less_time_and_memory_than_all_weights(project, h100, name, stage):
    model = load_model(name)
    fields = {"data_parallel": 8, "zero_stage": stage, "expert_parallel": 1, **RUN}
    full, less = (project(x, h100, **fields) for x in (model, lora(model, targets=("attention",))))
    assert less["step_time"] < full["step_time"]
    assert less["memory_total"] < full["memory_total"]
    assert less["data_parallel_total"] < full["data_parallel_total"]
    for found in (full, less):
        assert sum(found[x] for x in TIME_COMPONENTS) == pytest.approx(found["step_time"])
        assert sum(found[x] for x in MEMORY_COMPONENTS) == pytest.approx(found["memory_total"])


def test_fsdp_gathers_frozen_weights_but_reduces_adapters_alone(project, h100, llama_8b):
    fields = {"data_parallel": 8, "zero_stage": 3, "framework": "fsdp", **RUN}
    full, less = (project(x, h100, **fields) for x in (llama_8b, lora(llama_8b)))
    # Two gathers stay of two gathers and a reduction.
    assert 0.4 < less["data_parallel_total"] / full["data_parallel_total"] < 0.9
    assert less["optimizer_time"] < 0.05 * full["optimizer_time"]


@settings(max_examples=cases(20), deadline=None)
@given(
    rank=st.sampled_from([1, 2, 8, 64, 256]),
    tensor=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    targets=st.sampled_from([("linear_qkv",), ("attention",), ("mlp",), ("all_linear",)]),
)
def test_a_larger_rank_never_takes_less(project, rank, tensor, recompute, targets):
    model = load_model("llama-3.2-1b")
    fields = {"tensor_parallel": tensor, "recompute": recompute, **RUN}
    less, more = (
        project(lora(model, r * tensor, targets), "dgx-h100", **fields) for r in (rank, 2 * rank)
    )
    for name in ("memory_total", "memory_activations", "memory_optimizer"):
        assert more[name] >= less[name]
    # Narrow products run at the rate of memory: twice the rank may cost nothing.
    assert more["step_time"] >= 0.995 * less["step_time"]


def test_activations_of_frozen_products_are_not_kept(project, h100, llama_8b):
    """Inputs that nothing trains: norms' outputs of both blocks, and the second product's."""
    fields = {"sequence_length": 4096, "framework": "megatron"}
    everything, values = (
        project(lora(llama_8b, targets=targets), h100, **fields)["memory_activations"]
        for targets in (("all_linear",), ("o_proj",))
    )
    inputs = 2 * 4096 * (2 * 4096 + 14336)  # h ahead of either block, f
    between = 2 * 4096 * 16 * 3
    assert everything - values == pytest.approx(32 * (inputs + between))


MLPERF_PEAKS = [(16, 8, 2, 134.083), (32, 8, 4, 99.574), (64, 8, 8, 82.323)]
"""Devices, sequences per step, context ranks and peak [GB] of Llama 2 70B, LoRA of rank 16.

MLPerf Training v5.0, closed, logs of Dell's submissions on GB200 (``max_memory_usage``); the layout
follows from devices and batch, as every replica has one sequence. Eight devices, whose replicas
have no context ranks, recompute some layers, which their logs do not name."""


@pytest.mark.parametrize(("devices", "batch", "context", "measured"), MLPERF_PEAKS)
def test_peaks_of_mlperf_submissions(project, devices, batch, context, measured):
    model = lora(load_model("llama-2-70b"), targets=("attention",))
    found = project(
        model,
        "gb200-nvl72",
        "nvidia-mlperf@5.0",
        data_parallel=devices // context,
        context_parallel=context,
        micro_batches=1,
        sequence_length=8192,
        precision="fp8",
    )
    assert 1.0 < found["memory_total"] / 1e9 / measured < 1.10


# ---------------------------------------------------------------- packed and padded sequences


def test_attention_stays_within_packed_documents(project, h100, llama_8b):
    plain, packed, one = (
        project(llama_8b, h100, sequence_length=32768, document_length=length)
        for length in (0, 2048, 32768)
    )
    assert packed["step_time"] < 0.8 * plain["step_time"]
    assert one == plain  # a document that fills its sequence
    for name in MEMORY_COMPONENTS:
        assert packed[name] == plain[name]
    # As many tokens in sequences of their own length do the same work.
    apart = project(llama_8b, h100, sequence_length=2048, micro_batch_size=16)
    assert packed["step_time"] == pytest.approx(apart["step_time"], rel=1e-3)
    assert packed["model_flops_utilization"] == pytest.approx(
        apart["model_flops_utilization"], rel=1e-3
    )


@pytest.mark.parametrize("kind", ["ring", "all_to_all", "all_gather"])
def test_context_ranks_share_documents(project, h100, llama_8b, kind):
    fields = {"context_parallel": 4, "context_parallel_kind": kind, "sequence_length": 32768}
    plain, packed = (project(llama_8b, h100, document_length=x, **fields) for x in (0, 4096))
    assert packed["step_time"] < plain["step_time"]


def test_padding_is_computed_but_does_not_count(project, h100, llama_8b):
    plain, padded = (project(llama_8b, h100, padding=share, **RUN) for share in (0.0, 0.25))
    assert padded["step_time"] == plain["step_time"]
    for name in ("tokens_per_second_per_device", "model_flops_utilization"):
        assert padded[name] == pytest.approx(0.75 * plain[name])
    assert padded["hardware_flops_utilization"] == plain["hardware_flops_utilization"]


@pytest.mark.parametrize(
    ("model", "fields", "rule"),
    [
        ("llama-3.1-8b", {"document_length": 8193}, "document_length_mismatch"),
        (
            "llama-3.1-8b",
            {"document_length": 7, "context_parallel": 4},
            "document_length_mismatch",
        ),
        (("llama-3.1-8b", 6), {"tensor_parallel": 4}, "rank_not_divisible"),
        (("llama-3.1-8b", 8, "nf4"), {"precision": "fp8"}, "frozen_needs_wide_products"),
        (("llama-3.1-8b", 8, "nf4"), {"precision": "fp16"}, "valid"),
    ],
)
def test_what_cannot_be_has_a_status(model, fields, rule):
    if not isinstance(model, str):
        name, rank, *frozen = model
        model = lora(load_model(name), rank, frozen=frozen[0] if frozen else "")
    row = {"sequence_length": 8192, "global_batch_size": 64, **fields}
    grid = strategies_from_rows(model, 8, [row])
    assert STATUS_NAMES[int(np.asarray(grid.status)[0])] == rule


MIXTRAL = load_model("mixtral-8x7b")
ON_EXPERTS = {"data_parallel": 8, "zero_stage": 0, **RUN}


def with_adapters_on_experts(**fields):
    return MIXTRAL.with_adapters(AdapterSpec(16, ("mlp",), **fields))


@pytest.mark.parametrize("framework", ["megatron", "megatron-deepep"])
@pytest.mark.parametrize("degree", [1, 2, 8])
def test_shared_adapters_stand_once_on_every_device(project, h100, degree, framework):
    """Megatron-Bridge: one adapter for all local experts, the same on every expert rank."""
    own, shared = (
        project(
            with_adapters_on_experts(share_experts=share),
            h100,
            **ON_EXPERTS,
            expert_parallel=degree,
        )
        for share in (False, True)
    )
    local = 8 // degree
    one = 32 * 16 * ((4096 + 2 * 14336) + (14336 + 4096))
    assert shared["memory_gradients"] == pytest.approx(4 * one)
    assert own["memory_gradients"] == pytest.approx(4 * one * local)
    assert shared["memory_optimizer"] == pytest.approx(12 * one)
    if degree == 8:  # alike but for the sum over the expert ranks
        assert shared["memory_total"] == pytest.approx(own["memory_total"])
        assert shared["data_parallel_exposed"] > own["data_parallel_exposed"] == 0.0
    else:
        assert shared["memory_total"] < own["memory_total"]
    assert shared["step_time"] < own["step_time"] * (1 + 1e-3)


def test_shared_adapters_have_their_ranks_parameters():
    one = 32 * ((4096 + 2 * 14336) + (14336 + 4096))
    for fields, expected in (
        ({}, 8 * 16 * one),
        ({"share_experts": True}, 16 * one),
        ({"expert_rank": 8}, 8 * 8 * one),
    ):
        assert adapter_parameters(with_adapters_on_experts(**fields)) == expected
