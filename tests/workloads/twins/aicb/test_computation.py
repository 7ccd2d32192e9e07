"""The computation file that AIOB would measure, predicted."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.compute.attention import attention_times
from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.workloads.formats.aiob import format_aiob, parse_aiob
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.computation import (
    CALL_LATENCY,
    Product,
    parameter_pass_time,
    predicted_computation,
    predicted_regions,
    timed_regions,
)
from perfmodel.workloads.twins.aicb.training import training_times

GPT_7B = AicbArguments(
    world_size=512,
    tensor_model_parallel_size=2,
    global_batch=2048,
    num_layers=36,
    hidden_size=4096,
    num_attention_heads=32,
    seq_length=1024,
    vocab_size=50257,
    swiglu=True,
    use_flash_attn=True,
    aiob_enable=True,
)
MIXTRAL = dataclasses.replace(
    GPT_7B,
    enable_sequence_parallel=True,
    moe_enable=True,
    num_experts=8,
    moe_router_topk=2,
    expert_model_parallel_size=4,
    ffn_hidden_size=14336,
)
DEEPSEEK = dataclasses.replace(
    MIXTRAL, frame="DeepSeek", ffn_hidden_size=2048, num_experts=64, moe_router_topk=8
)
SECTIONS = [
    "Emb",
    "layernorm",
    "atten_qkv",
    "atten_flash",
    "atten_linear",
    "layernorm2",
    "mlp_linear_1",
    "mlp_gelu",
    "mlp_linear_2",
    "layernorm_post",
    "logit_time",
    "param_time",
]


@pytest.fixture(scope="module")
def a100():
    return load_hardware("dgx-a100")


def times(arguments, hardware, **options):
    return predicted_regions(arguments, hardware, **options)


def as_aicb_reads(text):
    """Sections and averages by the two patterns with which AICB reads (utils.py:373-412)."""
    found, section = {}, None
    for line in text.splitlines():
        if header := re.match(r"^(\w+):", line):
            section = header.group(1)
        if average := re.search(r"time_gpu_avg:\s+(\d+(\.\d+)?)", line):
            found[section] = float(average.group(1))
    return found


@pytest.mark.parametrize(
    ("arguments", "device"),
    [(GPT_7B, "dgx-a100"), (GPT_7B, "mi300x-server"), (GPT_7B, "tpu-v5p-pod"),
     (MIXTRAL, "dgx-h200"), (DEEPSEEK, "dgx-h100")],
)  # fmt: skip
def test_aicb_reads_what_is_written(arguments, device):
    """Every section, to the last digit; none twice, none that its patterns miss."""
    predicted = predicted_computation(arguments, load_hardware(device))
    read = as_aicb_reads(format_aiob(predicted))
    assert read == {name: time.average for name, time in predicted.sections.items()}
    assert all(value > 0 for value in read.values())
    # What the workload then holds: attention and MLP add up over their sections [ns].
    times = training_times(predicted)
    attention = sum(v for k, v in read.items() if "atten" in k or k == "layernorm")
    mlp = sum(v for k, v in read.items() if "mlp" in k or k == "layernorm2")
    assert times["attention_forward"] == round(1000 * attention)
    assert times["mlp_forward"] == round(1000 * mlp)
    assert times["Emb"] == round(1000 * read["Emb"])
    assert times["grad_forward"] == times["grad_backward"] == round(1000 * read["param_time"])


@pytest.mark.parametrize(
    ("changes", "kernels"),
    [
        ({}, 2),  # SwiGLU: a SiLU and a product
        ({"add_bias_linear": True}, 3),
        ({"swiglu": False}, 1),
        ({"swiglu": False, "squared_relu": True}, 2),
        ({"openai_gelu": True}, 9),  # comes before SwiGLU
        ({"onnx_safe": True, "add_bias_linear": True}, 7),
    ],
)
def test_activations_are_the_calls_that_aicb_makes(changes, kernels):
    """AiobMegatron.py, MegatronMlp; utils.py, gelu_impl and erf_gelu."""
    changed = dataclasses.replace(GPT_7B, ffn_hidden_size=10880, **changes)
    activation = timed_regions(changed)["mlp_gelu"].kernels
    assert len(activation) == kernels
    tokens, width = 1024, 10880 // 2
    wide = 2 * width if changed.swiglu else width
    if changed.add_bias_linear:
        assert float(activation[0].bytes_written) == 2.0 * tokens * wide
    of_last = width if changed.swiglu and not (changed.openai_gelu or changed.onnx_safe) else wide
    assert float(activation[-1].bytes_written) == 2.0 * tokens * of_last


def test_experts_in_one_kernel_have_no_bias():
    """GroupedMLP adds none; experts one after another do."""
    with_bias = dataclasses.replace(MIXTRAL, add_bias_linear=True)
    for grouped, kernels in ((False, 3), (True, 2)):
        changed = dataclasses.replace(with_bias, moe_grouped_gemm=grouped)
        assert len(timed_regions(changed)["mlp_gelu"].kernels) == kernels


def test_sections_are_those_that_aicb_ships(a100):
    found = predicted_computation(GPT_7B, a100)
    assert list(found.sections) == SECTIONS  # workload/aiob_inputs/Example.txt
    assert found.train_iter == 1
    assert parse_aiob(format_aiob(found)) == found


@pytest.mark.parametrize("arguments", [MIXTRAL, dataclasses.replace(GPT_7B, use_flash_attn=False)])
def test_files_of_other_models_are_read_back(arguments, a100):
    found = predicted_computation(arguments, a100)
    assert parse_aiob(format_aiob(found)) == found


def test_products_are_the_shapes_of_one_tensor_parallel_rank():
    regions = timed_regions(GPT_7B)
    assert regions["atten_qkv"].kernels == (Product(1024, 3 * 4096 // 2, 4096),)
    assert regions["atten_linear"].kernels[-1] == Product(1024, 4096, 2048)
    # 8/3 h in whole 64s, gate and up together
    assert regions["mlp_linear_1"].kernels == (Product(1024, 2 * 10880 // 2, 4096),)
    assert regions["mlp_linear_2"].kernels == (Product(1024, 4096, 5440),)
    assert regions["logit_time"].kernels == (Product(1024, 50432 // 2, 4096),)


def test_regions_take_the_kernels_models_times_and_the_hosts(a100):
    alone = times(GPT_7B, a100, call_latency=0.0)
    product = gemm_times(a100, "bf16", 1024, 6144, 4096).time[0]
    flash = attention_times(a100, "bf16", 1, 1024, 1024, 16, 16, 128, 128).time
    assert alone["atten_qkv"] == pytest.approx(product, rel=1e-12)
    assert alone["atten_flash"] == pytest.approx(float(np.ravel(flash)[0]), rel=1e-12)
    with_host = times(GPT_7B, a100)
    assert with_host["atten_qkv"] == pytest.approx(product + CALL_LATENCY, rel=1e-12)
    # Two kernels: the host issues the second while the first runs.
    assert with_host["mlp_gelu"] <= alone["mlp_gelu"] + 2 * CALL_LATENCY


def test_times_follow_sequence_hidden_size_and_device(a100):
    """The figures that AICB's fixed file keeps for all of its study's executions."""
    base = times(GPT_7B, a100)
    long = times(dataclasses.replace(GPT_7B, seq_length=4096), a100)
    wide = times(dataclasses.replace(GPT_7B, hidden_size=6144, num_attention_heads=48), a100)
    newer = times(GPT_7B, load_hardware("dgx-h100"))
    for region in ("atten_qkv", "mlp_linear_1", "mlp_linear_2", "logit_time"):
        assert 2.5 * base[region] < long[region] < 4.5 * base[region]
        assert 1.3 * base[region] < wide[region]
        assert newer[region] < base[region]
    assert long["atten_flash"] > 4 * base["atten_flash"]  # quadratic


def test_sequence_parallelism_divides_the_norms_only(a100):
    whole = times(GPT_7B, a100, call_latency=0.0)
    split = times(
        dataclasses.replace(GPT_7B, enable_sequence_parallel=True), a100, call_latency=0.0
    )
    assert split["layernorm"] < whole["layernorm"]
    assert split["atten_qkv"] == whole["atten_qkv"]


def test_experts_one_after_another_or_in_one_kernel(a100):
    regions = timed_regions(MIXTRAL)
    assert regions["mlp_linear_1"].repeats == 2  # 8 experts on 4 ranks
    assert regions["mlp_linear_1"].kernels[0].m == 1024 * 2 * 4 // 8
    grouped = timed_regions(dataclasses.replace(MIXTRAL, moe_grouped_gemm=True))
    kernel = grouped["mlp_linear_1"].kernels[0]
    assert (kernel.groups, kernel.rows) == (2, 1024)
    one = times(MIXTRAL, a100)["mlp_linear_1"]
    together = times(dataclasses.replace(MIXTRAL, moe_grouped_gemm=True), a100)["mlp_linear_1"]
    assert 0.5 * one < together < 1.5 * one


def test_deepseek_has_its_own_sections_and_needs_fp8(a100):
    found = predicted_computation(DEEPSEEK, load_hardware("dgx-h100"))
    assert [name for name in found.sections if name.startswith("attention")] == [
        "attention_linear_q_lora",
        "attention_q_column",
        "attention_linear_kv_lora",
        "attention_kv_column",
        "attention_o_row",
    ]
    with pytest.raises(HardwareError, match="fp8"):
        predicted_computation(DEEPSEEK, a100)


def test_the_pass_over_gradients_is_a_stream_of_eight_bytes_per_element(a100):
    elements = 3_229_614_080  # one shard of gpt_7B at tp 2: AICB's grad_gather / 2
    time = parameter_pass_time(elements, a100)
    # Example.txt measured 16.6 ms at best, presumably for this shape.
    assert time == pytest.approx(16.647e-3, rel=0.12)
    assert time > 8 * elements / a100.device.memory.bandwidth


def test_files_of_aicbs_study_lie_near_the_example_they_used(a100):
    """Example.txt fits gpt_7B, tp 2, 4,096 tokens on an A100: aicb Example.txt, averages."""
    found = times(dataclasses.replace(GPT_7B, seq_length=4096), a100)
    shipped = {"Emb": 799, "atten_qkv": 889, "atten_flash": 512, "atten_linear": 349}
    shipped |= {"mlp_linear_1": 1408, "mlp_linear_2": 742}
    for region, micros in shipped.items():
        assert found[region] * 1e6 == pytest.approx(micros, rel=0.10), region


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 4097}, "no multiple of --tensor_model_parallel_size"),
        ({"num_attention_heads": 30}, "no multiple of --num_attention_heads"),
        ({"dtype": "int4"}, "--dtype=int4"),
        ({"module": "generate_deepspeed_stage3_workload"}, "training workloads"),
    ],
)
def test_what_cannot_be_predicted_is_refused(changes, message, a100):
    with pytest.raises(StrategyError, match=message):
        predicted_computation(dataclasses.replace(GPT_7B, **changes), a100)
