"""Everything that the user may choose for a run: one row of ``fields.csv`` per field.

Columns, coordinates, command-line options, help pages and checks all come from this
table. It imports nothing heavy, so that the command line can read it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

from perfmodel.base.fields import Field, read_fields
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.base.precisions import PRECISIONS

TABLE = Path(__file__).with_name("fields.csv")
OFFLOAD_PLACES = ("host", "nvme")
RECOMPUTE = ("none", "selective", "full")
RECOMPUTE_METHODS = ("single", "uniform", "block", "every")
PIPELINE_SCHEDULES = tuple(SCHEDULE_FACTS)
CONTEXT_PARALLEL_KINDS = ("ring", "all_to_all", "all_gather")
MAPPING_AXES = ("tensor", "context", "data", "pipeline")
# Every order of the axes, innermost first. The codes are those of kernels.placement.ORDERS
# (test_mapping compares); stored results keep their meaning as long as they do.
MAPPINGS = tuple("-".join(order) for order in permutations(MAPPING_AXES))

FIELDS: tuple[Field, ...] = read_fields(
    TABLE,
    {
        "context_parallel_kind": CONTEXT_PARALLEL_KINDS,
        "pipeline_schedule": PIPELINE_SCHEDULES,
        "recompute": RECOMPUTE,
        "recompute_method": RECOMPUTE_METHODS,
        "precision": PRECISIONS,
        "mapping": MAPPINGS,
        "offload_activations_to": (*OFFLOAD_PLACES, "stage"),
        "offload_optimizer_to": OFFLOAD_PLACES,
        "offload_parameters_to": OFFLOAD_PLACES,
    },
)["strategy"]

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
"""Fields that a run has, where nobody names them, as facts of the same name say of its software
(`perfmodel.strategy.defaults`); and the degree without which they mean nothing."""
DEFAULT_FRAMEWORK = "megatron"
"""Software where nobody names one."""
FIELD_BY_NAME: Mapping[str, Field] = {item.name: item for item in FIELDS}
