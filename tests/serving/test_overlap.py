"""Shared experts beside routed ones."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model
from perfmodel.kernels.serving.tables import EXPERTS, MATRICES, OTHER
from perfmodel.operations.served import pass_keys
from perfmodel.serving.overlap import SHARED, hidden_parts
from perfmodel.serving.pass_pricing import price_items
from perfmodel.serving.pass_table import (
    TOKENS,
    layer_groups,
    layer_items,
    pass_tables,
    recipes,
)
from perfmodel.software.engine import load_engine
from tests.serving.served_layouts import layouts_of

H200 = load_hardware("dgx-h200")
LAYOUT = {"tensor_parallel": 8, "expert_parallel": 8}


def body(model: str, limit: int) -> np.ndarray:
    engine = load_engine("sglang", shared_stream_tokens=limit)
    return pass_tables(load_model(model), layouts_of(engine, **LAYOUT), H200).body[0]


@pytest.fixture(scope="module")
def saved() -> np.ndarray:
    return body("deepseek-r1", 0) - body("deepseek-r1", 1024)


def test_starts_and_small_kernels_hide_up_to_so_many_tokens(saved: np.ndarray) -> None:
    whole = saved.sum(axis=-1)
    few = TOKENS <= 1024
    assert (whole[few] > 58 * 3e-6).all()
    assert (whole[few] < 58 * 40e-6).all()
    assert (whole[~few] == 0.0).all()
    assert (saved[:, EXPERTS] == 0.0).all()


def test_bytes_are_not_hidden_nor_more_than_routed_experts_last() -> None:
    """A shared expert's 44 million weights over 8 devices still have to be read."""
    model = load_model("deepseek-r1")
    recipe = next(recipes(layouts_of("sglang", **LAYOUT)))
    group = next(x for x in layer_groups(model, recipe, H200) if x.layer.experts)
    tokens = np.array([1.0, 64.0, 1024.0])
    keys = pass_keys(np.full(3, 8), tokens)
    items = layer_items(model, group, recipe, keys, H200)
    shared = [item for item in items if item.operation.role in SHARED]
    alone = price_items(H200, recipe.engine, shared, keys).parts[:, (MATRICES, OTHER)].sum(axis=1)
    read = 3 * 7168 * 2048 / 8 / H200.device.memory.bandwidth
    hidden = hidden_parts(H200, recipe.engine, items, keys, np.full(3, np.inf)).sum(axis=1)
    assert (hidden > 0.3 * alone).all()
    assert (alone - hidden > read).all()
    short = hidden_parts(H200, recipe.engine, items, keys, np.full(3, 1e-6)).sum(axis=1)
    np.testing.assert_allclose(short, 1e-6)


def test_models_without_shared_experts_lose_nothing() -> None:
    np.testing.assert_array_equal(body("gpt-oss-120b", 0), body("gpt-oss-120b", 1024))
