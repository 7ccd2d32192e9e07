"""Modules and numbers of layers that are recomputed, as each software says them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.software import format_launch, parse_launch
from perfmodel.software.framework import load_framework
from tests.launch.launches import one_launch

MEGATRON = "pretrain_gpt.py --tensor-model-parallel-size 2 --seq-length 4096 --bf16 "
MEGATRON += "--micro-batch-size 1 --global-batch-size 64 "
TORCHTITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
[activation_checkpoint]
"""
MAXTEXT = "model_name: llama2-70b\nici_fsdp_parallelism: 64\nper_device_batch_size: 1\n"
NANOTRON = """
parallelism:
  dp: 2
  tp: 2
  pp: 1
tokens:
  sequence_length: 4096
  micro_batch_size: 1
  batch_accumulation_per_replica: 1
"""


def read(text: str, path: str = "run.sh", software: str = "") -> Any:
    return parse_launch(text, path, software)[1]


def layers(launch: Any) -> tuple[str, str, int]:
    row = launch.strategy
    return (
        row["recompute"],
        row.get("recompute_method", "single"),
        row.get("recompute_num_layers", 0),
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
         ("full", "single", 0)),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
         ("full", "uniform", 4)),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
         ("full", "block", 3)),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0",
         ("full", "block", 0)),
        ("--recompute-activations", ("selective", "single", 0)),
    ],
)  # fmt: skip
def test_layers_of_megatron(options: str, found: tuple[str, str, int]) -> None:
    launch = read(f"torchrun --nproc_per_node 8 {MEGATRON} {options}")
    assert layers(launch) == found


def test_modules_of_megatron_are_read_and_written() -> None:
    text = f"{MEGATRON} --recompute-granularity selective --recompute-modules moe_act core_attn"
    assert read(text).framework.selective_recompute == "core_attn moe_act"
    for name, written in (
        ("megatron", "--recompute-modules"),
        ("megatron-bridge", "recompute_modules:"),
    ):
        launch = one_launch(
            "mixtral-8x7b",
            devices=8,
            recompute="selective",
            sequence_length=4096,
            global_batch_size=8,
        )
        framework = load_framework("megatron", selective_recompute="core_attn moe_act")
        text = format_launch(name, replace(launch, framework=framework))
        assert written in text
        assert read(text, "x").framework.selective_recompute == "core_attn moe_act"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--recompute-granularity full --recompute-method blok --recompute-num-layers 3",
         "recompute-method 'blok': should be one of uniform, block"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 0",
         "recompute-num-layers '0': should be at least 1"),
        ("--recompute-granularity selective --recompute-modules core_atn",
         "did you mean core_attn"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(options: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(MEGATRON + options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_that_a_software_has_not_are_refused() -> None:
    launch = one_launch(
        "llama-3.1-8b", devices=8, recompute="selective", sequence_length=4096, global_batch_size=8
    )
    framework = load_framework("megatron", selective_recompute="save_context")
    with pytest.raises(StrategyError, match="recompute-modules lists modules"):
        format_launch("megatron", replace(launch, framework=framework))


@pytest.mark.parametrize(
    ("mode", "option", "found"),
    [
        ("selective", "op", ("selective", "single", 0)),
        ("selective", "2", ("full", "every", 2)),
        ("selective", "1", ("full", "single", 0)),
        ("full", "op", ("full", "single", 0)),
        ("none", "2", ("none", "single", 0)),
    ],
)
def test_layers_of_torchtitan(mode: str, option: str, found: tuple[str, str, int]) -> None:
    text = f"{TORCHTITAN}mode = '{mode}'\nselective_ac_option = '{option}'\n"
    assert layers(read(text, "job.toml", "torchtitan")) == found


def test_options_of_torchtitan_that_are_none() -> None:
    with pytest.raises(FormatError, match="selective_ac_option 'layer': should be a whole number"):
        read(f"{TORCHTITAN}mode = 'selective'\nselective_ac_option = 'layer'\n", "job.toml")


QKV, INPUT = 10240, 8192  # numbers of one token and layer of Llama 2 70B
WIDE = 2 * 28672


@pytest.mark.parametrize(
    ("policy", "words", "share"),
    [
        ("full", "", 0.0),
        ("minimal_with_context",
         "save_qkv_proj save_context save_out_proj save_mlpwi save_mlpwo", 0.0),
        ("save_dot_except_mlp", "save_qkv_proj save_out_proj", 0.0),
        ("qkv_proj_offloaded", "save_qkv_proj", QKV / (QKV + INPUT)),
        ("minimal_offloaded", "save_qkv_proj save_out_proj save_mlpwi save_mlpwo",
         (QKV + 8192 + WIDE) / (QKV + 8192 + WIDE + INPUT)),
        ("custom\ndecoder_layer_input: offload", "", 1.0),
        ("custom\nmlpwi_0: device\nmlpwi_1: device\nout_proj: offload",
         "save_out_proj save_mlpwi", 8192 / (8192 + WIDE + INPUT)),
    ],
)  # fmt: skip
def test_policies_of_maxtext(policy: str, words: str, share: float) -> None:
    launch = read(f"{MAXTEXT}remat_policy: {policy}\n", "x.yml")
    assert launch.strategy["recompute"] == ("selective" if words else "full")
    if words:
        assert launch.framework.selective_recompute == words
    assert launch.strategy.get("offload_activations", 0.0) == pytest.approx(share, rel=1e-12)


def test_tensors_of_maxtext_lie_somewhere() -> None:
    with pytest.raises(FormatError, match="'host': should be one of remat, device"):
        read(f"{MAXTEXT}remat_policy: custom\ncontext: host\n", "x.yml")


@pytest.mark.parametrize(
    ("keys", "level", "words"),
    [
        ("recompute_layer: true", "full", ""),
        ("moe_layer_recompute: true", "selective", "moe"),
        ("recompute_layer: true\n  moe_layer_recompute: true", "full", ""),
        ("recompute_layer: false", "none", ""),
    ],
)
def test_layers_of_nanotron(keys: str, level: str, words: str) -> None:
    text = NANOTRON.replace("  pp: 1\n", f"  pp: 1\n  {keys}\n")
    launch = read(text, "x.yaml", "nanotron")
    assert launch.strategy["recompute"] == level
    if words:
        assert launch.framework.selective_recompute == words
