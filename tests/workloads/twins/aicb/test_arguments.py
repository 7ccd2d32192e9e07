"""AICB's command line: its spellings, its defaults, what follows from them, what is refused."""

from __future__ import annotations

import csv
import dataclasses
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.twins.aicb.arguments import (
    ALIASES,
    CHOICES,
    FIELDS,
    GENERATORS,
    INFERENCE_OPTIONS,
    AicbArguments,
    parse_arguments,
)
from tests.amount import cases
from tests.data import table_of

NAMES = {field.name for field in FIELDS}


def parse(text):
    return parse_arguments(shlex.split(text))


def test_defaults_are_those_of_aicb():
    # aicb 23eec3c4, utils/utils.py: get_params and the functions that it calls.
    arguments = parse("")
    assert (arguments.frame, arguments.gpu_type, arguments.model_name) == ("Megatron", None, None)
    assert (arguments.global_batch, arguments.micro_batch, arguments.world_size) == (4, 1, 1)
    assert (arguments.num_layers, arguments.hidden_size, arguments.seq_length) == (24, 1024, 2048)
    assert (arguments.vocab_size, arguments.max_position_embeddings) == (32000, 4096)
    assert (arguments.n_dense_layers, arguments.n_shared_expert) == (3, 2)
    assert (arguments.stage, arguments.reduce_bucket_size) == (3, 500_000_000)
    assert (arguments.num_experts, arguments.moe_router_topk) == (1, 1)
    assert arguments.dtype == "bfloat16"
    assert arguments.generator == "training"


def test_a_command_of_the_study_is_read():
    arguments = parse(
        "python -m workload_generator.SimAI_training_workload_generator --frame=Megatron "
        "--gpu_type=None --model_name=gpt_7B --world_size=512 --tensor_model_parallel_size=2 "
        "--pipeline_model_parallel=1 --global_batch=2048 --micro_batch=1 --num_layers=36 "
        "--seq_length=1024 --hidden_size=4096 --num_attention_heads=32 --vocab_size=50257 "
        "--use-distributed-optimizer --aiob_enable --use_flash_attn --swiglu "
        "--comp_filepath=workload/aiob_inputs/Example.txt"
    )
    assert arguments.module == "SimAI_training_workload_generator"
    assert arguments.gpu_type == "None"
    assert arguments.use_distributed_optimizer
    assert arguments.aiob_enable
    assert arguments.comp_filepath == "workload/aiob_inputs/Example.txt"
    assert (arguments.data_parallel, arguments.micro_batches) == (256, 8)


def test_every_command_of_the_manifest_is_read(development_table):
    path = development_table("aicb/manifest.csv")
    with path.open(encoding="utf-8", newline="") as file:
        commands = [row["command"] for row in csv.DictReader(file)]
    assert commands
    read = [parse(command) for command in commands]
    assert {arguments.generator for arguments in read} == set(GENERATORS.values())


@pytest.mark.parametrize(
    "words",
    [
        "--context-parallel-size=2",
        "--context_parallel_size=2",
        "--context-parallel_size 2",
        "--context_par 2",
        "--context-parallel-size 4 --context-parallel-size 2",
    ],
)
def test_spellings_of_one_option(words):
    assert parse(words).context_parallel_size == 2


def test_an_option_may_have_a_negative_value():
    assert parse("--pp_rank -1").pp_rank == -1


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--comm_frame=DeepSeek", {"frame": "DeepSeek"}),
        ("--tp_num 2 --world_size 4 --pp_num=2",
         {"tensor_model_parallel_size": 2, "pipeline_model_parallel": 2}),
        ("--expert_parallel_size 2 --num_moe_experts 4",
         {"expert_model_parallel_size": 2, "num_experts": 4}),
        ("--sp --moe_enabled --grouped_gemm",
         {"enable_sequence_parallel": True, "moe_enable": True, "moe_grouped_gemm": True}),
        ("--sp-enable", {"enable_sequence_parallel": True}),
    ],
)  # fmt: skip
def test_spellings_of_older_releases(words, fields):
    assert parse(words) == AicbArguments(**fields | ({"world_size": 4} if "world" in words else {}))


def test_aliases_and_choices_name_fields():
    assert set(ALIASES.values()) | set(CHOICES) | set(INFERENCE_OPTIONS) <= NAMES
    assert not set(ALIASES) & NAMES


@pytest.mark.parametrize(
    ("words", "generator"),
    [
        ("", "training"),
        ("--frame=DeepSeek", "training"),
        ("--frame=DeepSpeed", "deepspeed"),
        ("workload_generator.generate_megatron_workload", "megatron_csv"),
        ("generate_deepspeed_stage3_workload --frame=DeepSpeed", "deepspeed"),
        ("/usr/bin/python3.11 -m workload_generator.Vidur_workload_generator X", "vidur"),
        # Upstream looks for "DeepSeek" only: any other frame writes Megatron's file.
        ("SimAI_training_workload_generator --frame=DeepSpeed", "training"),
        ("AIOB_simAI_workload_generator", "training"),
    ],
)
def test_the_generator_is_the_modules_or_the_frames(words, generator):
    assert parse(words).generator == generator


def test_inference_has_its_own_options_and_defaults():
    arguments = parse(
        "SimAI_inference_workload_generator DeepSeek-671B config.json --phase prefill "
        "--seq_length 4096 --world_size 32 --tensor_model_parallel_size 8"
    )
    assert arguments.generator == "inference"
    assert (arguments.model_name, arguments.config_file) == ("DeepSeek-671B", "config.json")
    assert (arguments.phase, arguments.seq_length, arguments.micro_batch) == ("prefill", 4096, 1)
    assert arguments.moe_enable
    shorter = parse("SimAI_inference_workload_generator DeepSeek-671B")
    assert (shorter.seq_length, shorter.phase, shorter.config_file) == (1, "decode", None)


def test_feed_forward_sizes_follow_aicb():
    # Multiples of 64 of the manifest's models: 4096 → 10880, 5120 → 13632, 12288 → 32768.
    for hidden, expected in ((4096, 10880), (5120, 13632), (12288, 32768), (2048, 5440)):
        assert AicbArguments(hidden_size=hidden, swiglu=True).feed_forward_size == expected
    assert AicbArguments(hidden_size=4096).feed_forward_size == 16384
    assert AicbArguments(hidden_size=4096, ffn_hidden_size=9).feed_forward_size == 9


def test_the_vocabulary_is_padded_for_every_tensor_parallel_rank():
    for tensor, expected in ((1, 50304), (2, 50432), (4, 50688), (8, 51200)):
        arguments = AicbArguments(
            vocab_size=50257, tensor_model_parallel_size=tensor, world_size=tensor
        )
        assert arguments.padded_vocab_size == expected


def test_heads_default_to_layers_and_stages_floor():
    arguments = AicbArguments(num_layers=36, pipeline_model_parallel=8, world_size=8)
    assert (arguments.attention_heads, arguments.layers_per_stage) == (36, 4)


def test_a_global_batch_too_small_gives_no_micro_batch():
    assert AicbArguments(world_size=8, global_batch=4).micro_batches == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *table_of(__file__, "bad_arguments_end_with_one_line"),
        ("--world_size=" + "9" * 30, "a whole number is needed"),
    ],
)
def test_bad_arguments_end_with_one_line(words, message):
    with pytest.raises(StrategyError, match=message) as caught:
        parse(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("world_size", 2.0, "--world_size=2.0: a whole number"),
        ("world_size", True, "--world_size=True: a whole number"),
        ("num_layers", None, "--num_layers=None: a whole number"),
        ("swiglu", 1, "--swiglu=1: bool is needed"),
        ("gpu_type", 5, "--gpu_type=5: str is needed"),
        ("module", "nothing", "unknown AICB generator 'nothing'"),
    ],
)
def test_values_given_in_python_are_checked_too(field, value, message):
    with pytest.raises(StrategyError, match=message):
        AicbArguments(**{field: value})


OPTIONS = [f"--{name}" for name in sorted(NAMES)]
WORDS = st.lists(
    st.sampled_from([*OPTIONS, *GENERATORS, "-m", "python", "8", "0", "True"])
    | st.text(max_size=12)
    | st.tuples(st.sampled_from(OPTIONS), st.text(max_size=6)).map("=".join),
    max_size=8,
)


@settings(max_examples=cases(200))
@given(WORDS)
def test_any_words_are_read_or_refused(words):
    try:
        arguments = parse_arguments(words)
    except StrategyError:
        return
    assert dataclasses.replace(arguments) == arguments
    assert arguments.generator in GENERATORS.values()
