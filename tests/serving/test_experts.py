"""Routed experts of served passes."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_model
from perfmodel.base.routing import Routing
from perfmodel.hwprofiles import load_hardware
from perfmodel.serving.experts import expert_kernel, expert_times
from perfmodel.serving.layouts import LAYOUT_FIELDS, WEIGHT_FORMATS, Layouts
from perfmodel.software.engine import load_engine

TOKENS = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])


def layouts_of(engine: str, *degrees: tuple[int, int, int], weights: str = "stated") -> Layouts:
    """Return layouts of one engine by their (t, a, e)."""
    columns = {name: np.zeros(len(degrees), np.int64) for name in LAYOUT_FIELDS}
    names = ("tensor_parallel", "attention_data_parallel", "expert_parallel")
    for name, values in zip(names, zip(*degrees, strict=True), strict=True):
        columns[name] = np.array(values, np.int64)
    columns["pipeline_parallel"] = np.ones(len(degrees), np.int64)
    columns["weight_precision"][:] = WEIGHT_FORMATS.index(weights)
    return Layouts([load_engine(engine)], columns)


def block_of(model):
    return next(layer.mlp for layer in model.layers if layer.mlp.kind == "moe")


@pytest.fixture(scope="module")
def deepseek():
    return load_model("deepseek-r1")


def test_times_grow_with_tokens_and_one_device_sends_nothing(deepseek, h100):
    layouts = layouts_of("sglang", (1, 1, 1), (8, 1, 1), (8, 1, 8), (1, 8, 8))
    found = expert_times(deepseek, block_of(deepseek), layouts, TOKENS, h100)
    assert found.experts.shape == found.communication.shape == (4, 5)
    assert (np.diff(found.experts, axis=1) > 0.0).all()
    assert (found.communication[0] == 0.0).all()
    assert (found.communication[1:] > 0.0).all()
    np.testing.assert_array_equal(found.communication[1], found.communication[2])


def test_few_tokens_read_few_experts_and_many_read_all(deepseek, h100):
    """A decode pass of one token reads 8 of 256 experts, one of 64 tokens nearly all."""
    layouts = layouts_of("sglang", (8, 1, 1))
    block = block_of(deepseek)
    even = Routing("uniform")
    time = expert_times(deepseek, block, layouts, [1, 64, 128], h100, even).experts[0]
    expert = 3 * deepseek.hidden_size * block.expert_intermediate_size / 8
    active = 256 * (1 - (1 - 8 / 256) ** 64)
    bandwidth = h100.device.memory.bandwidth
    assert time[0] < 8 * expert / bandwidth + 80e-6
    assert active * expert / bandwidth < time[1] < 1.5 * active * expert / bandwidth + 80e-6
    assert time[2] < 1.25 * time[1]


def test_stragglers_wait_for_the_busiest_rank(deepseek, h100):
    """The same weights in all, but some of 8 ranks have more experts with tokens than others."""
    layouts = layouts_of("sglang", (8, 1, 1), (8, 1, 8))
    whole, spread = expert_times(deepseek, block_of(deepseek), layouts, [16], h100).experts[:, 0]
    assert spread > 1.1 * whole
    even = Routing("balanced")
    time = expert_times(deepseek, block_of(deepseek), layouts, TOKENS, h100, even).experts[1]
    drawn = expert_times(deepseek, block_of(deepseek), layouts, TOKENS, h100).experts[1]
    assert (drawn[3:] > time[3:]).all()


def test_narrow_weights_are_read_narrow_where_products_are_wide(h100):
    """gpt-oss stores experts in mxfp4, which Hopper cannot multiply."""
    model = load_model("gpt-oss-120b")
    narrow, wide = (
        expert_times(model, block_of(model), layouts_of("vllm", (1, 1, 1), weights=w), TOKENS, h100)
        for w in ("stated", "bf16")
    )
    assert narrow.experts[0, 2] < 0.45 * wide.experts[0, 2]
    assert narrow.experts[0, -1] > 0.5 * wide.experts[0, -1]


def test_equal_layouts_are_priced_once_and_alike(deepseek, h100):
    layouts = layouts_of("sglang", (8, 1, 8), (4, 2, 8), (8, 1, 8))
    found = expert_times(deepseek, block_of(deepseek), layouts, TOKENS, h100).experts
    np.testing.assert_array_equal(found[0], found[2])
    alone = expert_times(
        deepseek, block_of(deepseek), layouts_of("sglang", (4, 2, 8)), TOKENS, h100
    )
    np.testing.assert_allclose(found[1], alone.experts[0])


@pytest.mark.parametrize("hardware", ["tpu7x-pod", "mi355x-server", "trn2-48xl", "gb200-nvl72"])
def test_any_device_has_times(deepseek, hardware):
    layouts = layouts_of("vllm", (4, 1, 1), (1, 16, 16))
    found = expert_times(deepseek, block_of(deepseek), layouts, TOKENS, load_hardware(hardware))
    assert np.isfinite(found.experts).all()
    assert (found.experts > 0.0).all()


def test_libraries_follow_engine_and_architecture():
    vllm, trtllm = load_engine("vllm"), load_engine("trtllm")
    assert expert_kernel(vllm, load_hardware("dgx-h200")) == "triton"
    assert expert_kernel(vllm, load_hardware("dgx-b300")) == "trtllm"
    assert expert_kernel(vllm, load_hardware("rtx-pro-6000-server")) == "triton"
    assert expert_kernel(trtllm, load_hardware("dgx-h100")) == "cutlass"
    assert expert_kernel(trtllm, load_hardware("mi300x-server")) == "aiter"
    assert expert_kernel(vllm, load_hardware("tpu-v6e-pod")) == "cutlass"  # no tiles of a GPU
