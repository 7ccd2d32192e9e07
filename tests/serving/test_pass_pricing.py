"""Prices of the operations of passes against the kernels below them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.gemm import gemm_times, weight_only_times
from perfmodel.kernels.serving.tables import ATTENTION, COMMUNICATION, MATRICES, OTHER
from perfmodel.operations.operations import Communication, Gemm, Role, Stream
from perfmodel.operations.served import pass_keys
from perfmodel.serving.communication import all_reduce_times
from perfmodel.serving.pass_pricing import Item, price_items
from perfmodel.serving.weights import ProductFormat
from perfmodel.software.engine import load_engine

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
