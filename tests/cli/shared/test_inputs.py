"""From what was typed to hardware, software and what was assumed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfmodel.analysis.single import one_strategy
from perfmodel.base.errors import StrategyError
from perfmodel.cli.shared.inputs import (
    assumed,
    assumed_text,
    load_rows,
    load_software,
    of_hardware,
    of_software,
)
from perfmodel.model.presets import load_model
from tests.cli.running import assert_one_line, run

KERNEL = ("--m", "16", "--n", "16", "--k", "16")
SETTINGS = {"software.dropout": True, "device.tdp": 500.0}


def test_settings_part_into_hardware_and_software() -> None:
    assert of_software(SETTINGS) == {"dropout": True}
    assert of_hardware(SETTINGS) == {"device.tdp": 500.0}
    assert load_software("fsdp", SETTINGS).name == "fsdp[dropout=true]"
    assert load_software(None, {}).name == "megatron"
    with pytest.raises(StrategyError, match="no training software"):
        load_rows(["dgx-h100"], SETTINGS, {})


def test_only_what_matters_was_assumed() -> None:
    run = {"sequence_length": 4096, "global_batch_size": 64}
    model = load_model("llama-3.1-8b")
    single = one_strategy(model, 1, run)
    found = assumed("megatron", single, run)
    assert found == {"precision": "bf16", "micro-batch": 1, "recompute": "none"}
    wide = run | {"tensor_parallel": 2, "context_parallel": 2, "precision": "fp8"}
    found = assumed(None, one_strategy(model, 16, wide), wide, tried=["recompute"])
    assert found == {
        "framework": "megatron",
        "sp": True,
        "cp-kind": "ring",
        "zero": 1,
        "micro-batch": 1,
    }
    text = "assumed: --framework megatron --sp true --cp-kind ring --zero 1 --micro-batch 1"
    assert assumed_text(found) == text
    assert assumed_text({}) == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "--set device.memory.bandwidth=3350",
            "device.memory.bandwidth=3350 is 1e+09 times below the profile's 3.352e+12 B/s; values "
            "are in SI units",
        ),
        ("--set device.boost_clock=1.8", "device.boost_clock=1.8 is 1e+09 times below"),
        ("--sweep device.memory.bandwidth=25:400:4", "device.memory.bandwidth=25 is 1e+11"),
    ],
)
def test_a_value_in_another_unit_gets_a_remark(words: str, text: str) -> None:
    result = run("kernel", "gemm", "--hardware", "dgx-h100", *KERNEL, *words.split())
    assert result.exit_code == 0
    assert text in result.stderr
    assert (
        run("-q", "kernel", "gemm", "--hardware", "dgx-h100", *KERNEL, *words.split()).stderr == ""
    )


@pytest.mark.parametrize(
    "words",
    [
        "--set device.memory.bandwidth=4.8e12",
        "--set device.boost_clock=1.2e9",
        "--sweep device.compute_units=66,132",
    ],
)
def test_a_plausible_value_gets_none(words: str) -> None:
    result = run("kernel", "gemm", "--hardware", "dgx-h100", *KERNEL, *words.split())
    assert result.stderr == ""


STEP = "--model gpt2 --hardware dgx-h100 --devices 8 --seq-len 1024 --global-batch 64"
SERVED = "--model gpt2 --hardware dgx-h100 --input-length 100 --output-length 10"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"project {STEP} --set device.peak_flops.fp8=1e15", "device.peak_flops.bf16 would"),
        (f"project {STEP} --set system.price=3", "it counts for costs alone"),
        (f"sweep {STEP} --sweep system.host.nvme_read=1e9,2e9", "'system.host.nvme_read' cannot"),
        (f"search {STEP} --sweep system.host.nvme_read=1e9,2e9", "'system.host.nvme_read' cannot"),
        (f"explain {STEP} --set system.network.1.latency=1e-6", "'system.network.1.latency' can"),
        (f"launch {STEP} --for megatron --set device.tdp=500", "system.devices_per_node"),
        (f"serve {SERVED} --concurrency 4 --set device.peak_flops.fp64=1e13", "bf16 would"),
        (f"size {SERVED} --rate 1 --ttft 9 --set device.peak_flops.fp64=1e13", "bf16 would"),
        ("kernel gemm --hardware dgx-h100 --m 64 --n 64 --k 64 --set device.tdp=500", "device.tdp"),
        (
            "collective all_reduce --hardware dgx-h100 --members 8 --size 1MiB "
            "--set system.network.1.bandwidth=1e9",
            "'system.network.1.bandwidth' cannot change any result of this request",
        ),
        ("topology show --hardware dgx-h100 --devices 16 --gpu-clock 1GHz", "device.boost_clock"),
    ],
)
def test_a_number_that_cannot_act_is_refused_by_every_verb(words: str, said: str) -> None:
    assert_one_line(run(*shlex.split(words)), "cannot change any result of this request", said)


@pytest.mark.parametrize("words", ["--tokens 1e12", "-o FILE"])
def test_a_price_acts_where_costs_are_counted_or_can_be_later(words: str, tmp_path: Path) -> None:
    words = words.replace("FILE", str(tmp_path / "found.nc"))
    result = run(*shlex.split(f"sweep {STEP} --tp 1 --set system.price=3 {words}"))
    assert result.exit_code == 0, result.stderr


def test_a_number_acts_where_it_does_on_one_of_several_profiles() -> None:
    several = STEP.replace("dgx-h100", "dgx-h100,dgx-a100")
    result = run(*shlex.split(f"sweep {several} --tp 1 --set device.tdp=100"))
    assert result.exit_code == 0, result.stderr
