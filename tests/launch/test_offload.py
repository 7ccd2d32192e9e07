"""What launch files leave to the host, in each software's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.launch.offload import Switch, read_offload
from perfmodel.launch.settings import Entry, Settings
from perfmodel.launch.software import format_launch, parse_launch
from tests.launch.launches import one_launch

MEGATRON = (
    "python pretrain_gpt.py --bf16 --tensor-model-parallel-size 2 --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --global-batch-size 8 "
    "--ffn-hidden-size 2048 --vocab-size 32000 --max-position-embeddings 1024"
)
SWITCH = Switch("cpu", ("offload_optimizer",), "fraction")


def read(**keys):
    return read_offload(Settings("file", {key: Entry(it, 3) for key, it in keys.items()}), [SWITCH])


def test_a_switch_leaves_all_or_a_share():
    assert read() == {}
    assert read(cpu=False, fraction=0.5) == {}
    assert read(cpu="none") == {}
    assert read(cpu=True) == {"offload_optimizer": 1.0}
    assert read(cpu="cpu", fraction=0.5) == {"offload_optimizer": 0.5}
    assert read(cpu="nvme") == {"offload_optimizer": 1.0, "offload_optimizer_to": "nvme"}


@pytest.mark.parametrize("share", [1.5, -1, "half"])
def test_a_share_that_is_none_names_the_line(share):
    with pytest.raises(FormatError, match=r"file:3: fraction"):
        read(cpu=True, fraction=share)


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
            f"{MEGATRON} --optimizer-cpu-offload --optimizer-offload-fraction 0.5",
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
            f"{MEGATRON} --fine-grained-activation-offloading --offload-modules attn_norm moe_act",
            {"offload_activations": 1.0, "offload_modules": "attn_norm moe_act"},
        ),
        ("megatron", f"{MEGATRON} --cpu-offloading-num-layers 3", {"offload_activations": 0.75}),
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
        parse_launch(f"{MEGATRON} {more}", "x", "megatron")


def test_files_are_not_written_with_what_they_cannot_say():
    launch = one_launch("llama-3-8b", "megatron", devices=8, global_batch_size=8)
    offloaded = replace(launch, strategy={**launch.strategy, "offload_activations": 0.5})
    with pytest.raises(StrategyError, match=r"offload_activations 0\.5: offloading is read"):
        format_launch("megatron", offloaded)
