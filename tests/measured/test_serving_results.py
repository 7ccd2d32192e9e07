"""Result files of tools that load a server, written after their documented keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.measured.serving_results import read_serving_results

# Keys of vllm/benchmarks/serve.py; --metadata adds its own.
VLLM = {
    "date": "20260401-120000",
    "endpoint_type": "vllm",
    "model_id": "meta-llama/Llama-3.3-70B-Instruct",
    "num_prompts": 640,
    "request_rate": "inf",
    "max_concurrency": 64,
    "duration": 300.0,
    "completed": 640,
    "total_input_tokens": 655360,
    "total_output_tokens": 327680,
    "output_throughput": 1092.3,
    "mean_ttft_ms": 310.5,
    "mean_tpot_ms": 24.25,
    "mean_itl_ms": 24.1,
    "hardware": "H200",
    "tp": 8,
    "n_gpus": 8,
}
# Keys of python/sglang/bench_serving.py.
SGLANG = {
    "backend": "sglang",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 1024,
    "random_output_len": 512,
    "random_range_ratio": 0.5,
    "completed": 100,
    "output_throughput": 900.0,
    "mean_ttft_ms": 90.0,
    "mean_tpot_ms": 12.0,
}
# Keys of utils/process_result.py.
INFERENCEX = {
    "hw": "mi355x-amd_1",
    "conc": 32,
    "image": "rocm/7.0:rocm7.0_ubuntu_22.04_vllm_0.10.1",
    "model": "openai/gpt-oss-120b",
    "framework": "vllm",
    "precision": "fp4",
    "spec_decoding": "none",
    "disagg": False,
    "isl": 1024,
    "osl": 8192,
    "tp": 4,
    "ep": 1,
    "dp_attention": "false",
    "tput_per_gpu": 400.0,
    "output_tput_per_gpu": 350.0,
    "mean_ttft": 0.25,
    "mean_tpot": 0.0125,
}
POOLS = {
    **{k: v for k, v in INFERENCEX.items() if k not in ("tp", "ep", "dp_attention")},
    "hw": "gb200-nv_0",
    "image": "nvcr.io/nvidia/sglang:0.5.8-cu130",
    "framework": "dynamo-sglang",
    "disagg": True,
    "prefill_tp": 4,
    "prefill_ep": 4,
    "prefill_dp_attention": "true",
    "prefill_num_workers": 2,
    "decode_tp": 8,
    "decode_ep": 8,
    "decode_dp_attention": "false",
    "decode_num_workers": 1,
    "num_prefill_gpu": 8,
    "num_decode_gpu": 8,
}
# Keys of profile_export_aiperf.json.
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "request_latency": {"unit": "ms", "avg": 8000.0, "p50": 7900.0},
    "time_to_first_token": {"unit": "ms", "avg": 310.0, "p50": 300.0},
    "inter_token_latency": {"unit": "ms", "avg": 15.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1024.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1023.6},
    "output_sequence_length": {"unit": "tokens", "avg": 512.0},
    "request_count": {"unit": "requests", "avg": 160.0},
    "input_config": {
        "endpoint": {"model_names": ["Qwen/Qwen3-32B"], "streaming": True},
        "loadgen": {"concurrency": 16},
    },
}
# Sections of profile_export_aiperf.csv.
AIPERF_CSV = """Metric,avg,min,max,p50
Request Latency (ms),"8,000.00",7000,9000,7900
Time to First Token (ms),310.00,300,400,305
Inter Token Latency (ms),15.00,14,16,15
Input Sequence Length (tokens),1024.00,1024,1024,1024
Output Sequence Length (tokens),512.00,512,512,512

Metric,Value
Request Count,160
Request Throughput (requests/sec),2.00
Output Token Throughput (tokens/sec),"1,024.00"
"""


def read(path: Path, content: Any) -> list[dict[str, str]]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    found = read_serving_results(path)
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def test_vllm_with_metadata(path: Path) -> None:
    (row,) = read(path, VLLM)
    assert row["engine"] == "vLLM"
    assert (row["isl"], row["osl"], row["concurrency"]) == ("1024", "512", "64")
    assert (row["ttft_ms"], row["tpot_ms"], row["out_tok_s"]) == ("310.5", "24.25", "1092.3")
    assert (row["hardware"], row["tp"], row["n_gpus"]) == ("H200", "8", "8")
    assert "offered_qps" not in row


def test_lines_of_sglang(path: Path) -> None:
    rows = read(path, "\n".join(json.dumps(SGLANG) for _ in range(3)))
    assert len(rows) == 3
    assert rows[0]["engine"] == "SGLang"
    assert (rows[0]["isl"], rows[0]["random_range_ratio"]) == ("1024", "0.5")
    assert (rows[0]["offered_qps"], rows[0]["num_prompts"]) == ("4", "100")


def test_inferencex(path: Path) -> None:
    row, pools = read(path, [INFERENCEX, POOLS])
    assert (row["hardware"], row["n_gpus"], row["precision"]) == ("MI355X", "4", "mxfp4")
    assert (row["version"], row["concurrency"], row["attention_dp"]) == ("0.10.1", "32", "false")
    assert (row["ttft_ms"], row["tpot_ms"], row["out_tok_s_gpu"]) == ("250", "12.5", "350")
    assert (pools["hardware"], pools["n_gpus"], pools["precision"]) == ("GB200", "16", "nvfp4")
    assert (pools["prefill_tp"], pools["prefill_attention_dp"]) == ("1", "4")
    assert (pools["decode_tp"], pools["decode_attention_dp"]) == ("8", "1")
    assert pools["out_tok_s_gpu"] == "175"  # published per device that decodes
    assert pools["version"] == "0.5.8"


def test_aiperf_as_json_and_csv(path: Path) -> None:
    (row,) = read(path, AIPERF)
    assert row["model"] == "Qwen/Qwen3-32B"
    assert (row["isl"], row["osl"], row["concurrency"]) == ("1024", "512", "16")
    (table,) = read(path, AIPERF_CSV)
    same = ("isl", "osl", "ttft_ms", "tpot_ms", "out_tok_s", "num_prompts", "concurrency")
    assert [table[name] for name in same] == [row[name] for name in same]


def test_a_table_is_none_of_them(path: Path) -> None:
    path.write_text("hardware,model\nH100,x\n", encoding="utf-8")
    assert read_serving_results(path) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"mean_ttft_ms": 1', "line 1: .*; is the file cut off"),
        ('{"other": 1}', "not a result of vllm bench"),
        ("[]", "not a result of vllm bench"),
        ("[1]", "not a result of vllm bench"),
    ],
)
def test_broken_files_are_one_clear_line(path: Path, content: str, said: str) -> None:
    path.write_text(content, encoding="utf-8")
    with pytest.raises(FormatError, match=said):
        read_serving_results(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read"):
        read_serving_results(tmp_path / "nothing.json")
