"""Primus' experiments: files as they are in the wild, round trips, refusals, bad input."""

from __future__ import annotations

import pytest
import yaml

from perfmodel.base.errors import FormatError
from perfmodel.launch.software import format_launch, parse_launch, read_launch
from tests.data import launch_sample
from tests.launch.launches import one_launch, round_trips

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


def experiment(overrides: str, model: str = "llama3.1_8B", framework: str = "megatron") -> str:
    """Return an experiment with overrides, each on a line of its own."""
    lines = "".join(f"      {line}\n" for line in overrides.splitlines())
    return (
        f"modules:\n  pre_trainer:\n    framework: {framework}\n    config: pre_trainer.yaml\n"
        f"    model: {model}.yaml\n    overrides:\n{lines}"
    )


def test_an_experiment_with_variables_and_turbo() -> None:
    name, launch = read_launch(launch_sample("primus.yaml"))
    assert name == "primus"
    assert launch.devices == 64
    assert launch.model is not None
    assert launch.model.name == "deepseek-v2-lite"
    assert (launch["expert_parallel"], launch["micro_batch_size"]) == (8, 4)
    assert launch["zero_stage"] == 1
    assert launch.framework.name.partition("[")[0] == "primus-turbo"
    assert launch.framework.grouped_gemm
    assert launch.framework.overlap_gradient_reduce
    assert len(launch.remarks) == 1


def test_defaults_are_those_of_primus() -> None:
    _, launch = parse_launch(
        experiment("tensor_model_parallel_size: 2"), "x.yaml", typed={"devices": 8}
    )
    assert launch.framework.name.partition("[")[0] == "primus"
    assert (launch["micro_batch_size"], launch["global_batch_size"]) == (2, 16)
    assert (launch["sequence_length"], launch["sequence_parallel"]) == (1024, True)
    assert launch["data_parallel"] == 4


def test_sizes_in_the_overrides_win() -> None:
    text = experiment(
        "num_layers: 4\nmtp_num_layers: null\nmoe_layer_freq: [0,1,1,1]", "deepseek_v3"
    )
    _, launch = parse_launch(text, "x.yaml")
    assert launch.model is not None
    assert [layer.mlp.kind for layer in launch.model.layers] == ["dense", "moe", "moe", "moe"]
    _, launch = parse_launch(experiment("num_layers: 5", "deepseek_v3"), "x.yaml")
    assert launch.model is not None
    assert [layer.mlp.kind for layer in launch.model.layers].count("moe") == 2


def test_turbo_needs_its_main_switch() -> None:
    _, launch = parse_launch(experiment("use_turbo_attention: true"), "x.yaml")
    assert launch.framework.best_attention_is_plain
    assert "use_turbo_attention: off, for enable_primus_turbo is not on" in launch.remarks


@pytest.mark.parametrize(
    ("framework", "overrides", "model", "expected"),
    [
        (
            "torchtitan",
            "training: {local_batch_size: 4}\nparallelism: {tensor_parallel_degree: 2}",
            "llama3.1_8B-fp8",
            {"micro_batch_size": 4, "tensor_parallel": 2, "precision": "fp8", "data_parallel": 8},
        ),
        (
            "maxtext",
            "ici_fsdp_parallelism: 8\ndcn_data_parallelism: -1\nper_device_batch_size: 7",
            "llama3_70B",
            {"micro_batch_size": 7, "shard_group": 8, "data_parallel": 16},
        ),
    ],
)
def test_other_frameworks_have_their_own_keys(
    framework: str, overrides: str, model: str, expected: dict[str, object]
) -> None:
    name, launch = parse_launch(
        experiment(overrides, model, framework), "x.yaml", typed={"devices": 16}
    )
    assert name == "primus"
    assert launch.framework.name.partition("[")[0] == framework
    assert launch.model is not None
    assert {key: launch[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("model", "framework", "least"),
    [
        ("llama-3.1-8b", "primus", 10),
        ("deepseek-v3", "primus-turbo", 1),
        ("gpt3-175b", "primus", 10),
    ],
)
def test_what_is_written_is_read(model: str, framework: str, least: int) -> None:
    done, refused = round_trips("primus", framework, model, 30)
    assert done >= least
    assert all(text.startswith("Primus cannot do ") for text in refused)


def test_turbo_is_written() -> None:
    launch = one_launch(
        "mixtral-8x7b", "primus-turbo", devices=8, global_batch_size=8, sequence_length=4096
    )
    found = yaml.safe_load(format_launch("primus", launch))["modules"]["pre_trainer"]
    assert found["model"] == "mixtral_8x7B_v0.1.yaml"
    assert "num_layers" not in found["overrides"]
    wanted = ("enable_primus_turbo", "use_turbo_attention", "use_turbo_grouped_mlp")
    assert all(found["overrides"][key] is True for key in wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (experiment("tensor_model_paralel_size: 2"), "x.yaml:7: unknown key tensor_model_paralel_"),
        (
            experiment("micro_batch_size: two"),
            "x.yaml:7: micro_batch_size 'two': should be a whole",
        ),
        (
            experiment("tensor_model_parallel_size: ${TP}"),
            "the file does not say what the variable",
        ),
        (
            experiment("tensor_model_parallel_size: 3"),
            "x.yaml:7: tensor_model_parallel_size 3, 8 devices: should be a multiple of",
        ),
        (
            experiment("micro_batch_size: 3\nglobal_batch_size: 64"),
            "x.yaml:8: global_batch_size 64, micro_batch_size 3 (line 7), 8 replicas: the batch",
        ),
        (experiment("", framework="diffusers"), "x.yaml:3: modules.pre_trainer.framework 'diffu"),
        (
            "modules:\n  post_trainer:\n    framework: megatron\n    overrides: {}\n",
            "x.yaml:3: no modules.pre_trainer.framework; only pre-training is projected",
        ),
    ],
)
def test_bad_input_is_one_line_with_the_key(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_launch(text, "x.yaml", typed={"devices": 8})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("micro_batch_size: 4", "micro_batch_size: four", ":9: micro_batch_size 'four': should be"),
        ("${PRIMUS_TP:1}", "${PRIMUS_TP}", "the file does not say what the variable is"),
        ("  pre_trainer:", "  post_trainer:", "no modules.pre_trainer.framework"),
        (
            "turbo_sync_free_moe_stage: 2",
            "turbo_sync_free_moe_stage: -1",
            ":24: turbo_sync_free_moe_stage",
        ),
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
    assert any("'ours_7B' is not known here" in remark for remark in launch.remarks)
