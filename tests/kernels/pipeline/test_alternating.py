"""How chunks of a rank take turns."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline.alternating import turn


def turns(passes, *numbers):
    chunks, batches = turn(np.arange(passes), *numbers)
    return list(zip(chunks.tolist(), batches.tolist(), strict=True))


def test_turns_are_megatrons_table():
    """Megatron-Core, schedules.py, get_schedule_table: PP2 N3M5 VP2."""
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4)]
    assert turns(10, 2, 5, 3) == expected


@pytest.mark.parametrize("group", [1, 2, 3, 7, 9])
def test_every_turn_comes_once(group):
    expected = [(chunk, batch) for chunk in range(3) for batch in range(7)]
    assert sorted(turns(21, 3, 7, group)) == expected


def test_one_chunk_takes_micro_batches_in_order():
    assert turns(6, 1, 6, 4) == [(0, batch) for batch in range(6)]
