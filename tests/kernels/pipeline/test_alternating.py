"""How chunks of a rank take turns."""

from __future__ import annotations

import pytest

from perfmodel.kernels.pipeline.alternating import turn


def test_turns_are_megatrons_table():
    """Megatron-Core, schedules.py, get_schedule_table: PP2 N3M5 VP2."""
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4)]
    assert [turn(number, 2, 5, 3) for number in range(10)] == expected


@pytest.mark.parametrize("group", [1, 2, 3, 7, 9])
def test_every_turn_comes_once(group):
    turns = [turn(number, 3, 7, group) for number in range(21)]
    assert sorted(turns) == [(chunk, batch) for chunk in range(3) for batch in range(7)]


def test_one_chunk_takes_micro_batches_in_order():
    assert [turn(number, 1, 6, 4) for number in range(6)] == [(0, batch) for batch in range(6)]
