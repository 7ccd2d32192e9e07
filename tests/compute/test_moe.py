"""Mixture-of-experts layers on profiles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.routing import Routing
from perfmodel.compute.grouped_gemm import KERNELS, grouped_gemm_times, pack_loads
from perfmodel.compute.moe import PARTS, moe_layer_times, moe_times
from perfmodel.hwprofiles import load_hardware

BALANCED = Routing("balanced")
SHAPE = {"hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8}


@pytest.fixture(scope="session")
def b200():
    return load_hardware("dgx-b200")


def test_flops_are_those_of_the_matrices(h100):
    found = moe_times(h100, "bf16", 512, **SHAPE, routing=BALANCED)
    assert found.flops[0] == 2 * 512 * 8 * 3 * 4096 * 1536
    two = moe_times(h100, "bf16", 512, **SHAPE, gated=False, routing=BALANCED)
    assert two.flops[0] == 2 * 512 * 8 * 2 * 4096 * 1536


def test_parts_sum_to_the_time(h100, b200):
    for hardware, precision, kernel in (
        (h100, "bf16", "triton"),
        (h100, "fp8_block", "triton"),
        (b200, "nvfp4", "trtllm"),
        (h100, "fp8", "cutlass"),
    ):
        found = moe_times(hardware, precision, [1, 64, 4096], **SHAPE, kernel=kernel)
        assert tuple(found.parts) == PARTS
        np.testing.assert_allclose(sum(found.parts.values()), found.time)
        assert all((part >= 0).all() for part in found.parts.values())
        assert found.time.shape == found.tile_m.shape == found.bound.shape == (3,)


def test_few_tokens_stream_the_active_weights(h100):
    found = moe_times(h100, "bf16", 32, **SHAPE, routing=BALANCED)
    weights = 128 * 3 * 4096 * 1536 * 2
    assert found.active_experts[0] == 128
    assert weights <= found.memory_traffic[0] <= 1.05 * weights
    assert found.time[0] > weights / h100.device.memory.bandwidth


def test_one_token_reads_only_its_experts(h100):
    one = moe_times(h100, "bf16", 1, **SHAPE, routing=Routing("uniform"))
    assert one.active_experts[0] == 8
    assert one.memory_traffic[0] < 1.2 * 8 * 3 * 4096 * 1536 * 2


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_time_grows_with_tokens(h100, kernel):
    tokens = [1, 2, 8, 16, 64, 256, 1000, 1001, 4096, 16384]
    found = moe_times(h100, "bf16", tokens, **SHAPE, routing=BALANCED, kernel=kernel)
    time = found.time
    if kernel == "triton":  # its default tiles change once there are more tokens than experts
        few = np.array(tokens) <= 128
        assert (np.diff(time[few]) > 0).all()
        time = time[~few]
    assert (np.diff(time) > 0).all()


@given(st.integers(1, 4000))
def test_imbalance_costs_at_large_loads(tokens):
    hardware = load_hardware("dgx-h100")
    even, skewed = (
        moe_times(hardware, "bf16", tokens + 4000, **SHAPE, expert_parallel=16, routing=routing)
        for routing in (BALANCED, Routing("power_law", 1.2))
    )
    assert skewed.time[0] > even.time[0]
    assert skewed.largest_load[0] > even.largest_load[0]


def test_ranks_share_the_work(h100):
    whole, experts, width = (
        moe_times(
            h100, "bf16", 8192, **SHAPE, routing=BALANCED, kernel="cutlass",
            expert_parallel=ep, tensor_parallel=tp,
        )
        for ep, tp in ((1, 1), (8, 1), (1, 8))
    )  # fmt: skip
    assert experts.flops[0] == pytest.approx(whole.flops[0] / 8)
    assert width.flops[0] == pytest.approx(whole.flops[0] / 8)
    assert experts.time[0] < 0.35 * whole.time[0]
    assert experts.active_experts[0] == 16


def test_seeds_reproduce_and_differ(h100):
    first, again, other = (
        moe_times(
            h100, "bf16", 64, **SHAPE, expert_parallel=8, routing=Routing("two_level", seed=s)
        )
        for s in (0, 0, 1)
    )
    assert first.time[0] == again.time[0]
    assert first.time[0] != other.time[0]


def test_a_grid_is_its_rows(h100):
    tokens, ranks = np.array([4, 512, 512]), np.array([1, 2, 8])
    grid = moe_times(
        h100, "bf16", tokens, **SHAPE, expert_parallel=ranks, routing=Routing("uniform")
    )
    for row, (count, ep) in enumerate(zip(tokens, ranks, strict=True)):
        single = moe_times(
            h100, "bf16", count, **SHAPE, expert_parallel=ep, routing=Routing("uniform")
        )
        assert single.time[0] == pytest.approx(grid.time[row])


def test_replayed_layers_find_small_weights_in_the_cache(h100):
    cold, warm = (
        moe_times(h100, "bf16", 4, 2048, 256, 8, 2, routing=BALANCED, copies=copies)
        for copies in (0.0, 1.0)
    )
    assert warm.time[0] < cold.time[0]
    assert warm.memory_traffic[0] < cold.memory_traffic[0]


def test_layers_without_a_local_token_cost_next_to_nothing(h100):
    loads = pack_loads([(8.0, np.zeros(4)), (8.0, np.array([8.0, 0, 0, 0]))])
    rows = np.arange(2)
    found = moe_layer_times(
        h100, "bf16", loads, rows, rows, 2048, 512, 1, 64, kernel="cutlass", router=False
    )
    assert found.parts["gate_up"][0] == found.parts["down"][0] == 0
    assert found.time[0] < found.time[1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": np.nan}, "tokens is nan"),
        ({"hidden": 10.5}, "whole number"),
        ({"tensor_parallel": 5}, "does not divide"),
        ({"expert_parallel": 3}, "divide evenly"),
        ({"top_k": 200}, "200 experts per token"),
        ({"tokens": [1, 2], "hidden": [1, 2, 3]}, "do not broadcast"),
    ],
)
def test_bad_sizes_are_refused(h100, changed, words):
    with pytest.raises(DataError, match=words):
        moe_times(h100, "bf16", **{"tokens": 8, **SHAPE, **changed})


def test_bad_choices_are_refused(h100, a100):
    with pytest.raises(HardwareError, match="did you mean triton"):
        moe_times(h100, "bf16", 8, **SHAPE, kernel="tritn")
    with pytest.raises(HardwareError):
        moe_times(a100, "fp8", 8, **SHAPE)
    with pytest.raises(HardwareError, match=r"has no .*\[calibration\.moe\]"):
        moe_times(replace(h100, calibration=h100.calibration | {"moe": {}}), "bf16", 8, **SHAPE)
    with pytest.raises(DataError, match="unknown stage"):
        grouped_gemm_times(h100, "bf16", [[1]], 64, 64, stage="bwd")
    with pytest.raises(DataError, match="unknown launches"):
        grouped_gemm_times(h100, "bf16", [[1]], 64, 64, launches="two")
    with pytest.raises(DataError, match="rows is -1"):
        grouped_gemm_times(h100, "bf16", [[-1]], 64, 64)
    with pytest.raises(DataError, match="n is 0"):
        grouped_gemm_times(h100, "bf16", [[1]], 0, 64)
    with pytest.raises(DataError, match="do not broadcast"):
        grouped_gemm_times(h100, "bf16", [[1], [2]], [1, 2, 3], 64)
