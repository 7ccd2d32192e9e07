"""Memory of cores: tiles, caches and regions by hand."""

import math

import numpy as np
import pytest

from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer import memory
from perfmodel.kernels.wafer.columns import DECODE, PREFILL
from perfmodel.kernels.wafer.products import ALL_GATHER, MESH_GEMM
from perfmodel.model.presets import load_model
from perfmodel.wafer.device import mesh_device
from perfmodel.wafer.layers import wafer_parts
from perfmodel.wafer.mappings import wafer_grid

DEVICE = mesh_device(load_mesh("wse-2"))
PARTS = wafer_parts(load_model("llama-3-8b"), DECODE)


def test_weights_of_a_layer_are_its_largest_tiles():
    """360 x 360 cores: 2 x 12 x 12 + 2 x 12 x 3 + 3 x 12 x 40 numbers of 2 B."""
    assert memory.layer_weights(PARTS.columns, 0, 360.0, 360.0, DEVICE) == 2 * 1800
    assert memory.layer_cache(PARTS.columns, 0, 360.0, DEVICE) == 2 * (3 + 3)


def test_operands_of_the_largest_part():
    part = PARTS.names.index("down")
    decode = memory.activation_bytes(
        PARTS.columns, part, DECODE, 100.0, 200.0, 1000.0, 3.0, MESH_GEMM, DEVICE
    )
    assert decode == 3 * (144 + 21) * 2
    sides = (PARTS.columns, part, PREFILL, 200.0, 200.0, 1000.0, 1.0)
    # Inputs twice, weights once more beside those that stay, results.
    assert memory.activation_bytes(*sides, MESH_GEMM, DEVICE) == 2 * (2 * 5 * 72 + 72 * 21 + 5 * 21)
    gathered = memory.activation_bytes(*sides, ALL_GATHER, DEVICE)
    assert gathered == 2 * (200 * 5 * 72 + 199 * 72 * 21 + 5 * 21)


@pytest.mark.parametrize("regions", [1, 2, 3, 5])
def test_the_fullest_region_counts(regions):
    table = np.array([[10.0, 1.0, 0.0], [100.0, 0.0, 7.0]])
    layers = np.array([0, 0, 1, 0, 1])
    most, weights, token, windowed = memory.region_memory(layers, 3.0, float(regions), table)
    size = math.ceil(5 / regions)
    dealt = [layers[at : at + size] for at in range(0, 5, size)]
    wholes = [table[kinds].sum(axis=0) for kinds in dealt]
    fullest = max(wholes, key=lambda row: row[0] + 3.0 * row[1] + row[2])
    assert (most, weights, token, windowed) == (size, *fullest)


def test_meshes_that_hold_a_model():
    table = np.array([[10.0, 1.0, 0.0]])
    assert memory.meshes_needed(12.0, 2.0, 0.0, 30.0, table) == 2  # three layers a region
    assert memory.meshes_needed(12.0, 2.0, 5.0, 30.0, table) == 3  # two beside their caches
    assert memory.meshes_needed(12.0, 2.0, 0.0, 9.0, table) == math.inf


def test_a_window_keeps_no_more_than_it_sees():
    parts = wafer_parts(load_model("gpt-oss-20b"), DECODE)
    table = np.zeros((2, 3))
    for context, seen in ((64, 64), (4096, 128)):
        columns = wafer_grid(grid=32, context=context).kernel_columns()
        memory.kind_memory(parts.columns, columns, 0, DEVICE, table)
        windowed = [kind for kind in range(2) if memory.layer_window(parts.columns, kind)]
        (kind,) = windowed
        assert table[kind, 1] == 0.0
        assert table[kind, 2] == 2 * 2 * 512 / 32 * seen / 32
        assert table[1 - kind, 2] == 0.0
