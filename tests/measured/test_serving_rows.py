"""Rows of serving runs as deployments and loads."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfmodel.base.errors import DataError
from perfmodel.measured.kinds.serving import KIND
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.measured.serving_rows import (
    CLOSED,
    OFFLINE,
    OPEN,
    STATIC,
    case_of,
    derived,
    engine_of,
    formats_of,
    load_of,
    measured_value,
)
from perfmodel.model.presets import load_model
from perfmodel.software.engine import load_engine

RUN = {
    "hardware": "B200",
    "n_gpus": "8",
    "engine": "SGLang",
    "version": "0.5.9",
    "model": "DeepSeek-R1",
    "precision": "fp8",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "64",
    "random_range_ratio": "0.8",
    "ttft_ms": "500",
    "tpot_ms": "20",
}


def row(**cells: Any) -> MeasuredRow:
    return MeasuredRow({**RUN, **{k: str(v) for k, v in cells.items()}}, "runs.csv", 2)


def degrees(**cells: Any) -> tuple[int, ...]:
    """Return t, a, p, e and workers of a row."""
    found = case_of(row(**cells)).deployment
    names = ("tensor", "attention_data", "pipeline", "expert")
    return (*(found[f"{name}_parallel"] for name in names), found["workers"])


def test_layouts_are_those_that_rows_state() -> None:
    assert degrees(tp=8) == (8, 1, 1, 1, 1)
    assert degrees(tp=8, ep=8) == (8, 1, 1, 8, 1)
    assert degrees(tp=1, attention_dp=8, ep=8) == (1, 8, 1, 8, 1)
    assert degrees(tp=4, pp=2) == (4, 1, 2, 1, 1)
    assert degrees(tp=4) == (4, 1, 1, 1, 2)


def test_attention_data_parallelism_may_stand_inside_the_tensor_degree() -> None:
    assert degrees(tp=8, attention_dp="true", ep=8) == (1, 8, 1, 8, 1)
    assert degrees(tp=8, attention_dp=8, ep=8) == (1, 8, 1, 8, 1)
    assert degrees(tp=8, attention_dp=2, ep=8) == (4, 2, 1, 8, 1)
    assert degrees(tp=8, ep=8, notes="attention DP, max_batch 128/rank") == (1, 8, 1, 8, 1)
    assert degrees(tp=8, attention_dp="false") == (8, 1, 1, 1, 1)


def test_replicas_that_share_experts_are_one_worker() -> None:
    assert degrees(tp=1, ep=8) == (1, 8, 1, 8, 1)


def test_words_for_the_expert_degree_mean_all_devices() -> None:
    assert degrees(tp=8, ep="see source") == (8, 1, 1, 8, 1)


def test_degrees_of_trainium_count_cores() -> None:
    cells = {"hardware": "trn1.32xlarge (16 Trainium1)", "n_gpus": 16, "tp": 32, "engine": "vLLM"}
    assert degrees(**cells, model="Llama-2-13b", precision="bf16")[0] == 16


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"n_gpus": 12, "tp": 8}, "layout does not fit the devices"),
        ({"tp": 8, "ep": 3}, "layout does not fit the devices"),
        ({"n_gpus": "", "tp": 8}, "number of devices not stated"),
        ({"tp": 8, "speculative": "mtp 3"}, "drafts whose acceptance is not stated"),
        ({"tp": 8, "isl": ""}, "lengths of prompts or answers not stated"),
        ({"tp": 8, "concurrency": ""}, "neither concurrency nor rate stated"),
        ({"tp": 8, "hardware": "H9000"}, "no hardware profile"),
        ({"tp": 72, "n_gpus": 72}, "layout of attention not stated"),
        ({"mode": "closed loop, disaggregated"}, "workers of the pools not stated"),
    ],
)
def test_what_cannot_be_read_is_skipped_with_the_reason(cells: dict[str, Any], reason: str) -> None:
    with pytest.raises(Skip) as caught:
        case_of(row(**cells))
    assert caught.value.reason == reason
    assert caught.value.scorable


POOLS = {
    "mode": "closed loop, disaggregated",
    "n_gpus": 12,
    "prefill_workers": 1,
    "prefill_tp": 4,
    "prefill_ep": 4,
    "decode_workers": 1,
    "decode_tp": 1,
    "decode_attention_dp": 8,
    "decode_ep": 8,
}


def test_pools_have_layouts_of_their_own() -> None:
    found = case_of(row(**POOLS)).deployment
    assert (found["prefill_workers"], found["prefill_tensor_parallel"]) == (1, 4)
    assert (found["workers"], found["attention_data_parallel"]) == (1, 8)
    assert found["prefill_expert_parallel"] == 4
    with pytest.raises(Skip, match="layout does not fit the devices"):
        case_of(row(**{**POOLS, "n_gpus": 16}))


def test_limits_are_read_from_columns_and_words() -> None:
    words = "max_num_seqs 128, max_num_batched_tokens 2048; kv_cache_free_gpu_mem_fraction 0.95"
    found = case_of(row(tp=8, notes=words)).deployment
    assert found["max_sequences"] == 128
    assert found["token_budget"] == 2048
    assert found["memory_share"] == 0.95
    assert case_of(row(tp=8, max_batch=32)).deployment["max_sequences"] == 32


def test_requests_come_in_four_ways() -> None:
    arrival, load, _, _ = load_of(row())
    assert (arrival, load["concurrency"], load["rounds"]) == (CLOSED, 64, 10)
    assert load["length_spread"] == 0.8
    assert load_of(row(num_prompts=128))[1]["rounds"] == 2
    online = {"concurrency": "", "offered_qps": 4, "mode": "online, 4 req/s offered, 500 requests"}
    arrival, load, _, requests = load_of(row(**online))
    assert (arrival, load["arrival_rate"], requests) == (OPEN, 4, 500)
    arrival, load, _, requests = load_of(row(**{**online, "offered_qps": "INF"}))
    assert (arrival, load["concurrency"], load["rounds"]) == (OFFLINE, 500, 0)
    offline = "offline max throughput (infinite request rate, 3000 requests, in-flight batching)"
    assert load_of(row(concurrency="", mode=offline))[1]["concurrency"] == 3000
    arrival, load, batch, _ = load_of(row(concurrency="", batch=8, mode="static batch"))
    assert (arrival, batch) == (STATIC, 8)
    assert math.isinf(load_of(row())[3])


def test_the_measurement_is_the_metric_or_what_stands_for_it() -> None:
    assert measured_value(row(), "ttft") == (0.5, "time_to_first_token")
    assert measured_value(row(), "tpot") == (0.02, "time_per_output_token")
    assert measured_value(row(tpot_ms="", itl_ms=30), "tpot") == (0.03, "inter_token_latency")
    gpu = {"out_tok_s_gpu": 100, "der_out_tok_s": 1}
    assert measured_value(row(**gpu), "throughput")[0] == 100
    assert measured_value(row(der_out_tok_s=80), "throughput")[0] == 10
    with pytest.raises(Skip) as caught:
        measured_value(row(), "throughput")
    assert not caught.value.scorable


def test_cells_that_should_be_numbers_are_checked() -> None:
    KIND.refuse_broken(row())
    with pytest.raises(DataError, match="line 2, column 'isl'"):
        KIND.refuse_broken(row(isl="long"))


def test_rows_are_grouped_by_what_follows_from_them() -> None:
    found = derived(row(tp=8))
    assert found == {
        "load": CLOSED,
        "pools": "aggregated",
        "architecture": "moe",
        "crowd": "33-256",
    }
    assert derived(row(**POOLS))["pools"] == "disaggregated"


def bare(**cells: str) -> MeasuredRow:
    return MeasuredRow(cells, "runs.csv", 2)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("TensorRT-LLM", "trtllm"),
        ("TensorRT-LLM (PyTorch backend)", "trtllm"),
        ("Dynamo TRT-LLM", "trtllm"),
        ("vLLM", "vllm"),
        ("SGLang", "sglang"),
        ("dynamo-sglang", "sglang"),
    ],
)
def test_engines_have_many_names(text: str, engine: str) -> None:
    assert engine_of(bare(engine=text))[0].engine == engine


@pytest.mark.parametrize("text", ["", "ATOM", "LMDeploy"])
def test_other_engines_have_no_facts(text: str) -> None:
    with pytest.raises(Skip):
        engine_of(bare(engine=text))


def test_the_release_is_that_of_the_row() -> None:
    for version in ("0.8.5", "0.12.0", "nightly-5b8c30d62b754b57"):
        found, _ = engine_of(bare(engine="vLLM", version=version))
        assert found == load_engine("vllm", version if version[0] == "0" else "")


def test_releases_of_dynamo_are_none_of_the_engine() -> None:
    pools = {"engine": "TensorRT-LLM", "version": "0.8.1.post2", "prefill_workers": "2"}
    found, notes = engine_of(bare(**pools))
    assert found == load_engine("trtllm")
    assert "Dynamo" in notes[0]
    assert engine_of(bare(engine="TensorRT-LLM", version="0.8.0"))[0] == load_engine(
        "trtllm", "0.8"
    )
    assert found != load_engine("trtllm", "0.8")


def formats(model: str, **cells: str) -> list[str]:
    cells = {"model": model, **cells}
    found, _ = formats_of(bare(**cells), load_model(model))
    return [found["weight_precision"], found["kv_precision"]]


def test_formats_are_those_that_a_row_states() -> None:
    assert formats("llama-3.1-70b", precision="fp8") == ["fp8", "fp8"]
    assert formats("qwen3-32b", precision="fp8") == ["fp8_block", "fp8"]  # Qwen3-32B-FP8
    assert formats("llama-3.1-70b", precision="FP4") == ["nvfp4", "fp8"]
    assert formats("llama-3.1-70b", precision="fp16") == ["fp16", "fp16"]
    assert formats("llama-3.1-70b", precision="fp8", kv_precision="auto") == ["fp8", "bf16"]
    assert formats("deepseek-r1", precision="nvfp4", notes="FP16 KV") == ["nvfp4", "fp16"]
    assert formats("llama-2-7b", precision="Matmult-BF16 weights int8") == ["int8", "bf16"]


def test_an_empty_cell_means_as_published() -> None:
    for model in ("qwen3-32b", "deepseek-r1", "minimax-m2"):
        assert formats(model) == ["stated", "bf16"]


def test_a_cache_is_kept_as_the_checkpoint_states_it() -> None:
    assert formats("deepseek-r1", precision="nvfp4") == ["nvfp4", "fp8"]
    assert formats("gpt-oss-120b", precision="mxfp4") == ["mxfp4", "bf16"]
    cells = {"model": "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "precision": "fp8"}
    assert formats_of(bare(**cells), load_model("llama-3.1-70b"))[0]["kv_precision"] == "bf16"


def test_nobody_widens_published_weights() -> None:
    assert formats("gpt-oss-120b", precision="fp8") == ["stated", "bf16"]


def test_unknown_formats_are_skipped() -> None:
    with pytest.raises(Skip, match="unknown precision"):
        formats("qwen3-32b", precision="ternary")
    with pytest.raises(Skip, match="unknown precision"):
        formats("qwen3-32b", precision="fp8", kv_precision="ternary")


def test_without_a_release_the_month_of_the_run_counts() -> None:
    def release(engine: str, measured: str) -> str:
        return engine_of(bare(engine=engine, measured=measured))[0].since

    assert release("vLLM", "2025-10-29") == "0.11"
    assert release("vLLM", "2026-01-30") == "0.14"
    assert release("vLLM", "2026-12-01") == load_engine("vllm").since
    assert release("TensorRT-LLM", "2025-01-10") == "0.5"
    assert release("TensorRT-LLM", "") == load_engine("trtllm").since


def test_requests_and_rates_are_read_in_other_words() -> None:
    found = case_of(row(concurrency="", mode="concurrency 16, 1,000 ShareGPT prompts"))
    assert (found.load["concurrency"], found.requests) == (16, 1000)
    online = case_of(row(concurrency="", mode="online, 2.5 req/s offered, 500 prompts"))
    assert (online.load["arrival_rate"], online.requests) == (2.5, 500)
    assert measured_value(bare(tok_s_user="50"), "tpot") == (0.02, "time_per_output_token")
    cells = {"n_gpus": "2", "isl": "100", "osl": "300", "total_tok_s": "400"}
    assert measured_value(bare(**cells), "throughput")[0] == 150


@pytest.mark.parametrize(
    ("hardware", "devices", "tensor", "found"),
    [
        ("inf2.48xlarge (12 Inferentia2)", 12, 24, (12, 1)),
        ("inf2.48xlarge", 24, 8, (4, 3)),  # cores of both
        ("trn1.32xlarge (16 Trainium1)", 16, 32, (16, 1)),
        ("Trainium2", 16, 64, (16, 1)),  # two physical cores are one
        ("Trainium2", 16, 128, (16, 1)),
    ],
)
def test_cores_of_neuron_devices_are_not_chips(
    hardware: str, devices: int, tensor: int, found: tuple[int, int]
) -> None:
    cells = {"engine": "Transformers NeuronX", "hardware": hardware, "model": "Llama-3-70B"}
    layout = case_of(row(**cells, n_gpus=devices, tp=tensor, ep=1)).deployment
    assert (layout["tensor_parallel"], layout["workers"]) == found


def test_heads_are_padded_where_neuron_cuts_them_unevenly() -> None:
    cells = {"engine": "Transformers NeuronX", "hardware": "Inferentia2", "model": "Llama-2-13B"}
    found = case_of(row(**cells, n_gpus=12, tp=24, ep=1))
    assert found.model.layers[0].attention.heads == 48
    assert "heads padded to multiples of 12" in found.notes
