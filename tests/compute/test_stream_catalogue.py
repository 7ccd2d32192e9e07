"""The catalogue of streaming operations against tables worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError
from perfmodel.compute.stream import quantise
from perfmodel.compute.stream_catalogue import (
    ELEMENTWISE,
    cast,
    composed_norm,
    composed_rotary,
    cross_entropy,
    elementwise,
    embedding,
    norm,
    rope,
    router_top_k,
    softmax,
    traffic,
)


# 1000 elements of 2 bytes: bytes read, bytes written, worked out by hand
@pytest.mark.parametrize(
    ("name", "read", "written"),
    [
        ("copy", 2000, 2000),
        ("fill", 0, 2000),
        ("add", 4000, 2000),  # two addends, one sum
        ("add_scalar", 2000, 2000),
        ("gelu", 2000, 2000),
        ("gelu_backward", 4000, 2000),  # input and gradient
        ("gated", 4000, 2000),  # gate and up
        ("gated_backward", 6000, 4000),  # gate, up, gradient -> two gradients
        ("dropout", 2000, 3000),  # a mask of one byte each
        ("mul_backward", 6000, 4000),  # both factors and the gradient -> two gradients
    ],
)
def test_elementwise_bytes(name, read, written):
    assert traffic(elementwise(name, 1000)) == (read, written)


# a row kernel over 10 rows of 2048 elements of 2 bytes: read, read again, written, launches
@pytest.mark.parametrize(
    ("work", "read", "again", "written", "launches"),
    [
        (norm(10, 2048), 40960, 0, 40960, 1),
        (norm(10, 2048, fused=False), 40960, 40960, 40960, 1),
        (norm(10, 2048, residual=True), 81920, 0, 81920, 1),
        (norm(10, 2048, backward=True), 81920, 0, 40960, 2),
        (norm(10, 2048, backward=True, fused=False), 81920, 81920, 40960, 2),
        (softmax(10, 2048), 40960, 81920, 40960, 1),
        (softmax(20, 1024), 40960, 0, 40960, 1),
        (softmax(10, 2048, backward=True), 81920, 81920, 40960, 1),
    ],
)
def test_row_kernel_bytes(work, read, again, written, launches):
    assert float(work.bytes_read) == read
    assert float(work.bytes_reread) == again
    assert float(work.bytes_written) == written
    assert work.launches == launches


def test_rows_that_registers_cannot_hold_are_read_twice():
    assert float(norm(1, 32768).bytes_reread) == 0  # 64 KiB
    assert float(norm(1, 32776).bytes_reread) == 65552


def test_short_rows_that_start_within_a_sector_touch_one_more():
    # 1000 columns of 4 bytes are 125 sectors; 1001 end 4 bytes into a sector
    aligned, other = softmax(8, 1000, 4.0), softmax(8, 1001, 4.0)
    assert float(aligned.bytes_read) == 8 * 4000
    assert float(other.bytes_read) == pytest.approx(8 * 4004 * 1.25)


def test_other_operations_by_hand():
    # 10 tokens of 8 heads of 64: 5120 elements, and 64 fp32 sines and cosines per token
    assert traffic(rope(10, 8, 64)) == (2 * 5120 + 10 * 64 * 4, 2 * 5120)
    assert traffic(cast(1000, 2, 4)) == (2000, 4000)
    assert traffic(embedding(10, 512)) == (10240, 10240)
    assert traffic(embedding(10, 512, tables=2)) == (20480, 10240)
    assert traffic(embedding(10, 512, backward=True)) == (10240 + 20480, 20480)
    assert traffic(router_top_k(10, 64)) == (10 * 64 * 12, 10 * 64 * 6)
    assert traffic(router_top_k(10, 64, backward=True)) == (10 * 64 * 8, 10 * 64 * 8)
    assert traffic(cross_entropy(10, 1000)) == (40000, 20000)
    assert traffic(cross_entropy(10, 1000, backward=True)) == (20000, 20000)
    assert traffic(cross_entropy(10, 1000, fused=False)) == (220000, 160000)


def test_composed_norms_and_rotations_move_what_their_operators_move():
    """Operators of eager PyTorch one by one: (bytes read, bytes written) an element."""
    to_fp32, product, to_half = (2, 4), (4, 4), (4, 2)
    scaled = [to_fp32, product, (4, 0), product, to_half, (2, 2)]
    assert traffic(composed_norm(1)) == tuple(map(sum, zip(*scaled, strict=True)))
    weight = [(2, 2), (4, 2), (2, 0)]
    root = [product, (8, 4), (4, 0)]
    square = [product, product, (8, 4)]
    gradients = [*weight, to_fp32, *root, *square, (8, 4), to_half]
    assert traffic(composed_norm(1, backward=True)) == tuple(map(sum, zip(*gradients, strict=True)))
    turned = [(2, 2), (1, 1), (2, 2), (2, 2), (4, 2)]
    assert traffic(composed_rotary(1)) == tuple(map(sum, zip(*turned, strict=True)))
    assert traffic(composed_rotary(1, backward=True)) == (15, 15)


@given(
    st.sampled_from(sorted(ELEMENTWISE)), st.integers(1, 10**9), st.sampled_from([1.0, 2.0, 4.0])
)
def test_bytes_scale_with_elements_and_their_size(name, elements, size):
    one = elementwise(name, 1.0, size)
    many = elementwise(name, elements, size)
    assert traffic(many) == pytest.approx(tuple(elements * part for part in traffic(one)))


@given(st.integers(1, 10**5), st.integers(1, 10**5))
def test_columns_equal_scalars(rows, columns):
    for kernel in (norm, softmax):
        alone, column = kernel(rows, columns), kernel(np.array([rows, 1]), columns)
        for one, many in zip(alone, column, strict=True):
            assert np.ravel(many)[0] == one


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(DataError, match=r"unknown elementwise operation 'gleu'.*gelu"):
        elementwise("gleu", 1)
    with pytest.raises(DataError, match=r"unknown quantisation 'fp8_tokn'.*fp8_token"):
        quantise("fp8_tokn", 1, 1)
