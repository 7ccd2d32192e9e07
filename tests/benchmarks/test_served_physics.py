"""Laws of served points: what is drawn can be served, and each law says why it bends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def laws(script: Any) -> Any:
    return script.load("served_physics")


def test_random_loads_are_closed_loops_and_repeat(laws: Any) -> None:
    one, other = (laws.random_loads(np.random.default_rng(4), True) for _ in range(2))
    assert len(one) == laws.LOADS
    assert one.is_closed_loop.all()
    assert (one["rounds"] == 10).all()
    assert all((one[name] == other[name]).all() for name in one.columns)


def test_loads_of_a_law_differ_in_one_thing_that_grows(laws: Any) -> None:
    numbers = np.array([1, 7, 4096])
    for change in (laws.one_more, laws.twice, laws.longer):
        assert (change(numbers) > numbers).all()
    assert len({law.name for law in laws.LAWS}) == len(laws.LAWS)
    assert all(law.bound >= 0.0 for law in laws.LAWS)
