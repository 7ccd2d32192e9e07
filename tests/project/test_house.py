"""The house stays as large as it is: budgets of lines and files, which only fall.

A budget is raised only with a reason in the changelog. The counts are those of
``python benchmarks/house.py``.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.data import BENCHMARKS, ROOT, in_repository

pytestmark = in_repository
LINES = {"core": 84_900, "workloads": 36_300, "wafer": 17_970, "measured": 9_740, "report": 6_400}
FILES = 577
ARROWS = 105
CIRCLES = 0
OPTIONS_BY_HAND = 6
FUNCTION_LENGTH = {"median": 11, "percentile_95": 50}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("house", BENCHMARKS / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    counts: dict[str, Any] = module.count(ROOT)
    return counts


@pytest.mark.parametrize("wing", LINES)
def test_a_wing_keeps_its_budget_of_lines(found, wing):
    assert found["lines"][wing] <= LINES[wing], "make room first, or give a reason in CHANGELOG.md"


def test_the_counts_of_the_whole_do_not_grow(found):
    assert sum(LINES[wing] for wing in LINES) >= found["lines"]["all"]
    assert found["files"]["all"] <= FILES
    assert found["arrows"] <= ARROWS
    assert len(found["circles"]) <= CIRCLES
    assert found["options_by_hand"] <= OPTIONS_BY_HAND


def test_no_room_imports_one_above_it(found):
    assert found["upward_arrows"] == []


def test_functions_stay_short(found):
    for name, most in FUNCTION_LENGTH.items():
        assert found["function_length"][name] <= most
