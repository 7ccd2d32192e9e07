"""The end of reading: replicas, shard sets, the framework that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.files import Entry
from perfmodel.launch.reading import finished, nearest_framework, read_offload, with_replicas
from perfmodel.launch.settings import Settings
from perfmodel.launch.software import format_launch, parse_launch
from perfmodel.launch.table import Switch, load_program
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


SMALL = (
    "python pretrain_gpt.py --bf16 --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --global-batch-size 8 "
    "--ffn-hidden-size 2048 --vocab-size 32000 --max-position-embeddings 1024"
)
SWITCH = Switch("cpu", ("offload_optimizer",), "fraction")


def offloaded(**keys):
    return read_offload(Settings("file", {key: Entry(it, 3) for key, it in keys.items()}), [SWITCH])


def test_a_switch_leaves_all_or_a_share():
    assert offloaded() == {}
    assert offloaded(cpu=False, fraction=0.5) == {}
    assert offloaded(cpu="none") == {}
    assert offloaded(cpu=True) == {"offload_optimizer": 1.0}
    assert offloaded(cpu="cpu", fraction=0.5) == {"offload_optimizer": 0.5}
    assert offloaded(cpu="nvme") == {"offload_optimizer": 1.0, "offload_optimizer_to": "nvme"}


@pytest.mark.parametrize("share", [1.5, -1, "half"])
def test_a_share_that_is_none_names_the_line(share):
    with pytest.raises(FormatError, match=r"file:3: fraction"):
        offloaded(cpu=True, fraction=share)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "torchtitan",
            "[training]\nenable_cpu_offload = true\nseq_len = 4096\n[parallelism]\n",
            {"offload_parameters": 1.0, "offload_optimizer": 1.0},
        ),
        (
            "megatron-bridge",
            "model:\n  tensor_model_parallel_size: 2\noptimizer:\n"
            "  optimizer_cpu_offload: true\n  optimizer_offload_fraction: 0.25\n",
            {"offload_optimizer": 0.25},
        ),
        (
            "megatron",
            f"{SMALL} --optimizer-cpu-offload --optimizer-offload-fraction 0.5",
            {"offload_optimizer": 0.5},
        ),
        (
            "deepspeed",
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}, '
            '"offload_optimizer": {"device": "nvme", "ratio": 0.5, "pipeline_read": true}}}',
            {
                "offload_optimizer": 0.5,
                "offload_optimizer_to": "nvme",
                "offload_parameters": 1.0,
                "offload_parameters_to": "nvme",
                "overlap_nvme": True,
            },
        ),
        (
            "megatron-bridge",
            "model:\n  tensor_model_parallel_size: 2\n  fine_grained_activation_offloading: true\n"
            "  offload_modules: [core_attn, expert_fc1]\n",
            {"offload_activations": 1.0, "offload_modules": "core_attn expert_fc1"},
        ),
        (
            "megatron",
            f"{SMALL} --fine-grained-activation-offloading --offload-modules attn_norm moe_act",
            {"offload_activations": 1.0, "offload_modules": "attn_norm moe_act"},
        ),
        ("megatron", f"{SMALL} --cpu-offloading-num-layers 3", {"offload_activations": 0.75}),
    ],
)
def test_software_says_what_it_offloads(name, text, expected):
    _, launch = parse_launch(text, "x", name)
    for field, share in expected.items():
        found = launch.strategy.get(field, getattr(launch.framework, field, None))
        assert found == share


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "--fine-grained-activation-offloading --offload-modules core_atn",
            r"--offload-modules 'core_atn': should be modules of attn_norm, qkv_linear, core_attn",
        ),
        ("--cpu-offloading-num-layers 5", r"'5': should be at most the 4 layers of the model"),
    ],
)
def test_what_cannot_be_offloaded_is_one_line(more, message):
    with pytest.raises(FormatError, match=message):
        parse_launch(f"{SMALL} {more}", "x", "megatron")


def test_files_are_not_written_with_what_they_cannot_say():
    launch = one_launch("llama-3-8b", "megatron", devices=8, global_batch_size=8)
    offloaded = replace(launch, strategy={**launch.strategy, "offload_activations": 0.5})
    with pytest.raises(StrategyError, match=r"offload_activations 0\.5: offloading is read"):
        format_launch("megatron", offloaded)


DEGREES = {"tensor_parallel": 4, "pipeline_parallel": 2}


def sets(count: int) -> Settings:
    return Settings("file", {"instances": Entry(count, 3)})


def test_replicas_are_what_the_degrees_leave() -> None:
    assert with_replicas(sets(1), DEGREES, 64)["data_parallel"] == 8
    assert "shard_group" not in with_replicas(sets(1), DEGREES, 64)
    assert with_replicas(sets(2), DEGREES, 64, "instances")["shard_group"] == 4


def test_shard_sets_divide_the_ranks() -> None:
    with pytest.raises(FormatError, match=r"file:3: instances '3': should be a divisor of .* = 8"):
        with_replicas(sets(3), DEGREES, 64, "instances")


def test_without_a_number_of_devices_nothing_is_derived() -> None:
    settings = sets(2)
    assert with_replicas(settings, DEGREES, 0, "instances") == DEGREES
    assert "--shard-group says how many" in settings.remarks[0]


def test_devices_that_the_degrees_do_not_divide_are_refused() -> None:
    settings = sets(2)
    settings.fields["tensor_parallel"] = "instances"
    with pytest.raises(FormatError, match="file:3: instances 2, 12 devices: should be a multiple"):
        with_replicas(settings, DEGREES, 12, "instances")


def test_the_framework_that_needs_fewest_changes() -> None:
    presets = ("megatron", "megatron-tuned", "megatron-deepep")
    assert nearest_framework(presets, {"scaling": "delayed"}).name == "megatron"
    tuned = {"scaling": "current", "gradient_reduce_bytes": 2.0}
    assert nearest_framework(presets, tuned).name == "megatron-tuned"
    changed = nearest_framework(presets, {**tuned, "overlap_gradient_reduce": False})
    assert changed.name == "megatron-tuned[overlap_gradient_reduce=False]".replace("False", "false")


def test_what_is_watched_is_remarked_once() -> None:
    settings = Settings("file", {"offload": Entry(True), "rate": Entry(0.1), "off": Entry(False)})
    watched = {"offload": "not modelled", "off": "not modelled"}
    launch = finished(
        settings,
        {"tensor_parallel": 1},
        {},
        None,
        replace(load_program("megatron"), software=(), watched=watched),
        devices=0,
    )
    assert launch.remarks == ("offload: not modelled",)
    assert "data_parallel" not in launch.strategy
