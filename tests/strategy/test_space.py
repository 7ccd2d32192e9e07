"""Strategies in blocks are those of one enumeration, cut into pieces."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import MAPPINGS
from perfmodel.model.presets import load_model
from perfmodel.strategy import space
from perfmodel.strategy.enumerate import enumerate_strategies
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.space import Space

RUN: dict[str, Any] = {"sequence_length": [4096, 8192], "global_batch_size": [64, 96, 7]}
KINDS: dict[str, dict[str, Any]] = {
    "every sensible value": {},
    "rules of free axes": {
        "mapping": MAPPINGS[:3],
        "zero_stage": [0, 3],
        "document_length": [0, 512],
    },
    "what recomputation needs": {
        "recompute_method": ["single", "uniform"],
        "recompute_num_layers": [0, 1, 3],
    },
    "schedules by name": {"pipeline_schedule": ["1f1b", "interleaved", "zb_v"]},
    "degrees that break rules": {"data_parallel": [1, 2, 3, 8], "tensor_parallel": [1, 3, 4]},
}


@pytest.mark.parametrize("kept", [False, True], ids=["possible", "impossible too"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_follow_each_other_as_one_enumeration(kind, kept, monkeypatch):
    monkeypatch.setattr(space, "SLAB", 777)  # strategies of a block come of several slabs
    spec = load_model("llama-3.1-8b")
    axes = {**RUN, "micro_batch_size": [1, 2], "context_parallel": [1, 2], **KINDS[kind]}
    whole = enumerate_strategies(spec, 16, axes, keep_impossible=kept)
    found = Space(spec, 16, axes, keep_impossible=kept, block_size=1001)
    assert found.count == len(found) == len(whole.grid) > 0
    assert found.rejected == whole.rejected
    assert found.possible == np.count_nonzero(whole.grid.status == VALID)
    grids = [found.grid(number) for number in range(found.blocks)]
    assert [len(grid) for grid in grids] == found.sizes.tolist()
    assert set(found.sizes[:-1].tolist()) <= {1001}
    status = np.concatenate([grid.status for grid in grids])
    np.testing.assert_array_equal(status, whole.grid.status)
    assert list(grids[0].columns) == list(whole.grid.columns)
    for name, column in whole.grid.columns.items():
        together = np.concatenate([grid[name] for grid in grids])
        assert together.dtype == column.dtype
        np.testing.assert_array_equal(together, column, name)


def test_blocks_come_in_any_order_and_in_other_processes():
    found = Space(load_model("llama-3.1-8b"), 16, RUN, block_size=300)
    last = found.grid(found.blocks - 1)
    other = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(
        other.grid(found.blocks - 1)["tensor_parallel"], last["tensor_parallel"]
    )
    assert len(pickle.dumps(found)) < 50_000


def test_examples_spread_along_every_axis_that_any_strategy_spreads_along():
    found = Space(load_model("llama-3.1-8b"), 16, {**RUN, "context_parallel": 1}).examples()
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        assert (found[name] > 1).any()
    assert (found["context_parallel"] == 1).all()


def test_what_nobody_could_count_is_refused_at_once():
    axes = {**RUN, "global_batch_size": range(1, 10**5), "micro_batch_size": range(1, 10**4)}
    with pytest.raises(StrategyError, match="combinations cannot be counted; name fewer"):
        Space(load_model("llama-3.1-8b"), 16, axes)


def test_nothing_possible_has_no_blocks():
    found = Space(load_model("llama-3.1-8b"), 16, {**RUN, "tensor_parallel": 3})
    assert (found.count, found.blocks, found.sizes.tolist()) == (0, 0, [])
    assert found.rejected
