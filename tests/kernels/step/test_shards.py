"""Prices of sharded parameters: one row for all strategies that ask for the same."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model, strategy_grid
from perfmodel.compute.network import network_table
from perfmodel.kernels.step.shards import SHARD, shard_prices
from perfmodel.software.framework import load_framework
from perfmodel.training.project import closing_settings, key_tables, laid_out
from perfmodel.training.workload import Workload


@pytest.fixture(scope="module")
def asked():
    """Arguments for strategies of ZeRO 1 and 3 with two global batches and two mappings."""
    model, hardware = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    grid = strategy_grid(
        model, 64, sequence_length=4096, global_batch_size=[256, 512], tensor_parallel=[1, 2],
        pipeline_parallel=1, zero_stage=[1, 3], micro_batch_size=[1, 2], mapping="all",
    )  # fmt: skip
    framework = load_framework("fsdp")
    work = laid_out(Workload(model, grid), hardware, framework)
    layer_key = work.stage_layer_key[work.strategies.stage_key]
    settings = closing_settings(work, hardware, framework)
    keys = key_tables(work, hardware, framework)
    return work.strategies, layer_key, keys, settings, network_table(hardware)


def test_only_sharded_parameters_have_a_row(asked):
    shards = shard_prices(*asked)
    assert ((shards.row >= 0) == (asked[0].zero == 3)).all()
    of_all = [family.size for family in (shards.row, shards.row[shards.row >= 0])]
    assert 0 < shards.parts.shape[0] <= of_all[1] < of_all[0]
    for name in SHARD.names:
        assert np.isfinite(shards.parts[name]).all()
    assert (shards.parts.exposed <= shards.parts.total).all()


def test_each_strategy_alone_costs_the_same(asked):
    strategies, layer_key, *rest = asked
    shards = shard_prices(*asked)
    for i in np.flatnonzero(strategies.zero == 3)[::7]:
        alone = shard_prices(strategies[i : i + 1], layer_key[i : i + 1], *rest)
        np.testing.assert_array_equal(shards.parts[shards.row[i]], alone.parts[0])
