"""Spaces as factors: the strategies that are enumerated, counted without listing them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import MAPPINGS
from perfmodel.model.presets import load_model
from perfmodel.strategy.enumerate import enumerate_strategies
from perfmodel.strategy.factors import AWAY, LAYERS, OUTER, SHARDING, pairs, strategy_space

PROBLEM = {"sequence_length": 1024, "global_batch_size": [32, 64]}
SPACES = {
    "sensible": {},
    "recomputed layers": {
        "recompute": "all",
        "recompute_method": "all",
        "recompute_num_layers": [0, 1, 2],
        "tensor_parallel": [1, 2],
    },
    "mappings and shard sets": {
        "mapping": "all",
        "zero_stage": [0, 1, 3],
        "shard_group": [0, 2, 4],
        "virtual_pipeline": 1,
        "recompute": "none",
    },
    "documents and precisions": {
        "document_length": [0, 3, 512, 5000],
        "precision": ["bf16", "fp8"],
        "padding": [0.0, 0.5],
        "context_parallel": [1, 2],
        "recompute": "none",
    },
    "what waits elsewhere": {
        "offload_activations": [0, 0.5],
        "offload_activations_to": "all",
        "offload_optimizer": [0, 1],
        "offload_optimizer_to": "all",
        "pipeline_schedule": ["1f1b", "gpipe"],
        "tensor_parallel": 1,
        "recompute": "none",
    },
}


@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b"])
@pytest.mark.parametrize("name", SPACES)
def test_it_counts_what_is_enumerated_and_why_the_rest_is_impossible(model: str, name: str) -> None:
    spec, axes = load_model(model), PROBLEM | SPACES[name]
    space, found = strategy_space(spec, 16, axes), enumerate_strategies(spec, 16, axes)
    assert space.possible == len(found.grid) > 0
    assert dict(space.rejected) == {key: count for key, count in found.rejected.items() if count}


@pytest.mark.parametrize("name", SPACES)
def test_its_factors_multiply_to_what_is_enumerated(name: str) -> None:
    spec, axes = load_model("mixtral-8x7b"), PROBLEM | SPACES[name]
    space = strategy_space(spec, 16, axes)
    grid = enumerate_strategies(spec, 16, axes).grid
    paired = pairs(space.layouts)
    listed = []
    for layout in range(space.documents.shape[0]):
        kind = space.sharding.kind[layout]
        start, stop = space.sharding.start[space.sharding.offset[kind : kind + 2]]
        away = np.concatenate(space.away[int(paired[layout])].members)
        for lists in (space.layers.index, space.sharding.members[start:stop], away):
            assert len(np.unique(lists, axis=0)) == len(lists)
        chosen = {name: space.layouts[name][layout] for name in space.layouts}
        for document in np.flatnonzero(space.documents[layout]):
            for shard in space.sharding.members[start:stop]:
                places = {"document_length": document, **dict(zip(SHARDING, shard, strict=True))}
                row = chosen | {key: space.free[key][place] for key, place in places.items()}
                listed.append([row[key] for key in grid.columns if key not in _MULTIPLIED])
    columns = [column for key, column in grid.columns.items() if key not in _MULTIPLIED]
    assert set(map(tuple, listed)) == set(
        zip(*(column.tolist() for column in columns), strict=True)
    )


_MULTIPLIED = (*LAYERS, *AWAY, *(name for name in OUTER if name != "document_length"))


def test_mappings_that_differ_in_axes_of_one_rank_are_the_same() -> None:
    axes = {
        **PROBLEM,
        "mapping": "all",
        "tensor_parallel": 4,
        "context_parallel": 1,
        "pipeline_parallel": 1,
        "zero_stage": 1,
    }
    space = strategy_space(load_model("gpt2"), 16, axes)
    assert len(space.sharding.factor) == 2  # tensor inside data, or outside
    assert np.diff(space.sharding.start).tolist() == [12, 12]
    for place, first in enumerate(space.sharding.factor.index[:, 2]):
        start, stop = space.sharding.start[place : place + 2]
        inside = [
            MAPPINGS[code].index("tensor") < MAPPINGS[code].index("data")
            for code in space.free["mapping"][space.sharding.members[start:stop, 2]]
        ]
        assert set(inside) == {MAPPINGS[first].index("tensor") < MAPPINGS[first].index("data")}


def test_more_than_memory_holds_is_counted() -> None:
    axes = {
        **PROBLEM,
        "mapping": "all",
        "recompute": "all",
        "recompute_method": "all",
        "recompute_num_layers": list(range(127)),
        **{name: np.linspace(0, 1, 11).tolist() for name in AWAY[::2]},
    }
    axes |= {"global_batch_size": [1024, 2048], "offload_optimizer_to": "all"}
    space = strategy_space(load_model("llama-3.1-405b"), 1024, axes)
    assert space.possible > 1e10
    assert sum(column.nbytes for column in space.layouts.values()) < 1e8


def test_bad_axes_are_refused() -> None:
    with pytest.raises(StrategyError, match="unknown strategy field 'tensor'"):
        strategy_space(load_model("gpt2"), 16, {**PROBLEM, "tensor": 2})
    with pytest.raises(StrategyError, match="global_batch_size: a value is needed"):
        strategy_space(load_model("gpt2"), 16, {"sequence_length": 1024})
