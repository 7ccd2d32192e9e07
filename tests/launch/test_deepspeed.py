"""DeepSpeed's configuration and Megatron-DeepSpeed's arguments: by hand, round trips, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.facts import Run
from perfmodel.launch.software import format_launch, parse_launch, read_launch
from perfmodel.launch.text import heredocs
from perfmodel.software.framework import as_run
from tests.data import launch_sample
from tests.launch.launches import one_launch, round_trips


def test_gpt3_with_tensor_and_pipeline_parallelism() -> None:
    launch = one_launch(
        "gpt3-175b",
        "megatron-deepspeed-2021",
        devices=1024,
        tensor_parallel=8,
        pipeline_parallel=16,
        zero_stage=1,
        global_batch_size=1536,
        sequence_length=2048,
        recompute="full",
    )
    text = format_launch("deepspeed", launch)
    [(document, _)] = heredocs(text)
    assert json.loads(document) == {
        "train_batch_size": 1536,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 192,
        "zero_optimization": {"stage": 1, "overlap_comm": False},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    for words in (
        "deepspeed --num_nodes 128 --num_gpus 8 pretrain_gpt.py --deepspeed",
        "--deepspeed_config ds_config.json",
        "--tensor-model-parallel-size 8",
        "--pipeline-model-parallel-size 16",
        "--zero-stage 1",
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--deepspeed-activation-checkpointing",
        "--num-layers 96",
        "--hidden-size 12288",
        "--normalization layernorm",
        "--bf16",
        "--hidden-dropout 0.1",
    ):
        assert words in text
    assert "--no-pipeline-parallel" not in text


@pytest.mark.parametrize(("stated", "size"), [("", 2.0), ("fp32", 4.0)])
def test_gradients_of_bf16_have_its_type_unless_stated(stated: str, size: float) -> None:
    """DeepSpeed since 2023: under ZeRO, grad_accum_dtype is that of the parameters."""
    configuration = {
        "train_batch_size": 8,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    } | ({"data_types": {"grad_accum_dtype": stated}} if stated else {})
    text = (
        f"cat > c.json <<EOF\n{json.dumps(configuration)}\nEOF\n"
        "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed_config c.json --use-flash-attn-v2"
    )
    _, launch = parse_launch(text, "run.sh")
    assert launch["precision"] == "bf16"
    framework = as_run(launch.framework, Run("bf16", False, 8))
    assert framework.gradient_bytes == framework.gradient_reduce_bytes == size


@pytest.mark.parametrize(
    ("name", "least"), [("llama-3.1-8b", 20), ("gpt3-175b", 20), ("mixtral-8x7b", 3)]
)
def test_what_is_written_is_read(name: str, least: int) -> None:
    done, refused = round_trips(
        "deepspeed",
        "megatron-deepspeed",
        name,
        250,
        mapping=("tensor-context-data-pipeline",),
        precision=("bf16", "fp16"),
        virtual_pipeline=[1],
        context_parallel_kind=["all_to_all"],
        shard_group=(0, 0, 8),
        recompute_method=("single", "uniform", "block"),
    )
    assert done > least
    assert all(text.startswith("DeepSpeed cannot do ") for text in refused)


def test_a_configuration_alone() -> None:
    text = """{
  "train_batch_size": 256,
  "gradient_accumulation_steps": 8,
  "bf16": {"enabled": "auto"},
  "fp16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "mics_shard_size": 8,
    "offload_optimizer": {"device": "cpu"}
  }
}"""
    name, launch = parse_launch(text, "ds.json")
    assert name == "deepspeed"
    assert (launch["zero_stage"], launch["shard_group"], launch["precision"]) == (3, 8, "fp16")
    assert launch["global_batch_size"] == 256
    assert launch.model is None
    assert launch.strategy["offload_optimizer"] == 1.0


def test_a_script_whose_configuration_stands_in_a_file() -> None:
    _, launch = parse_launch(
        "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config x "
        "--zero-stage=2 --micro-batch-size 4 --global-batch-size 128 --ds-sequence-parallel-size 4 "
        "--seq-length 8192 --bf16 --no-pipeline-parallel --checkpoint-activations",
        "run.sh",
    )
    assert (launch["context_parallel"], launch["context_parallel_kind"]) == (4, "all_to_all")
    assert (launch["data_parallel"], launch["zero_stage"]) == (4, 2)
    assert launch["recompute"] == "full"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline_parallel": 2, "virtual_pipeline": 2}, "pipeline_schedule interleaved; it offe"),
        ({"context_parallel": 2}, "context_parallel_kind ring; it offers all_to_all"),
        ({"pipeline_parallel": 2, "zero_stage": 2}, "with a pipeline it offers zero 0, 1"),
        ({"precision": "fp8"}, "precision fp8; it offers bf16, fp16"),
        ({"zero_stage": 1, "shard_group": 4}, "smaller shard sets (MiCS) are zero 3's"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused(changes: dict[str, Any], message: str) -> None:
    axes = {"global_batch_size": 64, "sequence_length": 4096, **changes}
    with pytest.raises(StrategyError) as caught:
        format_launch("deepspeed", one_launch("llama-3.1-8b", devices=32, **axes))
    assert message in str(caught.value)


def test_models_that_it_lacks_are_refused() -> None:
    launch = one_launch("qwen3-8b", devices=8, global_batch_size=8, sequence_length=4096)
    with pytest.raises(StrategyError, match="cannot do qwen3-8b: norms of queries and keys"):
        format_launch("deepspeed", launch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"zero_optimization": {"stage": 7}}', "ds.json:1: zero_optimization.stage '7': should"),
        ('{\n"train_batch_size": "many"}', "ds.json:2: train_batch_size 'many': should be a whole"),
        ('{"train_batch_size": 1', "ds.json:1: not valid JSON"),
        ('{"train_batch_size": 1, "train_batch_size": 2}', "key 'train_batch_size' is given twice"),
        ("[" * 9000, "no launch file"),
    ],
)
def test_wrong_values_are_one_line_with_the_key(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "ds.json", "deepspeed" if text.startswith("{") else "")
    assert message in str(caught.value)


def test_batches_that_contradict_each_other() -> None:
    text = (
        'cat > c.json <<EOF\n{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,\n'
        '"gradient_accumulation_steps": 3}\nEOF\n'
        "deepspeed --num_nodes 1 --num_gpus 8 p.py --deepspeed_config c.json --bf16"
    )
    with pytest.raises(FormatError, match=r"run\.sh:3: gradient_accumulation_steps '3': should be"):
        parse_launch(text, "run.sh")


def test_hugging_faces_trainer_with_its_configuration_beside() -> None:
    name, launch = read_launch(launch_sample("deepspeed.sh"))
    assert name == "deepspeed"
    assert launch.model is not None
    assert launch.model.name == "llama-3.1-8b"
    expected = {
        "data_parallel": 16,
        "micro_batch_size": 4,
        "global_batch_size": 4 * 8 * 16,
        "sequence_length": 4096,
        "zero_stage": 3,
        "recompute": "full",
        "precision": "bf16",
    }
    assert {key: launch[key] for key in expected} == expected
    assert launch.framework.name.startswith("plain-2024")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('{"stage": 5}', r"zero3\.json:2: zero_optimization\.stage '5': should be one of"),
        ('{"overlap_com": true}', r"zero3\.json:2: unknown key zero_optimization\.overlap_com; sh"),
    ],
)
def test_errors_name_the_file_of_the_key(section: str, message: str, tmp_path: Path) -> None:
    script = launch_sample("deepspeed.sh").read_text(encoding="utf-8")
    (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    text = f'{{"bf16": {{"enabled": true}},\n "zero_optimization": {section}}}'
    (tmp_path / "zero3.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=message):
        read_launch(tmp_path / "run.sh")
