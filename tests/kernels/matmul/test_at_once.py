"""Products that NumPy times at once: the digits of the kernel that times them one by one."""

import numpy as np
import pytest

from perfmodel.compute.gemm import gemm_device
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.matmul import at_once, gemm
from perfmodel.kernels.matmul.tiles import PANELS, SPLITS, TILES

COUNT = 60


def products(seed):
    """Sizes and outputs of products of all magnitudes, two of them beyond what is priced."""
    random = np.random.default_rng(seed)
    m, n, k = np.ceil(2.0 ** random.uniform(0, 15, (3, COUNT)))
    m[0], m[1], k[1] = np.nan, 2.0**100, 2.0**40
    batch = np.ceil(2.0 ** random.uniform(0, 4, COUNT))
    return m, n, k, batch, np.full(COUNT, 2.0), random.random(COUNT) < 0.3


@pytest.mark.parametrize("reuse", [{}, {"weight_copies": 3, "activation_copies": 1}])
@pytest.mark.parametrize(
    ("profile", "precision", "library"),
    [
        ("dgx-h100", "bf16", "training"),
        ("dgx-h100", "fp8", "serving"),
        ("mi300x", "bf16", "serving"),
        ("tpu-v5e-pod", "bf16", "training"),
    ],
)
def test_the_digits_are_those_of_one_by_one(profile, precision, library, reuse):
    device = gemm_device(load_hardware(profile), precision, library=library, **reuse)
    tiles = PANELS if device.array_side > 0.0 else TILES
    with np.errstate(all="ignore"):
        columns = products(len(profile))
        one_by_one = gemm.gemm_times(*columns, device, tiles, SPLITS)
        together = at_once.times(columns, device, tiles, SPLITS)
    for alone, column in zip(one_by_one, together, strict=True):
        np.testing.assert_array_equal(column, alone)
    assert profile != "mi300x" or (together[3] > 1).sum() > 9  # where k is split often


def test_more_products_than_stand_in_a_cache_are_taken_in_parts(monkeypatch):
    device = gemm_device(load_hardware("dgx-h100"), "bf16")
    with np.errstate(all="ignore"):
        asked = products(7), device, TILES, SPLITS
        whole = at_once.times(*asked)
        monkeypatch.setattr(at_once, "ROWS_AT_ONCE", 7)
        parts = at_once.times(*asked)
    for column, again in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(column, again)
