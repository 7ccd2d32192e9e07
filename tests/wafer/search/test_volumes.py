"""What nodes send in a layer, by hand."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.model.presets import load_model
from perfmodel.wafer.search.volumes import layer_bytes
from perfmodel.wafer.system import WaferSystem

EXAMPLE = WaferSystem(
    nodes=56,
    node_grid=(7, 8),
    data_parallel=7,
    tensor_parallel=4,
    sequence_parallel=2,
    expert_parallel=56,
)


def test_sums_are_those_of_the_generators_example() -> None:
    """Reference table, d18: all-reduces of 2,107,392 and 4,816,896 B a node in a layer."""
    sent = layer_bytes(load_model("deepseek-v3"), EXAMPLE, batch=1024)
    assert sent.tensor == sent.pipeline == 2_107_392
    assert sent.sequence == 4_816_896
    # 18.4 tokens of a node to some 7.4 of 55 others and 7.9 rows back, against the example's
    # 2.05 MB and 5.68 MB of node 0 with experts of uneven loads and shared ones.
    assert sent.experts == pytest.approx(147 / 8 * 7168 * 2 * (7.4 + 7.86), rel=0.01)


def test_dense_models_exchange_nothing_and_prompts_sum_values() -> None:
    sent = layer_bytes(load_model("llama-3-70b"), EXAMPLE, batch=7, length=10)
    assert sent.experts == 0.0
    assert sent.sequence == 10 * 16 * 128 * 2
    latent = layer_bytes(load_model("deepseek-v3"), EXAMPLE, batch=7, length=10)
    assert latent.sequence == 10 * 32 * 128 * 2


def test_what_is_refused() -> None:
    for asked in ({"batch": 0}, {"batch": 1, "length": 2**50}):
        with pytest.raises(StrategyError, match="a whole number from 1"):
            layer_bytes(load_model("llama-3-8b"), EXAMPLE, **asked)
