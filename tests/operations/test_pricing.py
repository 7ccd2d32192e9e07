"""Prices of operations: those of the kernel models, whatever other keys are priced with them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.precisions import PRECISIONS
from perfmodel.compute.gemm import gemm_times
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Communication,
    Gemm,
    LayerKeys,
    Machine,
)
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.operations.priced import matrix_rates
from perfmodel.operations.pricing import price_operations
from perfmodel.software.framework import load_framework
from perfmodel.strategy.grid import columns_from_rows

MEGATRON = load_framework("megatron")
ROWS = [
    {"sequence_length": 2048, "tensor_parallel": degree, "precision": precision}
    for degree in (1, 2, 4)
    for precision in ("bf16", "fp8")
]


def keys_of(rows):
    columns = columns_from_rows(rows)
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def priced(model, hardware, rows, **options):
    keys = keys_of(rows)
    operations = part_operations(model, model_parts(model)[0], keys, MEGATRON, Machine())
    return price_operations(hardware, operations, keys, MEGATRON, **options)


def test_a_product_takes_the_time_of_its_kernel_times_its_count(h100):
    product = Gemm("up", "forward", m=2048.0, n=11264.0, k=2048.0, batch=3.0, count=5.0)
    (found,) = price_operations(h100, [product], keys_of(ROWS[:1]), MEGATRON)
    one = gemm_times(h100, "bf16", 2048, 11264, 2048, 3, output_bytes=2.0, steady=True)
    assert found.time[0] == pytest.approx(5 * one.time[0], rel=1e-12)
    assert found.flops[0] == 5 * 3 * 2 * 2048 * 11264 * 2048
    assert found.traffic[0] == pytest.approx(5 * one.memory_traffic[0], rel=1e-12)


def test_what_is_not_done_takes_no_time(h100):
    product = Gemm("up", "forward", m=2048.0, n=2048.0, k=2048.0, count=0.0)
    (found,) = price_operations(h100, [product], keys_of(ROWS[:1]), MEGATRON)
    assert (found.time[0], found.flops[0]) == (0.0, 0.0)


def test_each_key_is_priced_as_if_alone(small_dense, h100):
    together = priced(small_dense, h100, ROWS)
    for i, row in enumerate(ROWS):
        alone = {(x.operation.name, x.operation.phase): x for x in priced(small_dense, h100, [row])}
        for item in together:
            other = alone.pop((item.operation.name, item.operation.phase), None)
            if other is None:  # what a degree of one does not need
                assert item.time[i] == 0.0, item.operation
                continue
            for name in ("time", "exposed", "flops", "traffic", "half_width"):
                assert getattr(item, name)[i] == getattr(other, name)[0], (item.operation, name)
        assert not alone


def test_a_precision_that_the_device_lacks_has_no_price(small_dense, a100):
    assert np.isnan(matrix_rates(a100)[PRECISIONS.index("fp8")])
    products = [
        item for item in priced(small_dense, a100, ROWS) if isinstance(item.operation, Gemm)
    ]
    quantised = [item for item in products if item.operation.quantised]
    assert quantised
    for item in quantised:
        assert np.isnan(item.time).tolist() == [row["precision"] == "fp8" for row in ROWS]


def test_the_slowest_device_slows_computation_and_no_message(small_dense, h100):
    plain = priced(small_dense, h100, ROWS)
    slower = priced(small_dense, h100, ROWS, slowdown=1.25)
    for one, other in zip(plain, slower, strict=True):
        factor = 1.0 if isinstance(one.operation, Communication) else 1.25
        np.testing.assert_allclose(other.time, factor * one.time, rtol=1e-12)


def test_what_is_exposed_is_part_of_the_time(small_dense, h100):
    for item in priced(small_dense, h100, ROWS):
        assert (item.exposed >= 0.0).all()
        assert (item.exposed <= item.time * (1 + 1e-12)).all()
