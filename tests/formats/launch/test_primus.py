"""Primus' experiments: as its examples are written, round trips, bad input."""

from __future__ import annotations

import pytest
import yaml

from perfmodel.base.errors import FormatError
from perfmodel.formats.launch.software import format_launch, parse_launch, recognise
from tests.formats.launch.launches import one_launch, round_trips

EXPERIMENT = """\
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:mixtral_8x7B}.yaml
    overrides:
      # torchrun --nnodes 2 --nproc-per-node 8
      micro_batch_size: 4
      global_batch_size: 640
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: ${PRIMUS_PP:2}
      expert_model_parallel_size: ${PRIMUS_EP:8}
      overlap_grad_reduce: true
      gradient_accumulation_fusion: false
      recompute_granularity: full # full, selective
      recompute_method: block
      recompute_num_layers: 16
      lr_decay_iters: null
      enable_primus_turbo: true
      use_turbo_attention: true
      use_turbo_grouped_mlp: true
      turbo_sync_free_moe_stage: 2
      fp8: hybrid
      fp8_recipe: tensorwise
"""


def test_an_experiment_with_variables() -> None:
    name, launch = parse_launch(EXPERIMENT, "experiment.yaml")
    assert name == "primus"
    assert launch.model is not None
    assert launch.model.name == "mixtral-8x7b"
    assert launch.devices == 16
    asked = {
        "pipeline_parallel": 2,
        "expert_parallel": 8,
        "micro_batch_size": 4,
        "sequence_length": 4096,
        "zero_stage": 1,  # pre_trainer.yaml: use_distributed_optimizer
        "recompute": "full",
        "precision": "fp8",
    }
    assert {key: launch[key] for key in asked} == asked
    software = launch.framework
    assert software.name.startswith("primus-turbo")
    assert (software.scaling, software.gradient_accumulation) == ("current", "separate")
    assert software.grouped_gemm
    assert not software.expert_counts_on_host
    assert not software.overlap_parameter_gather  # trainer_base.yaml: false


def test_without_turbo_it_is_the_stock_image() -> None:
    text = EXPERIMENT.replace("enable_primus_turbo: true", "enable_primus_turbo: false")
    assert parse_launch(text, "x.yaml")[1].framework.name.startswith("primus[")


def test_what_is_written_is_an_experiment() -> None:
    launch = one_launch(
        "llama-3.1-8b",
        "primus",
        devices=8,
        zero_stage=0,
        global_batch_size=64,
        sequence_length=8192,
    )
    text = format_launch("primus", launch)
    assert recognise(text) == "primus"
    trainer = yaml.safe_load(text)["modules"]["pre_trainer"]
    assert (trainer["framework"], trainer["model"]) == ("megatron", "llama-3.1-8b.yaml")
    overrides = trainer["overrides"]
    assert overrides["use_distributed_optimizer"] is False
    assert overrides["gradient_accumulation_fusion"] is False
    assert overrides["enable_primus_turbo"] is False


@pytest.mark.parametrize("framework", ["primus", "primus-turbo"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt3-175b", "deepseek-v3"])
def test_what_is_written_is_read(name: str, framework: str) -> None:
    done, refused = round_trips("primus", framework, name, 40)
    assert done > 8
    assert all(text.startswith("Primus cannot do ") for text in refused)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("micro_batch_size: 4", "micro_batch_size: four", ":9: micro_batch_size 'four': should be"),
        ("framework: megatron", "framework: torchtitan", ":4: modules.pre_trainer.framework"),
        ("${PRIMUS_TP:1}", "${PRIMUS_TP}", "the file does not say what the variable is"),
        ("  pre_trainer:", "  post_trainer:", "no module 'modules.pre_trainer'"),
        ("turbo_sync_free_moe_stage: 2", "turbo_sync_free_moe_stage: -1", ":24: turbo_sync_free"),
        ("overlap_grad_reduce: true", "micro_batch_size: 2", "is given twice"),
    ],
)
def test_bad_values_are_named_with_their_line(old: str, new: str, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(EXPERIMENT.replace(old, new), "x.yaml", "primus")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_nobody_knows_is_said() -> None:
    text = EXPERIMENT.replace("mixtral_8x7B", "ours_7B")
    _, launch = parse_launch(text, "x.yaml")
    assert launch.model is None
    assert any("'ours_7B' is not known by name" in remark for remark in launch.remarks)
