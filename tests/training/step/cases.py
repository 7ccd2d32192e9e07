"""Strategies and small models that the tests of projected steps and of exports take."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from perfmodel.model.build import dense_model, moe_model

TABLES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text("utf-8"))


def cases_of(table: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name of the model and fields of the strategy of each case."""
    return {name: (about.pop("model"), about) for name, about in TABLES[table].items()}


CASES = cases_of("traces")

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
