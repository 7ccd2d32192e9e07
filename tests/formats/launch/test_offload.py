"""What launch files leave to the host, in each software's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.formats.launch.offload import Switch, read_offload
from perfmodel.formats.launch.settings import Entry, Settings
from perfmodel.formats.launch.software import format_launch, parse_launch
from tests.formats.launch.launches import one_launch

SWITCH = Switch("cpu", ("offload_optimizer",), "fraction")


def read(**keys):
    return read_offload(Settings("file", {key: Entry(it, 3) for key, it in keys.items()}), [SWITCH])


def test_a_switch_leaves_all_or_a_share():
    assert read() == {}
    assert read(cpu=False, fraction=0.5) == {}
    assert read(cpu="none") == {}
    assert read(cpu=True) == {"offload_optimizer": 1.0}
    assert read(cpu="cpu", fraction=0.5) == {"offload_optimizer": 0.5}


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
            "python pretrain_gpt.py --bf16 --tensor-model-parallel-size 2 --num-layers 4 "
            "--hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 "
            "--global-batch-size 8 "
            "--ffn-hidden-size 2048 --vocab-size 32000 --optimizer-cpu-offload "
            "--optimizer-offload-fraction 0.5 --max-position-embeddings 1024",
            {"offload_optimizer": 0.5},
        ),
    ],
)
def test_software_says_what_it_offloads(name, text, expected):
    _, launch = parse_launch(text, "x", name)
    for field, share in expected.items():
        assert launch.strategy[field] == share


def test_files_are_not_written_with_what_they_cannot_say():
    launch = one_launch("llama-3-8b", "megatron", devices=8, global_batch_size=8)
    offloaded = replace(launch, strategy={**launch.strategy, "offload_activations": 0.5})
    with pytest.raises(StrategyError, match=r"offload_activations 0\.5: offloading is read"):
        format_launch("megatron", offloaded)
