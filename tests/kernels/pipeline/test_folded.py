"""ZB-V and DualPipeV by hand."""

from __future__ import annotations

from perfmodel.strategy.pipelines import named_pipeline, schedule_rows


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
