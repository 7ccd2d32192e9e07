"""Which engine, release and formats a row of a table of serving runs names."""

from __future__ import annotations

import pytest

from perfmodel.measured.row_engine import engine_of, formats_of
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.model.presets import load_model
from perfmodel.software.engine import load_engine


def row(**cells: str) -> MeasuredRow:
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
    assert engine_of(row(engine=text))[0].engine == engine


@pytest.mark.parametrize("text", ["", "ATOM", "LMDeploy"])
def test_other_engines_have_no_facts(text: str) -> None:
    with pytest.raises(Skip):
        engine_of(row(engine=text))


def test_the_release_is_that_of_the_row() -> None:
    for version in ("0.8.5", "0.12.0", "nightly-5b8c30d62b754b57"):
        found, _ = engine_of(row(engine="vLLM", version=version))
        assert found == load_engine("vllm", version if version[0] == "0" else "")


def test_releases_of_dynamo_are_none_of_the_engine() -> None:
    pools = {"engine": "TensorRT-LLM", "version": "0.8.1.post2", "prefill_workers": "2"}
    found, notes = engine_of(row(**pools))
    assert found == load_engine("trtllm")
    assert "Dynamo" in notes[0]
    assert engine_of(row(engine="TensorRT-LLM", version="0.8.0"))[0] == load_engine("trtllm", "0.8")
    assert found != load_engine("trtllm", "0.8")


def formats(model: str, engine: str = "trtllm", four_bits: bool = False, **cells: str) -> list[str]:
    cells = {"model": model, **cells}
    found, _ = formats_of(row(**cells), load_model(model), load_engine(engine), four_bits)
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
    assert formats("qwen3-32b", "vllm") == ["stated", "bf16"]
    assert formats("deepseek-r1", "vllm") == ["stated", "bf16"]
    assert formats("deepseek-r1", "trtllm") == ["stated", "fp8"]
    assert formats("deepseek-r1", "sglang") == ["stated", "bf16"]
    assert formats("deepseek-r1", "sglang", four_bits=True) == ["stated", "fp8"]
    assert formats("minimax-m2", "vllm", four_bits=True) == ["stated", "fp8"]


def test_nobody_widens_published_weights() -> None:
    assert formats("gpt-oss-120b", precision="fp8") == ["stated", "fp8"]


def test_unknown_formats_are_skipped() -> None:
    with pytest.raises(Skip, match="unknown precision"):
        formats("qwen3-32b", precision="ternary")
    with pytest.raises(Skip, match="unknown precision"):
        formats("qwen3-32b", precision="fp8", kv_precision="ternary")


def test_without_a_release_the_month_of_the_run_counts() -> None:
    def release(engine: str, measured: str) -> str:
        return engine_of(row(engine=engine, measured=measured))[0].since

    assert release("vLLM", "2025-10-29") == "0.8"
    assert release("vLLM", "2026-01-30") == "0.14"
    assert release("vLLM", "2026-04-01") == load_engine("vllm").since
    assert release("TensorRT-LLM", "2025-01-10") == "0.5"
    assert release("TensorRT-LLM", "") == load_engine("trtllm").since
