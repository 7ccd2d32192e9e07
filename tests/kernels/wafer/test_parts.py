"""Parts of a layer on a region of cores."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer import parts as kernel
from perfmodel.kernels.wafer.columns import DECODE, PREFILL, ROW, SHIFTED
from perfmodel.kernels.wafer.products import ALL_GATHER, DISTANCE_BLIND, MESH_GEMM
from perfmodel.kernels.wafer.reduce import TWO_LEVEL, all_reduce_cycles
from perfmodel.model.presets import load_model
from perfmodel.wafer.chips import mesh_device
from perfmodel.wafer.layers import wafer_parts
from perfmodel.wafer.mappings import wafer_grid

DEVICE = mesh_device(load_mesh("wse-2"))


def vector(parts, name, context=1000.0, batch=1.0, layout=SHIFTED, grid=(100.0, 50.0)):
    part = parts.names.index(name)
    return kernel.vector_part(parts.columns, part, *grid, context, batch, layout, 0.0, DEVICE)


def test_a_decoded_product_by_hand():
    parts = wafer_parts(load_model("llama-3-8b"), DECODE)
    busy, _, issue, elements, macs, useful = vector(parts, "down", batch=3.0)
    assert macs == 3 * 144 * 82  # 14,336 / 100 inputs and 4,096 / 50 outputs of a core
    assert busy == macs / DEVICE.peak
    assert issue == 3 * (144 * DEVICE.vector_issue + 82 * DEVICE.element_cycles)
    assert elements == 3 * 82
    assert useful == 3 * 14336 * 4096


def test_scores_on_one_row_see_all_of_the_context():
    parts = wafer_parts(load_model("llama-3-8b"), DECODE)
    assert vector(parts, "scores")[4] == 41 * 20
    assert vector(parts, "scores", layout=ROW)[4] == 41 * 1000
    assert vector(parts, "values", layout=ROW)[4] == 1000 * 82


def test_experts_of_a_batch():
    parts = wafer_parts(load_model("mixtral-8x7b"), DECODE)
    tile = 41 * 287  # 4,096 / 100 x 14,336 / 50
    assert vector(parts, "expert_up")[4] == 2 * tile
    assert vector(parts, "expert_up", batch=4.0)[4] == 8 * tile
    assert vector(parts, "expert_up", batch=9.0)[4] == 8 * 3 * tile
    # What two experts make of a token is one vector.
    assert vector(parts, "expert_down")[3] == 82
    assert vector(parts, "expert_up")[3] == 2 * 287


def test_sums_are_those_of_their_algorithm():
    found, link = kernel.sum_cycles(400.0, 100.0, 70.0, TWO_LEVEL, MESH_GEMM, DEVICE)
    assert found == all_reduce_cycles(
        TWO_LEVEL, 400.0, 70.0, 2.0, DEVICE.hop, DEVICE.stage, DEVICE.ramp
    )
    assert 0.0 < link < found
    blind, _ = kernel.sum_cycles(400.0, 100.0, 70.0, TWO_LEVEL, DISTANCE_BLIND, DEVICE)
    assert blind > 2.0 * found
    assert kernel.sum_cycles(1.0, 100.0, 70.0, TWO_LEVEL, DISTANCE_BLIND, DEVICE) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["query", "scores", "values", "down"])
def test_useful_work_is_no_more_than_what_cores_do(name):
    parts = wafer_parts(load_model("llama-3-8b"), PREFILL)
    for rows, columns in ((100.0, 100.0), (70.0, 130.0), (333.0, 11.0)):
        found = kernel.matrix_part(
            parts.columns, parts.names.index(name), rows, columns, 777.0, 2.0, TWO_LEVEL,
            MESH_GEMM, DEVICE,
        )  # fmt: skip
        assert all(np.isfinite(found))
        assert min(found) >= 0.0
        assert found[6] <= found[5] * rows * columns


PARTS = wafer_parts(load_model("llama-3-8b"), DECODE)


def test_weights_of_a_layer_are_its_largest_tiles():
    """360 x 360 cores: 2 x 12 x 12 + 2 x 12 x 3 + 3 x 12 x 40 numbers of 2 B."""
    assert kernel.layer_weights(PARTS.columns, 0, 360.0, 360.0, DEVICE) == 2 * 1800
    assert kernel.layer_cache(PARTS.columns, 0, 360.0, DEVICE) == 2 * (3 + 3)


def test_operands_of_the_largest_part():
    part = PARTS.names.index("down")
    decode = kernel.activation_bytes(
        PARTS.columns, part, DECODE, 100.0, 200.0, 1000.0, 3.0, MESH_GEMM, DEVICE
    )
    assert decode == 3 * (144 + 21) * 2
    sides = (PARTS.columns, part, PREFILL, 200.0, 200.0, 1000.0, 1.0)
    # Inputs twice, weights once more beside those that stay, results.
    assert kernel.activation_bytes(*sides, MESH_GEMM, DEVICE) == 2 * (2 * 5 * 72 + 72 * 21 + 5 * 21)
    gathered = kernel.activation_bytes(*sides, ALL_GATHER, DEVICE)
    assert gathered == 2 * (200 * 5 * 72 + 199 * 72 * 21 + 5 * 21)


@pytest.mark.parametrize("regions", [1, 2, 3, 5])
def test_the_fullest_region_counts(regions):
    table = np.array([[10.0, 1.0, 0.0], [100.0, 0.0, 7.0]])
    layers = np.array([0, 0, 1, 0, 1])
    most, weights, token, windowed = kernel.region_memory(layers, 3.0, float(regions), table)
    size = math.ceil(5 / regions)
    spread = [layers[at : at + size] for at in range(0, 5, size)]
    wholes = [table[kinds].sum(axis=0) for kinds in spread]
    fullest = max(wholes, key=lambda row: row[0] + 3.0 * row[1] + row[2])
    assert (most, weights, token, windowed) == (size, *fullest)


def test_meshes_that_hold_a_model():
    table = np.array([[10.0, 1.0, 0.0]])
    assert kernel.meshes_needed(12.0, 2.0, 0.0, 30.0, table) == 2  # three layers a region
    assert kernel.meshes_needed(12.0, 2.0, 5.0, 30.0, table) == 3  # two beside their caches
    assert kernel.meshes_needed(12.0, 2.0, 0.0, 9.0, table) == math.inf


def test_a_window_keeps_no_more_than_it_sees():
    parts = wafer_parts(load_model("gpt-oss-20b"), DECODE)
    table = np.zeros((2, 3))
    for context, seen in ((64, 64), (4096, 128)):
        columns = wafer_grid(grid=32, context=context).kernel_columns()
        kernel.kind_memory(parts.columns, columns, 0, DEVICE, table)
        windowed = [kind for kind in range(2) if kernel.layer_window(parts.columns, kind)]
        (kind,) = windowed
        assert table[kind, 1] == 0.0
        assert table[kind, 2] == 2 * 2 * 512 / 32 * seen / 32
        assert table[1 - kind, 2] == 0.0
