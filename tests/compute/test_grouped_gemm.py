"""Grouped products on profiles: against dense ones, launch by launch."""

import numpy as np
import pytest

from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.grouped_gemm import even_loads, grouped_gemm_times
from perfmodel.hwprofiles import load_hardware


@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 4096, 4096), (4096, 4096, 4096), (16384, 8192, 8192)]
)
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100"])
def test_one_group_is_about_a_dense_product(name, m, n, k):
    hardware = load_hardware(name)
    one = grouped_gemm_times(hardware, "bf16", [[m]], n, k).time[0]
    assert one == pytest.approx(gemm_times(hardware, "bf16", m, n, k).time[0], rel=0.25)


@pytest.mark.parametrize("stage", ["fwd", "bwd_grad_act", "bwd_grad_w"])
def test_a_launch_per_group_is_the_sum_of_dense_products(h100, stage):
    found = grouped_gemm_times(
        h100, "bf16", [[128, 512, 128]], 2048, 1024, stage=stage, launches="each"
    )
    shapes = {"fwd": (0, 1, 2), "bwd_grad_act": (0, 2, 1), "bwd_grad_w": (1, 2, 0)}[stage]
    main = (4.0, True) if stage == "bwd_grad_w" else (2.0, False)
    total = 0.0
    for rows in (128, 512, 128):
        sizes = [(rows, 2048, 1024)[i] for i in shapes]
        total += gemm_times(h100, "bf16", *sizes, 1, *main).time[0]
    assert found.time[0] == pytest.approx(total)
    assert found.flops[0] == 2 * 768 * 2048 * 1024


def test_even_groups_are_about_a_batch(h100):
    grouped = grouped_gemm_times(h100, "bf16", even_loads(64, 512), 4096, 4096).time[0]
    batch = gemm_times(h100, "bf16", 512, 4096, 4096, 64).time[0]
    assert grouped == pytest.approx(batch, rel=0.2)


def test_one_launch_beats_many_small_ones(h100):
    one, each = (
        grouped_gemm_times(h100, "bf16", even_loads(128, 16), 2048, 1024, launches=launches).time[0]
        for launches in ("one", "each")
    )
    assert one < 0.5 * each


@pytest.mark.parametrize("stage", ["fwd", "bwd_grad_act", "bwd_grad_w"])
def test_grouped_products_grow_with_their_rows(h100, stage):
    found = grouped_gemm_times(
        h100, "bf16", [[0, 0], [1, 0], [64, 3], [64, 300], [512, 300]], 1024, 2048, stage=stage
    )
    assert found.time[0] == 0
    assert (np.diff(found.time) > 0).all()
    assert (np.diff(found.memory_traffic) > 0).all()
