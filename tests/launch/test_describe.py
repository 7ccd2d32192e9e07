"""What launch files do not say of a strategy, because it does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.launch.describe import settled
from perfmodel.model.presets import load_model

BASE = {"data_parallel": 8, "global_batch_size": 64, "sequence_length": 4096}


@pytest.mark.parametrize(
    ("strategy", "field", "value"),
    [
        ({"context_parallel_kind": "all_to_all"}, "context_parallel_kind", "ring"),
        ({"context_parallel_kind": "all_gather", "context_parallel": 2},
         "context_parallel_kind", "all_gather"),
        ({"pipeline_schedule": "gpipe"}, "pipeline_schedule", "1f1b"),
        ({"pipeline_schedule": "gpipe", "pipeline_parallel": 2}, "pipeline_schedule", "gpipe"),
        ({"zero_stage": 3, "data_parallel": 1}, "zero_stage", 0),
        ({"zero_stage": 3, "data_parallel": 1, "context_parallel": 2}, "zero_stage", 3),
        ({"zero_stage": 3}, "zero_stage", 3),
        ({"shard_group": 8}, "shard_group", 0),
        ({"shard_group": 4}, "shard_group", 4),
        ({"mapping": "data-tensor-context-pipeline"}, "mapping", "tensor-context-data-pipeline"),
        ({"mapping": "data-tensor-context-pipeline", "tensor_parallel": 2},
         "mapping", "data-tensor-context-pipeline"),
        ({"mapping": "context-tensor-pipeline-data", "tensor_parallel": 2, "pipeline_parallel": 2},
         "mapping", "tensor-context-pipeline-data"),
    ],
)  # fmt: skip
def test_a_strategy_is_settled(strategy: dict[str, Any], field: str, value: object) -> None:
    found = settled({**BASE, **strategy}, None)
    assert found[field] == value
    assert settled(found, None) == found


def test_copies_of_experts_are_shared_with_one_replica() -> None:
    """Experts that tensor parallelism does not cut have copies on the tensor ranks."""
    strategy = {**BASE, "data_parallel": 1, "tensor_parallel": 4, "zero_stage": 1}
    assert settled(strategy, load_model("mixtral-8x7b"))["zero_stage"] == 1
    assert settled(strategy, load_model("llama-3.1-8b"))["zero_stage"] == 0
