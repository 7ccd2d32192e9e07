"""The guard of speed: what it holds rates against, and what it does with what falls short."""

from __future__ import annotations

import csv
import math
import subprocess

import pytest


@pytest.fixture
def guard(script):
    return script.load("speed.guard")


@pytest.fixture
def measured(guard, monkeypatch):
    """What is measured again, in processes of their own."""
    again = {}
    monkeypatch.setattr(guard, "recorded", lambda: {"products": 100.0, "wafer": 10.0})
    monkeypatch.setattr(
        guard,
        "measured_apart",
        lambda names, root, runs: {name: again[name] for name in names},
    )
    return again


def test_every_case_has_a_rate_to_be_held_against(guard):
    rates = guard.recorded()
    assert list(rates) == guard.names_of()
    assert all(0.0 < rate < math.inf for rate in rates.values())


def test_the_history_has_the_cases_as_columns(guard):
    with guard.HISTORY.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[-1]) == {"commit", "date", *guard.names_of()}
    assert len({row["commit"] for row in rows}) == len(rows) > 9


def test_a_rate_a_quarter_lower_fails_if_it_stays_so(guard, measured):
    measured["products"] = 74.0
    assert guard.check({"products": 70.0, "wafer": 8.0}) == ["products"]
    measured["products"] = 76.0
    found = {"products": 70.0, "wafer": 8.0}
    assert guard.check(found) == []
    assert found["products"] == 76.0


def shares_of(guard, monkeypatch, kernels, verbs):
    """Rates as shares of recorded ones: of each kernel, of each verb."""
    found = {f"kernel {i}": share for i, share in enumerate(kernels)}
    found |= {f"verb {i}": share for i, share in enumerate(verbs)}
    monkeypatch.setattr(guard, "recorded", lambda: dict.fromkeys(found, 1.0))
    return found


def test_a_slower_machine_is_no_slower_program(guard, monkeypatch):
    found = shares_of(guard, monkeypatch, [0.7, 0.68, 0.72, 0.7, 0.66], [1.0] * 5)
    assert guard.slow_ones(found) == []
    found["kernel 4"] = 0.52  # less than three quarters of the others
    found["verb 1"] = 0.7  # verbs are as fast as ever
    assert guard.slow_ones(found) == ["kernel 4", "verb 1"]


def test_a_faster_machine_excuses_nothing_and_demands_no_more(guard, monkeypatch):
    found = shares_of(guard, monkeypatch, [2.0, 2.1, 1.9, 0.8, 0.7], [1.0] * 5)
    assert guard.slow_ones(found) == ["kernel 4"]


def test_a_whole_group_at_less_than_half_its_rates_fails(guard, monkeypatch):
    found = shares_of(guard, monkeypatch, [0.4] * 5, [0.6] * 5)
    assert guard.slow_ones(found) == [f"kernel {i}" for i in range(5)]


def test_what_could_not_be_measured_fails(guard, measured):
    measured["wafer"] = math.nan
    assert guard.check({"products": 100.0, "wafer": math.nan}) == ["wafer"]


def test_a_case_that_a_state_lacks_has_no_rate(guard, monkeypatch, capsys):
    def lacking():
        raise ImportError("cannot import name 'later'")

    monkeypatch.setattr(guard, "CASES", {"later": ("pieces", lacking)})
    monkeypatch.setattr(guard.os, "environ", {})
    assert math.isnan(guard.measure(["later"], guard.ROOT)["later"])
    assert "cannot import name 'later'" in capsys.readouterr().err


def test_a_rate_counts_pieces_of_work_in_the_time_of_a_loop(guard, monkeypatch):
    times = iter([0.0, 2.0, 2.0, 4.0, 4.0, 6.0])
    monkeypatch.setattr(guard.time, "process_time", lambda: next(times))
    monkeypatch.setattr(guard, "loop", lambda: 0.5)
    calls = []
    assert guard.rate_of(lambda: (100, lambda: calls.append(1))) == 100 * 0.5 / 2.0
    assert len(calls) == 1 + guard.REPEATS


def test_a_state_has_one_row_in_the_history(guard, monkeypatch, tmp_path):
    monkeypatch.setattr(guard, "HISTORY", tmp_path / "history.csv")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "State"], check=True)
    for rate in (1.0, 2.0):
        guard.add_history("HEAD", tmp_path, {"products": rate})
    with guard.HISTORY.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["products"] == "2"
    assert row["wafer"] == ""
