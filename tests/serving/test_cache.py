"""The cache in groups that share blocks, against what engines printed."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_model
from perfmodel.serving.cache import TENSOR, cache_terms, charged
from perfmodel.serving.enumerate import deployments_from_rows
from perfmodel.serving.memory import deployment_memory
from perfmodel.software.engine import load_engine
from tests.serving.test_memory import memory_of

GIB = 2.0**30


def terms(model, engine, precision="bf16"):
    spec = load_model(model)
    return cache_terms(spec, spec.layers, precision, load_engine(engine))


def test_gemma_is_charged_a_window_and_a_pass_beside_all_its_tokens():
    # redhat-performance/configiq issue 112: 64.68 GiB hold 626,949 tokens at 262,144
    found = memory_of(
        "gemma-4-31b",
        "dgx-h200",
        "vllm-0.22",
        context_length=262_144,
        token_budget=8192,
        cache_bytes=64.68 * GIB,
    )
    assert found.tokens[0] == pytest.approx(626_949, rel=1e-3)
    assert found.concurrency[0] == pytest.approx(626_949 / 262_144, rel=1e-3)


def test_earlier_releases_print_tokens_as_if_all_groups_kept_everything():
    rows = {"context_length": 131_072, "cache_bytes": 50.0 * GIB}
    old, new = (memory_of("gemma-4-31b", "dgx-h200", it, **rows) for it in ("vllm-0.19", "vllm"))
    assert old.tokens[0] == pytest.approx(55_000, rel=0.02)
    assert old.concurrency[0] == pytest.approx(new.concurrency[0], rel=1e-3)
    kept = memory_of("gemma-4-31b", "dgx-h200", "vllm-0.9", **rows)
    assert kept.concurrency[0] < old.concurrency[0] / 4


@pytest.mark.parametrize(
    ("model", "engine", "tensor", "precision", "tokens"),
    [
        ("nemotron-nano-9b-v2", "vllm-0.12", 1, "bf16", 672),  # vllm issue 24280
        ("qwen3.5-27b", "vllm-0.26", 1, "fp8", 1568),  # noonghunna/club-3090 issue 1047
        ("qwen3.5-35b-a3b", "vllm-0.19", 1, "bf16", 1056),
        ("qwen3.5-27b", "sglang", 1, "bf16", 1),
    ],
)
def test_a_block_holds_the_state_of_a_layer(model, engine, tensor, precision, tokens):
    found = memory_of(model, engine=engine, tensor_parallel=tensor, kv_precision=precision)
    assert found.block_tokens[0] == tokens


def test_a_state_of_every_sequence_that_may_run_needs_a_block():
    few = memory_of("qwen3.5-27b", "rtx-5090-server", "vllm-0.22", tensor_parallel=2,
                    weight_precision="fp8", max_sequences=1024)  # fmt: skip
    assert few.starved[0]
    fewer = memory_of("qwen3.5-27b", "rtx-5090-server", "vllm-0.22", tensor_parallel=2,
                      weight_precision="fp8")  # fmt: skip
    assert not fewer.starved[0]  # 256 sequences below 70 GiB
    slots = memory_of("qwen3.5-27b", engine="sglang", tensor_parallel=2)
    assert slots.most_sequences[0] < 1000
    assert slots.state_blocks[0] == 0


def test_layers_that_fill_up_groups_are_counted():
    whole = terms("gemma-3-27b", "vllm-0.12").windows
    alone = terms("gemma-3-27b", "sglang").windows
    ratio = sum(it.sum() for it in whole.values()) / sum(it.sum() for it in alone.values())
    assert ratio == pytest.approx(60 / 52)
    assert terms("gemma-3-27b", "vllm-0.12").held == {}


def test_states_have_the_format_of_the_file_or_of_the_model():
    two, four = (
        terms("nemotron-nano-9b-v2", engine).states[TENSOR].max()
        for engine in ("vllm-0.12", "sglang")
    )
    assert two == 128 * 80 * 128 * 2 + 12_288 * 3 * 2
    assert four == 128 * 80 * 128 * 4 + 12_288 * 3 * 2


def test_deepseek_v4_charges_two_passes_in_small_blocks():
    # vllm issue 51041: 7.71 GiB hold 1.24 requests of 121,344 tokens
    found = memory_of(
        "deepseek-v4-flash",
        "hgx-h20",
        "vllm-0.26",
        tensor_parallel=2,
        kv_precision="fp8",
        context_length=121_344,
        max_sequences=32,
        cache_bytes=7.71 * GIB,
    )
    assert found.concurrency[0] == pytest.approx(1.24, rel=0.07)


def test_a_charge_is_in_whole_blocks_and_a_window_has_one_more():
    one = np.ones(1)
    assert charged(17 * one, 8 * one, 16 * one, one, 0 * one, 0.0)[0] == 32
    assert charged(1000 * one, 8 * one, 16 * one, 0 * one, one, 16.0)[0] == 48
    assert charged(10 * one, 8 * one, 16 * one, 0 * one, one, 16.0)[0] == 32


def test_a_context_that_no_request_can_fill_is_refused():
    row = {"tensor_parallel": 1, "memory_share": 0.45}
    assert memory_of("llama-3.1-8b", **row, context_length=131_072).refused[0]
    assert not memory_of("llama-3.1-8b", **row).refused[0]
    stages = {"tensor_parallel": 1, "pipeline_parallel": 2, "cache_bytes": 3.18 * GIB}
    found = memory_of("qwen3-30b-a3b", engine="vllm-0.15", **stages, context_length=36_000)
    assert found.refused[0]  # vllm issue 34076: all layers against one stage
    assert found.concurrency[0] > 1.5


def test_blocks_and_bytes_that_are_stated_hold():
    grid = deployments_from_rows("llama-3.1-8b", [{"cache_blocks": 5000}, {"cache_bytes": 20e9}])
    layouts, layout, _ = grid.layouts()
    from perfmodel import load_hardware

    found = deployment_memory(grid, layouts, layout, load_hardware("dgx-h100"))
    assert found.blocks[0] == 5000
    assert found.cache[1] == pytest.approx(20e9, rel=1e-3)
