"""What is packed comes back: to the bit, or within the error that is stated."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfmodel.report.packing import codes, from_levels, levels, packed, ratio, size_of, unpacked

KINDS = ("u1", "u2", "u4", "i4", "f4", "f8")
NUMBERS = st.floats(1e-6, 1e12, allow_subnormal=False)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_numbers_come_back_to_the_bit(kind, data):
    values = data.draw(arrays(np.dtype(kind), st.integers(0, 40)))
    column = packed(values)
    assert column["count"] == values.size
    assert unpacked(column).tobytes() == values.tobytes()


def test_bytes_lie_by_their_place():
    """The page undoes exactly this."""
    column = packed(np.array([0x0102, 0x0304], np.uint16))
    assert zlib.decompress(base64.b64decode(column["data"])) == b"\x02\x04\x01\x03"


@given(arrays(np.float64, st.integers(1, 60), elements=NUMBERS), st.integers(4, 16))
def test_levels_are_within_their_error(values, bits):
    column = levels(values, bits)
    assert column["scale"] == "log"
    error = np.abs(from_levels(column) / values - 1.0)
    assert (error <= column["error"] * (1 + 1e-9) + 1e-12).all()


@given(arrays(np.float64, st.integers(2, 60), elements=st.floats(-1e6, 1e6)))
def test_levels_of_signed_numbers_have_steps_of_one_size(values):
    column = levels(values, 10)
    found = from_levels(column)
    if (values < 0).any():
        assert column["scale"] == "linear"
        assert (np.abs(found - values) <= column["error"] * (1 + 1e-9) + 1e-9).all()


def test_zero_and_nothing_are_levels_of_their_own():
    found = from_levels(levels(np.array([0.0, np.nan, 1.0, 1000.0]), 12))
    assert found[0] == 0.0
    assert np.isnan(found[1])
    assert found[2] == pytest.approx(1.0)
    assert found[3] == pytest.approx(1000.0)


def test_codes_take_the_fewest_bytes():
    assert [codes(np.array([top])).dtype.itemsize for top in (255, 256, 65536)] == [1, 2, 4]


def test_what_is_a_factor_of_another_column_is_packed_as_one():
    rate = np.geomspace(3.0, 900.0, 5000).astype(np.float32)
    tokens = np.tile(np.array([1.5, 4.0, 8.0], np.float32), 1667)[:5000]
    found = ratio((tokens / rate).astype(np.float32), rate)
    assert found["power"] == -1
    assert found["factors"] == pytest.approx([1.5, 4.0, 8.0], rel=1e-6)
    factors = np.array(found["factors"])[unpacked(found["codes"])]
    np.testing.assert_allclose(factors / rate, tokens / rate, rtol=1e-5)
    assert size_of(found["codes"]) < 2000
    assert ratio(2 * rate, rate)["power"] == 1


def test_what_is_no_factor_is_not():
    base = np.linspace(1.0, 2.0, 3000)
    assert ratio(np.random.default_rng(1).uniform(1, 2, 3000), base) is None
    assert ratio(base**2, base) is None
    assert ratio(np.where(base > 1.5, np.nan, base), base) is None
    assert ratio(base - 1.0, base) is None  # zero has no logarithm
