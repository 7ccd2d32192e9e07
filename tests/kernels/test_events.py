"""The calendar of events against a sorted list."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.events import COLUMNS, SCHEDULED, WAITING, next_event, schedule

ROOM = 40


@pytest.mark.parametrize("kind", [np.int64, np.float64])
@given(steps=st.lists(st.none() | st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=120))
def test_events_come_by_time_then_made_then_as_scheduled(kind, steps):
    calendar = np.zeros((ROOM + 1, COLUMNS), kind)
    waiting, scheduled = [], 0
    for step in steps:
        if step is not None and len(waiting) < ROOM:
            schedule(calendar, *step, 7 * scheduled - 9)
            bisect.insort(waiting, (*step, scheduled))
            scheduled += 1
        elif waiting:
            time, made, number = waiting.pop(0)
            assert next_event(calendar) == (time, made, 7 * number - 9)
        assert calendar[0, WAITING] == len(waiting)
    assert calendar[0, SCHEDULED] == scheduled


def test_whole_times_beyond_floats_keep_their_order():
    calendar = np.zeros((4, COLUMNS), np.int64)
    for time in (2**60 + 1, 2**60, 2**60 + 2):
        schedule(calendar, time, 0, time - 2**60)
    assert [next_event(calendar)[2] for _ in range(3)] == [0, 1, 2]
