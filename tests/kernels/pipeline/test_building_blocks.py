"""V-Half and V-Min: what the paper says of their memory, and orders of the authors' scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline.events import peaks
from perfmodel.strategy.pipelines import named_pipeline, schedule_rows

# Of the authors' scheduler: repository sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py.
AUTHORS = {
    ("v_half", 2, 3): [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0I0 3I1 3W1 3F2 3I2 0I1 3W2 0I2 0W0 0W1 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 1F2 2F2 2I1 1I1 2I2 1I2 2W1 2W2 1W1 1W2",
    ],
    ("v_min", 3, 3): [
        "0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 5F2 0I1 5I2 5W2 0W1 0I2 0W2",
        "1F0 1F1 4F0 4F1 4I0 4W0 1I0 1W0 4I1 1F2 4W1 4F2 1I1 1W1 4I2 4W2 1I2 1W2",
        "2F0 3F0 2F1 3F1 3I0 2I0 3W0 2W0 3I1 2F2 3F2 2I1 3W1 2W1 3I2 2I2 3W2 2W2",
    ],
    ("v_half", 3, 4): [
        "0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 0F3 "
        "5F2 5I2 5W2 0I1 0W1 5F3 5I3 0I2 5W3 0W2 0I3 0W3",
        "1F0 1F1 4F0 4F1 4I0 4W0 1F2 1I0 4I1 4W1 4F2 1W0 "
        "1F3 1I1 4I2 4W2 4F3 1W1 1I2 4I3 4W3 1W2 1I3 1W3",
        "2F0 3F0 2F1 3F1 3I0 3W0 2I0 2W0 2F2 3F2 3I1 2I1 "
        "3W1 2F3 2W1 3F3 3I2 2I2 3W2 2W2 3I3 2I3 3W3 2W3",
    ],
}


@pytest.mark.parametrize(("schedule", "ranks", "micro_batches"), AUTHORS)
def test_orders_are_those_of_the_authors(schedule, ranks, micro_batches):
    order = named_pipeline(schedule, ranks, micro_batches).order
    found = [" ".join(map(str, row)) for row in schedule_rows(order)]
    assert found == AUTHORS[schedule, ranks, micro_batches]


@pytest.mark.parametrize("ranks", range(1, 13))
@pytest.mark.parametrize("schedule", ["v_half", "v_min"])
def test_memory_is_the_published_one(schedule, ranks):
    """Qi et al. 2024 (arXiv:2405.15362): (p + 2) // 2 and (p + 4) // 3 micro-batches.

    The authors' comparison, huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-
    memory; of two stages each.
    """
    micro_batches = (ranks + 2) // 2 if schedule == "v_half" else (ranks + 4) // 3
    order = named_pipeline(schedule, ranks, 3 * ranks + 1).order
    one = np.ones(order.rank_of.size)
    assert peaks(order, 0 * one, one).max() == 2 * micro_batches


def rows(schedule, ranks, micro_batches):
    return schedule_rows(named_pipeline(schedule, ranks, micro_batches).order)


def test_zb_v_by_hand():
    """Qi et al. 2023 (arXiv:2401.10241v2), figure 8, with two ranks and three micro-batches."""
    assert [" ".join(row) for row in rows("zb_v", 2, 3)] == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]


def test_fewer_micro_batches_than_fill_a_v_leave_gaps_only():
    full, few = rows("zb_v", 3, 5), rows("zb_v", 3, 2)
    assert few == [[cell for cell in row if int(cell[2:]) < 2] for row in full]


def test_dualpipe_v_by_hand():
    """deepseek-ai/DualPipe, dualpipev.py, its eight steps, on the one rank that has them all."""
    row = ["0F0", "1F0", "0F1", "1B0", ["1F1", "0B0"], ["0F2", "1B1"], ["1F2", "0B1"]]
    assert rows("dualpipe_v", 1, 3) == [[*row, "1B2", "0I2", "0W2"]]


def test_dualpipe_is_dualpipe_v_with_its_other_copy_on_the_way_back():
    """deepseek-ai/DualPipe, README: DualPipeV cuts DualPipe in half."""
    whole, half = rows("dualpipe", 4, 10)[:2], rows("dualpipe_v", 2, 5)
    for rank, (one, other) in enumerate(zip(whole, half, strict=True)):
        # Stage 7 - r of the copy that begins at the end is stage 3 - r on the way back, and its
        # micro-batches are numbered after the five of the first copy.
        text = str(other)
        for batch in range(4, -1, -1):
            for kind in "FBIW":
                text = text.replace(f"'{3 - rank}{kind}{batch}'", f"'{7 - rank}{kind}{batch + 5}'")
        assert str(one) == text
