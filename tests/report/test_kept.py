"""What has room in a page, and what is said of the rest."""

import numpy as np
import pytest

from perfmodel.report import kept
from perfmodel.report.kinds import TRAINING
from perfmodel.report.packing import from_levels, unpacked
from perfmodel.report.population import Choices, Figures, Population, coded

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
    columns, exact, used = kept.columns_of(many, RATE, 10**6)
    assert exact["rows"] is None
    assert used < 10**6
    assert all("levels" not in it and "ratio" not in it for it in columns)
    for name, it in many.figures.items():
        assert unpacked(exact["columns"][name]).tobytes() == it.values.tobytes()


def test_of_more_rows_the_best_and_the_fronts_are_exact(many, monkeypatch):
    monkeypatch.setattr(kept, "MOST_EXACT", 100)
    monkeypatch.setattr(kept, "EXACT", 50)
    columns, exact, _ = kept.columns_of(many, RATE, 10**6)
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
    monkeypatch.setattr(kept, "MOST_EXACT", 100)
    monkeypatch.setattr(kept, "EXACT", 50)
    columns, exact, used = kept.columns_of(many, RATE, 32_000)
    by_name = {it["name"]: it for it in columns}
    assert used < 40_000
    assert "levels" in by_name[RATE]
    assert "levels" not in by_name["bubble_share"]
    assert "bubble_share" in exact["columns"]


def test_a_selection_says_what_it_holds(many):
    rows, said = kept.selected(many, np.arange(COUNT), RATE, 1000)
    assert rows.size <= 1000
    assert (np.diff(rows) > 0).all()
    assert set(many.best_first(many.fitting(), RATE)[:500]) <= set(rows)
    assert said.startswith(
        f"{rows.size:,} of 6,000 strategies find room in this page: the best 500"
    )
    everything, nothing = kept.selected(many, np.arange(COUNT), RATE, COUNT)
    assert everything.size == COUNT
    assert nothing == ""
