"""Prices of the operations of passes against the kernels below them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.gemm import gemm_times, weight_only_times
from perfmodel.hwprofiles.rows import step_width
from perfmodel.kernels.serving.tables import (
    ATTENTION,
    COMMUNICATION,
    EXPERTS,
    MATRICES,
    OTHER,
    PARTS,
)
from perfmodel.operations.operations import Communication, Gemm, Role, Stream
from perfmodel.operations.served import pass_keys
from perfmodel.serving.communication import all_reduce_times
from perfmodel.serving.layouts import ProductFormat
from perfmodel.serving.pass_pricing import (
    LOOP_WIDTH,
    SHARED,
    Item,
    half_widths,
    hidden_parts,
    price_items,
)
from perfmodel.serving.pass_table import (
    TOKENS,
    layer_groups,
    layer_items,
    pass_tables,
    recipes,
)
from perfmodel.software.engine import load_engine
from tests.serving.served_layouts import layouts_of

H100 = load_hardware("dgx-h100")
KEYS = pass_keys(np.array([1, 1]), np.array([16, 256]))
FP8 = {"mlp": ProductFormat("fp8", 1.0)}


def price(*items: Item, **facts: bool):
    return price_items(H100, load_engine("vllm", **facts), items, KEYS)


def test_products_are_the_kernel_s_and_run_as_often_as_they_stand() -> None:
    gemm = Gemm("mlp.up", "forward", KEYS.tokens, 4096.0, 4096.0, role=Role.MLP)
    found = price(Item(gemm, 3.0, {}))
    alone = gemm_times(H100, "bf16", KEYS.tokens, 4096, 4096)
    assert found.parts[:, MATRICES] == pytest.approx(3 * alone.time)
    assert found.launches.tolist() == [3.0, 3.0]


def test_casts_cost_where_nothing_ahead_does_them() -> None:
    item = Item(Gemm("mlp.up", "forward", KEYS.tokens, 4096.0, 4096.0, role=Role.MLP), 1.0, FP8)
    fused, apart = (price(item, fused_casts=x) for x in (True, False))
    assert not fused.parts[:, OTHER].any()
    assert np.all(apart.parts[:, OTHER] > 0)
    assert (apart.launches - fused.launches).tolist() == [1.0, 1.0]
    blocks = Item(item.operation, 1.0, {"mlp": ProductFormat("fp8_block", 1.0)})
    assert np.all(price(blocks, fused_casts=True).parts[:, OTHER] > 0)


def test_engines_sum_small_buffers_themselves() -> None:
    volume = KEYS.tokens * 8192.0
    sums = Item(Communication("x", "forward", "tensor", "all_reduce", volume, 8.0, 1.0), 2.0, {})
    own, library = (price(sums, own_all_reduce=x).parts[:, COMMUNICATION] for x in (True, False))
    assert own == pytest.approx(2 * all_reduce_times(H100, load_engine("vllm"), volume, 8))
    assert library == pytest.approx(2 * collective_times(H100, "all_reduce", volume, 8))
    assert np.all(own < library)


def test_streams_of_attention_are_its_own() -> None:
    stream = Stream("attention.rope", "forward", 1e6, 1e6, role=Role.ATTENTION)
    norm = Stream("mlp.norm", "forward", 1e6, 1e6, role=Role.MLP)
    found = price(Item(stream, 1.0, {}), Item(norm, 2.0, {})).parts
    assert found[:, OTHER] == pytest.approx(2 * found[:, ATTENTION])


def test_narrow_weights_save_their_bytes_and_no_more() -> None:
    n, k = np.full(3, 8192.0), np.full(3, 8192.0)
    m, one = np.array([1.0, 64.0, 8192.0]), np.ones(3)
    wide, narrow = (weight_only_times(H100, "bf16", b, m, n, k, one) for b in (2.0, 0.5))
    assert narrow[0] < 0.45 * wide[0]
    assert np.all(narrow <= wide)
    assert narrow[2] > 0.9 * wide[2]
    assert np.all(np.diff(narrow) > 0)


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


def test_classes_err_apart_and_each_as_its_kernels():
    h100 = load_hardware("dgx-h100")
    parts = np.zeros((3, len(PARTS)))
    parts[0, MATRICES] = parts[1, ATTENTION] = 1.0
    parts[2, [MATRICES, ATTENTION]] = 0.5
    found = half_widths(h100, parts)
    rest = np.hypot(step_width(h100, experts=False), LOOP_WIDTH)
    products, attention = h100.uncertainty("gemm", "small"), h100.uncertainty("decode", "middle")
    assert found[0] == pytest.approx(np.hypot(products, rest))
    assert found[1] == pytest.approx(np.hypot(attention, rest))
    both = 0.5 * np.hypot(products, attention)
    assert found[2] == pytest.approx(np.hypot(both, rest))
    assert np.array_equal(half_widths(h100, 7.0 * parts), found)
