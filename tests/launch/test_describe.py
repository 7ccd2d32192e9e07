"""What launch files do not say of a strategy, because it does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.launch.describe import settled
from perfmodel.model.presets import load_model
from tests.data import table_of

BASE = {"data_parallel": 8, "global_batch_size": 64, "sequence_length": 4096}


@pytest.mark.parametrize(
    ("strategy", "field", "value"),
    table_of(__file__, "a_strategy_is_settled"),
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
