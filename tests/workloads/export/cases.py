"""Strategies and small models that the tests of exports write out."""

from __future__ import annotations

from functools import partial
from typing import Any

from perfmodel.model.build import dense_model, moe_model
from perfmodel.workloads.export.chakra import projected_traces

named_traces = partial(projected_traces, numbered_groups=False)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one device": ("small_dense", {}),
    "tensor": ("small_dense", {"tensor_parallel": 4, "data_parallel": 2}),
    "ring": ("small_dense", {"context_parallel": 4, "recompute": "full", "zero_stage": 2}),
    "exchange": ("small_dense", {"context_parallel": 2, "context_parallel_kind": "all_to_all"}),
    "pipeline": ("small_dense", {"pipeline_parallel": 4, "data_parallel": 2, "micro_batches": 8}),
    "gpipe": ("small_dense", {"pipeline_parallel": 2, "pipeline_schedule": "gpipe"}),
    "interleaved": (
        "small_dense",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "tensor_parallel": 2, "micro_batches": 8},
    ),
    "eager": (
        "small_dense",
        {"pipeline_parallel": 4, "data_parallel": 2, "pipeline_schedule": "eager_1f1b",
         "micro_batches": 8},
    ),
    "looped": (
        "small_dense",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_schedule": "looped_bfs",
         "data_parallel": 2, "micro_batches": 4},
    ),
    "waves": (
        "small_dense",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_schedule": "hanayo",
         "data_parallel": 2, "micro_batches": 4},
    ),
    "zero bubble": (
        "small_dense",
        {"pipeline_parallel": 4, "data_parallel": 2, "pipeline_schedule": "zb_h1",
         "micro_batches": 8},
    ),
    "zero bubble of chunks": (
        "small_dense",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "zero_stage": 2, "data_parallel": 2,
         "pipeline_schedule": "interleaved_zero_bubble", "micro_batches": 6},
    ),
    "zero bubble in a V": (
        "small_dense",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "tensor_parallel": 2,
         "pipeline_schedule": "zb_v", "micro_batches": 8},
    ),
    "half of the memory": (
        "small_dense",
        {"pipeline_parallel": 4, "virtual_pipeline": 2, "recompute": "selective",
         "pipeline_schedule": "v_half", "micro_batches": 8},
    ),
    "both ways": (
        "small_moe",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "data_parallel": 2, "expert_parallel": 2,
         "pipeline_schedule": "dualpipe_v", "micro_batches": 8},
    ),
    "two copies": (
        "small_moe",
        {"pipeline_parallel": 2, "data_parallel": 2, "expert_parallel": 2,
         "pipeline_schedule": "dualpipe", "micro_batches": 8},
    ),
    "two copies of four stages": (
        "small_dense",
        {"pipeline_parallel": 4, "tensor_parallel": 2, "data_parallel": 2, "zero_stage": 2,
         "pipeline_schedule": "dualpipe", "micro_batches": 12},
    ),
    "groups": (
        "small_dense",
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "micro_batch_group": 4, "micro_batches": 8},
    ),
    "all reduced": ("small_dense", {"data_parallel": 4, "zero_stage": 0}),
    "sharded": ("small_dense", {"data_parallel": 4, "zero_stage": 3}),
    "shards": ("small_dense", {"data_parallel": 8, "zero_stage": 3, "shard_group": 4}),
    "experts": (
        "small_moe",
        {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": 4, "pipeline_parallel": 2},
    ),
    "shared experts": (
        "small_moe",
        {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": 2,
         "expert_tensor_parallel": 2},
    ),
    "mapped": (
        "small_dense",
        {"context_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "tensor_parallel": 2,
         "mapping": "tensor-pipeline-context-data"},
    ),
}  # fmt: skip

# As Llama 3 (two query heads per key, gated), and as Mixtral (experts in every layer).
MODELS = {
    "llama": dense_model(
        "llama",
        layers=4,
        hidden_size=1024,
        heads=8,
        key_value_heads=4,
        intermediate_size=2816,
        vocab_size=8192,
    ),
    "mixtral": moe_model(
        "mixtral",
        layers=4,
        hidden_size=1024,
        heads=8,
        key_value_heads=4,
        vocab_size=8192,
        experts=8,
        experts_per_token=2,
        expert_intermediate_size=1024,
    ),
}
HIDDEN, LENGTH, BATCHES = 1024, 2048, 4
STATE = LENGTH * HIDDEN * 2  # [B] of one micro-batch's hidden state

# Per layer: grouped queries and output, three matrices of the MLP, two norms.
LLAMA_LAYER = HIDDEN * (8 + 2 * 4) * 128 + 8 * 128 * HIDDEN + 3 * HIDDEN * 2816 + 2 * HIDDEN
