"""What is packed comes back: to the bit, or within the error that is stated."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfmodel.report import packing
from perfmodel.report.kinds import TRAINING
from perfmodel.report.packing import codes, levels, packed, ratio, size_of
from perfmodel.report.population import Choices, Figures, Population, coded
from tests.report.unpacking import from_levels, unpacked

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


COUNT = 6000
RATE = "tokens_per_second_per_device"


@pytest.fixture(scope="module")
def many():
    """Strategies whose step time and rate are one another's factor, and whose memory is not."""
    random = np.random.default_rng(7)
    rate = random.uniform(10.0, 900.0, COUNT).astype(np.float32)
    figures = {
        RATE: Figures(rate, "1/s"),
        "step_time": Figures((4096.0 / rate).astype(np.float32), "s"),
        "memory_total": Figures(random.uniform(1e9, 2e11, COUNT).astype(np.float32), "B"),
        "memory_buffers": Figures(random.uniform(1e8, 1e9, COUNT).astype(np.float32), "B"),
        "bubble_share": Figures(random.uniform(0, 0.5, COUNT).astype(np.float32), "1"),
    }
    choices = {
        "tensor_parallel": coded(np.arange(COUNT) % 8),
        "fits": Choices(["no", "yes"], (figures["memory_total"].values < 8e10).astype(np.intp)),
    }
    return Population(TRAINING, choices, figures, COUNT)


def test_everything_is_exact_where_it_finds_room(many):
    columns, exact, used = packing.columns_of(many, RATE, 10**6)
    assert exact["rows"] is None
    assert used < 10**6
    assert all("levels" not in it and "ratio" not in it for it in columns)
    for name, it in many.figures.items():
        assert unpacked(exact["columns"][name]).tobytes() == it.values.tobytes()


def test_of_more_rows_the_best_and_the_fronts_are_exact(many, monkeypatch):
    monkeypatch.setattr(packing, "MOST_EXACT", 100)
    monkeypatch.setattr(packing, "EXACT", 50)
    columns, exact, _ = packing.columns_of(many, RATE, 10**6)
    rows = unpacked(exact["rows"])
    fitting = many.fitting()
    best = many.best_first(fitting, RATE)[:50]
    assert set(best) <= set(rows)
    memory, rate = (many.figures[name].values for name in ("memory_total", RATE))
    beaten = [
        ((memory[fitting] <= memory[row]) & (rate[fitting] > rate[row])).any() for row in rows
    ]
    front = [
        row
        for row in fitting
        if not ((memory[fitting] < memory[row]) & (rate[fitting] >= rate[row])).any()
        and not ((memory[fitting] <= memory[row]) & (rate[fitting] > rate[row])).any()
    ]
    assert set(front) <= set(rows)
    assert not all(beaten)
    np.testing.assert_array_equal(unpacked(exact["columns"][RATE]), rate[rows])
    by_name = {it["name"]: it for it in columns}
    assert by_name["step_time"]["ratio"]["of"] == RATE
    error = np.abs(from_levels(by_name[RATE]["levels"]) / rate - 1)
    assert error.max() <= by_name[RATE]["levels"]["error"] * (1 + 1e-9)
    assert "levels" not in by_name["memory_buffers"]  # a part: exact, or not at all


def test_figures_without_room_are_exact_only(many, monkeypatch):
    monkeypatch.setattr(packing, "MOST_EXACT", 100)
    monkeypatch.setattr(packing, "EXACT", 50)
    columns, exact, used = packing.columns_of(many, RATE, 32_000)
    by_name = {it["name"]: it for it in columns}
    assert used < 40_000
    assert "levels" in by_name[RATE]
    assert "levels" not in by_name["bubble_share"]
    assert "bubble_share" in exact["columns"]


def test_a_selection_says_what_it_holds(many):
    rows, said = packing.selected(many, np.arange(COUNT), RATE, 1000)
    assert rows.size <= 1000
    assert (np.diff(rows) > 0).all()
    assert set(many.best_first(many.fitting(), RATE)[:500]) <= set(rows)
    assert said.startswith(
        f"{rows.size:,} of 6,000 strategies find room in this page: the best 500"
    )
    everything, nothing = packing.selected(many, np.arange(COUNT), RATE, COUNT)
    assert everything.size == COUNT
    assert nothing == ""
