"""Columns of many operations stacked, reduced to distinct rows, and taken apart again."""

from __future__ import annotations

import numpy as np

from perfmodel.base.axes import columns_from_rows
from perfmodel.operations import priced
from perfmodel.operations.operations import LAYER_KEY_FIELDS, Gemm, LayerKeys
from perfmodel.operations.priced import distinct_rows, stack, unstack, wide_formats


def test_distinct_rows_come_back_by_their_places():
    columns = [np.array([1.0, 2.0, 1.0, 1.0]), np.array([5.0, 5.0, 5.0, 6.0])]
    distinct, places = distinct_rows(columns)
    assert len(distinct[0]) == 3
    for column, values in zip(columns, distinct, strict=True):
        np.testing.assert_array_equal(values[places], column)


def test_distinct_rows_are_the_rows_whatever_their_hash(monkeypatch):
    columns = [np.array([1.0, 2.0, 1.0, -0.0, 0.0]), np.array([3.0, 4.0, 3.0, 5.0, 5.0])]
    for odd in (priced._ODD, np.uint64(0)):  # with 0 all rows share a hash
        monkeypatch.setattr(priced, "_ODD", odd)
        found, inverse = distinct_rows(columns)
        assert found[0].size == 3
        for row, column in zip(found, columns, strict=True):
            np.testing.assert_array_equal(row[inverse], column)


def test_operations_are_stacked_and_taken_apart_in_order():
    keys = np.array([1.0, 2.0])
    operations = [Gemm("a", "forward", keys, 3.0, 4.0), Gemm("b", "forward", 5.0, keys, 6.0)]
    m, n = stack(operations, ("m", "n"), 2)
    np.testing.assert_array_equal(m, [1, 2, 5, 5])
    np.testing.assert_array_equal(n, [3, 3, 1, 2])
    bound = np.array([0, 1, 1, 0], np.uint8)
    one, other = unstack(operations, 2, m, n, m + n, bound, ("compute", "memory"))
    assert (one.operation, other.operation) == tuple(operations)
    np.testing.assert_array_equal(other.time, [5, 5])
    np.testing.assert_array_equal(other.flops, [1, 2])
    assert [one.bound_of(i) for i in (0, 1)] == ["compute", "memory"]
    assert [other.bound_of(i) for i in (0, 1)] == ["memory", "compute"]
    one.exposed[:] = 0.0  # what is exposed is no view of the time
    np.testing.assert_array_equal(one.time, [1, 2])


def test_narrow_precisions_attend_in_16_bits(h100):
    columns = columns_from_rows([{"precision": name} for name in ("bf16", "fp16", "fp8")])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    assert wide_formats(h100, keys).tolist() == ["bf16", "fp16", "bf16"]
