"""Searches: what a sweep of the whole space ranks first, and every strategy accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.store.results import best, decide_safely
from perfmodel.sweeps.search import SearchResult, search
from perfmodel.sweeps.several import enumerate_problems
from perfmodel.sweeps.sweep import sweep_problems

PROBLEM: dict[str, Any] = {"sequence_length": 2048, "global_batch_size": 96}
BEST_SPLIT = load_framework("megatron", stage_split="best")
UNEVEN: dict[str, Any] = {
    "pipeline_parallel": [1, 3, 5, 6],
    "virtual_pipeline": [1, 2],
    "micro_batch_size": 1,
    "tensor_parallel": [1, 2],
    "recompute": ["none", "full"],
    "recompute_method": "all",
    "recompute_num_layers": [0, 1, 3, 40],
}
SPACES: dict[str, tuple[str, list[int], list[str], list[Any], dict[str, Any]]] = {
    "device counts and kinds, batches, precisions, mappings": (
        "llama-3.1-8b",
        [16, 32],
        ["dgx-h100", "dgx-b200"],
        ["megatron", "fsdp"],
        {
            "global_batch_size": [64, 128],
            "precision": ["bf16", "fp8"],
            "mapping": ["tensor-context-data-pipeline", "data-pipeline-tensor-context"],
            "tensor_parallel": [1, 2],
            "context_parallel": 1,
            "micro_batch_size": [1, 2],
            "shard_group": [0, 4],
        },
    ),
    "uneven stages, recomputed layer by layer": (
        "llama-3.1-8b",
        [30],
        ["dgx-h100", "l40s-server"],
        ["megatron"],
        UNEVEN,
    ),
    "layers where they take least": (
        "llama-3.1-8b",
        [30],
        ["l40s-server"],
        [BEST_SPLIT],
        UNEVEN,
    ),
    "experts": (
        "deepseek-v2-lite",
        [16],
        ["dgx-h100"],
        ["megatron"],
        {
            "global_batch_size": [64],
            "mapping": "all",
            "tensor_parallel": [1, 2],
            "virtual_pipeline": 1,
            "micro_batch_size": [1, 2],
            "recompute": "all",
        },
    ),
    "what waits elsewhere": (
        "llama-3.1-70b",
        [16],
        ["dgx-a100"],
        ["megatron"],
        {
            "global_batch_size": 32,
            "tensor_parallel": 8,
            "context_parallel": 1,
            "virtual_pipeline": 1,
            "micro_batch_size": 1,
            "recompute": "all",
            "recompute_method": ["single", "block"],
            "recompute_num_layers": [0, 20],
            "offload_activations": [0, 0.5, 1],
            "offload_activations_to": ["host", "stage"],
            "offload_optimizer": [0, 1],
            "offload_parameters": [0, 0.5],
        },
    ),
    "other schedules": (
        "llama-3.1-8b",
        [8],
        ["dgx-h100"],
        ["megatron"],
        {
            "pipeline_schedule": "all",
            "pipeline_parallel": [1, 2, 4],
            "virtual_pipeline": [1, 2],
            "tensor_parallel": 2,
            "micro_batch_size": 1,
            "global_batch_size": 16,
        },
    ),
}


def exhaustive(
    name: str, top: int, by: str, safe: bool = False
) -> tuple[list[dict[str, Any]], SearchResult]:
    """Return the best of a sweep of a space, and what a search of it finds."""
    model, devices, hardware, frameworks, axes = SPACES[name]
    rows = [load_hardware(item) for item in hardware]
    software = [load_framework(item) for item in frameworks]
    given = PROBLEM | axes
    listed = enumerate_problems([load_model(model)], software, devices, given, hardware=rows)
    table = sweep_problems(listed.problems, rows)
    if safe:
        decide_safely(table)
    found = search(
        model, hardware, devices, framework=frameworks, top=top, by=by, safe=safe, **given
    )
    assert found.possible == listed.possible * len(rows)
    impossible = {key: count for key, count in listed.rejected.items() if count}
    assert found.rejected == impossible
    return best(table, top, by=by), found


def assert_same(ranked: list[dict[str, Any]], found: SearchResult) -> None:
    assert len(found.strategies) == len(ranked) > 0
    for expected, got in zip(ranked, found.strategies, strict=True):
        for key, value in expected.items():
            if key != "strategy" and key in got:
                assert got[key] == value or (value != value and got[key] != got[key]), key
    assert found.bound is None
    assert found.gap == 0.0
    assert found.unsettled == 0
    settled = sum(found.proved.values()) + found.evaluated + sum(found.lacking.values())
    assert settled == found.possible


@pytest.mark.parametrize("name", SPACES)
def test_it_finds_what_a_sweep_of_all_ranks_first(name: str) -> None:
    ranked, found = exhaustive(name, 5, "tokens_per_second_per_device")
    assert_same(ranked, found)
    assert found.evaluated < found.possible


@pytest.mark.parametrize(
    ("by", "top", "safe"),
    [("step_time", 1, False), ("model_flops_utilization", 30, False), ("step_time", 3, True)],
)
def test_other_objectives_and_numbers_of_strategies(by: str, top: int, safe: bool) -> None:
    assert_same(*exhaustive("uneven stages, recomputed layer by layer", top, by, safe))


@settings(max_examples=6, deadline=None)
@given(
    model=st.sampled_from(["gpt2-medium", "mixtral-8x7b"]),
    hardware=st.lists(
        st.sampled_from(["dgx-h100", "dgx-a100", "l40s-server"]),
        min_size=1,
        max_size=2,
        unique=True,
    ),
    devices=st.sampled_from([[8], [12, 16]]),
    batch=st.sampled_from([24, 48]),
    pipeline=st.sampled_from([[1, 2], [3], [1, 4]]),
    methods=st.sampled_from(["single", ["single", "uniform"], "all"]),
    mapping=st.sampled_from(["all", "tensor-context-data-pipeline"]),
    offload=st.sampled_from([[0], [0, 0.5], [0.3, 1.0]]),
    top=st.integers(1, 8),
)
def test_it_finds_what_any_small_sweep_ranks_first(
    model: str,
    hardware: list[str],
    devices: list[int],
    batch: int,
    pipeline: list[int],
    methods: Any,
    mapping: str,
    offload: list[float],
    top: int,
) -> None:
    axes: dict[str, Any] = {
        "sequence_length": 1024,
        "global_batch_size": batch,
        "tensor_parallel": [1, 2],
        "context_parallel": 1,
        "pipeline_parallel": pipeline,
        "virtual_pipeline": [1, 2],
        "micro_batch_size": [1, 2],
        "recompute": ["none", "full"],
        "recompute_method": methods,
        "recompute_num_layers": [0, 2, 5],
        "mapping": mapping,
        "offload_optimizer": offload,
    }
    rows = [load_hardware(item) for item in hardware]
    software = [load_framework("megatron")]
    listed = enumerate_problems([load_model(model)], software, devices, axes, hardware=rows)
    if not listed.possible:
        return
    ranked = best(sweep_problems(listed.problems, rows), top)
    found = search(model, hardware, devices, top=top, **axes)
    if ranked:
        assert_same(ranked, found)
    else:
        assert found.table is None


def test_a_space_that_no_memory_could_list() -> None:
    found = perfmodel.search(
        "gpt2",
        "dgx-h100",
        [8, 16],
        sequence_length=1024,
        global_batch_size=[64, 128],
        tensor_parallel=[1, 2],
        virtual_pipeline=1,
        mapping="all",
        recompute="all",
        recompute_method="all",
        recompute_num_layers=list(range(13)),
        padding=np.linspace(0.0, 0.2, 3).tolist(),
        offload_optimizer=np.linspace(0.0, 1.0, 101).tolist(),
        offload_optimizer_to="all",
        top=1,
    )
    assert found.possible > 1e8
    assert found.bound is None
    assert found.strategies[0]["padding"] == 0.0


def test_hardware_without_a_precision_is_counted_apart() -> None:
    found = search(
        "gpt2", ["dgx-a100", "dgx-h100"], 8, precision=["bf16", "fp8"], **PROBLEM, recompute="none"
    )
    assert found.lacking == {"dgx-a100": found.possible // 4}
    assert found.unsettled == 0


def test_nothing_fits() -> None:
    found = search("llama-3.1-405b", "dgx-h100", 8, sequence_length=4096, global_batch_size=8)
    assert found.table is None
    assert not found.strategies
    assert found.proved["memory"] == found.possible
    assert found.least_memory["dgx-h100"] > 80e9


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="a search cannot rank by 'memory_total'; it can by tok"):
        search("gpt2", "dgx-h100", 8, by="memory_total", **PROBLEM)
    with pytest.raises(DataError, match="top: 0 is not a positive number"):
        search("gpt2", "dgx-h100", 8, top=0, **PROBLEM)
    with pytest.raises(StrategyError, match="no strategy is possible on 7 devices"):
        search("gpt2", "dgx-h100", 7, tensor_parallel=2, **PROBLEM)
    with pytest.raises(StrategyError, match="unknown strategy field 'tensor'"):
        search("gpt2", "dgx-h100", 8, tensor=2, **PROBLEM)
    alone = load_hardware("dgx-h100").with_values({"system.host.bandwidth": 0.0})
    with pytest.raises(StrategyError, match="offload without a host"):
        search("gpt2", alone, 8, offload_optimizer=[0, 1], **PROBLEM)
