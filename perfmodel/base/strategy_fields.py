"""Everything that the user may choose for a run: one row per field.

Columns, coordinates, command-line options, help pages and checks all come from this
table. It imports nothing heavy, so that the command line can read it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from perfmodel.base.fields import Field
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.base.precisions import PRECISIONS

StrategyField = Field
"""A field of a training strategy, a deployment or a load."""
OFFLOAD_PLACES = ("host", "nvme")
RECOMPUTE = ("none", "selective", "full")
RECOMPUTE_METHODS = ("single", "uniform", "block", "every")
PIPELINE_SCHEDULES = tuple(SCHEDULE_FACTS)
CONTEXT_PARALLEL_KINDS = ("ring", "all_to_all", "all_gather")
MAPPING_AXES = ("tensor", "context", "data", "pipeline")
# Every order of the axes, innermost first. The codes are those of kernels.placement.ORDERS
# (test_mapping compares); stored results keep their meaning as long as they do.
MAPPINGS = tuple("-".join(order) for order in permutations(MAPPING_AXES))

FIELDS: tuple[StrategyField, ...] = (
    StrategyField("tensor_parallel", "tp", "int", 1, "tensor-parallel degree"),
    StrategyField(
        "sequence_parallel", "sp", "bool", True, "sequence parallelism in the tensor-parallel group"
    ),
    StrategyField("context_parallel", "cp", "int", 1, "context-parallel degree"),
    StrategyField(
        "context_parallel_kind",
        "cp-kind",
        "choice",
        "ring",
        "how context parallelism moves keys and values",
        CONTEXT_PARALLEL_KINDS,
    ),
    StrategyField("pipeline_parallel", "pp", "int", 1, "pipeline-parallel degree"),
    StrategyField("virtual_pipeline", "vpp", "int", 1, "model chunks per pipeline stage"),
    StrategyField(
        "pipeline_schedule", "schedule", "choice", "1f1b", "pipeline schedule", PIPELINE_SCHEDULES
    ),
    StrategyField(
        "micro_batch_group",
        "micro-batch-group",
        "int",
        0,
        "micro-batches that an interleaved schedule takes through one chunk before the next; "
        "0: pipeline_parallel",
        minimum=0,
    ),
    StrategyField("data_parallel", "dp", "int", 1, "data-parallel degree (replicas of the batch)"),
    StrategyField(
        "zero_stage",
        "zero",
        "int",
        1,
        "ZeRO stage: 1 shards the optimizer, 2 gradients too, 3 parameters too (FSDP)",
        minimum=0,
    ),
    StrategyField(
        "shard_group",
        "shard-group",
        "int",
        0,
        "devices that share one ZeRO shard set (HSDP); 0: the whole data-parallel group",
        minimum=0,
    ),
    StrategyField("expert_parallel", "ep", "int", 1, "expert-parallel degree"),
    StrategyField(
        "expert_tensor_parallel", "etp", "int", 1, "tensor-parallel degree inside experts"
    ),
    StrategyField("micro_batch_size", "micro-batch", "int", 1, "sequences per micro-batch"),
    StrategyField("global_batch_size", "global-batch", "int", 1, "sequences per step"),
    StrategyField("sequence_length", "seq-len", "int", 1, "tokens per sequence"),
    StrategyField(
        "recompute", "recompute", "choice", "none", "activation recomputation", RECOMPUTE
    ),
    StrategyField(
        "recompute_method",
        "recompute-method",
        "choice",
        "single",
        "layers that recompute full repeats: single: each by itself; uniform: recompute_num_layers "
        "at a time, of which the first one's input is kept; block: the first recompute_num_layers "
        "of every chunk; every: each recompute_num_layers-th of a device",
        RECOMPUTE_METHODS,
    ),
    StrategyField(
        "recompute_num_layers",
        "recompute-num-layers",
        "int",
        0,
        "layers that recompute_method takes",
        minimum=0,
    ),
    StrategyField(
        "precision", "precision", "choice", "bf16", "number format of matrix products", PRECISIONS
    ),
    StrategyField(
        "mapping",
        "mapping",
        "choice",
        MAPPINGS[0],
        "order of the parallel axes over the devices, innermost first",
        MAPPINGS,
        form=f"an order of {', '.join(MAPPING_AXES)}, joined by '-'",
    ),
    StrategyField(
        "document_length",
        "document-length",
        "int",
        0,
        "tokens of the documents packed into a sequence, mean over their tokens; 0: one document",
        minimum=0,
    ),
    StrategyField(
        "padding",
        "padding",
        "float",
        0.0,
        "share of the tokens that only fill sequences up",
        minimum=0,
        maximum=0.999,
    ),
    StrategyField(
        "offload_activations",
        "offload-activations",
        "float",
        0.0,
        "share of the stored activations that is offloaded from the device's memory",
        minimum=0,
        maximum=1,
    ),
    StrategyField(
        "offload_activations_to",
        "offload-activations-to",
        "choice",
        "host",
        "where it is offloaded to: the host's memory, its NVMe drives, or (1f1b) the late stage "
        "with which an early one is paired (BPipe)",
        (*OFFLOAD_PLACES, "stage"),
    ),
    StrategyField(
        "offload_optimizer",
        "offload-optimizer",
        "float",
        0.0,
        "share of the parameters whose optimizer state is offloaded: the host holds and updates it",
        minimum=0,
        maximum=1,
    ),
    StrategyField(
        "offload_optimizer_to",
        "offload-optimizer-to",
        "choice",
        "host",
        "where that state is offloaded to: the host's memory or its NVMe drives",
        OFFLOAD_PLACES,
    ),
    StrategyField(
        "offload_parameters",
        "offload-parameters",
        "float",
        0.0,
        "share of the parameters that is offloaded from the device's memory",
        minimum=0,
        maximum=1,
    ),
    StrategyField(
        "offload_parameters_to",
        "offload-parameters-to",
        "choice",
        "host",
        "where they are offloaded to: the host's memory or its NVMe drives",
        OFFLOAD_PLACES,
    ),
)

OFFLOAD = ("offload_activations", "offload_optimizer", "offload_parameters")
"""Shares that are offloaded."""
OFFLOAD_TO: Mapping[str, str] = {name: f"{name}_to" for name in OFFLOAD}
"""The field that says where each of them is offloaded to."""
SOFTWARE_DEFAULTS: Mapping[str, str] = {
    "sequence_parallel": "tensor_parallel",
    "context_parallel_kind": "context_parallel",
    "zero_stage": "data_parallel",
    "recompute": "",
}
"""Fields that a run has, where nobody names them, as facts of the same name say of its software;
and the degree without which they mean nothing."""
FIELD_BY_NAME: Mapping[str, StrategyField] = {item.name: item for item in FIELDS}
