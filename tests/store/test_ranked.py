"""Ranked strategies: lists that show themselves as tables."""

from __future__ import annotations

from perfmodel.store.ranked import Ranked

ROWS = Ranked(
    {
        "hardware": "dgx-h100",
        "tensor_parallel": degree,
        "pipeline_parallel": 1,
        "data_parallel": 8,
        "micro_batch_size": 1,
        "zero_stage": 1,
        "recompute": recompute,
        "step_time": 0.5 * degree,
        "memory_total": 1e9,
    }
    for degree, recompute in ((1, "none"), (2, "full"))
)


def test_text_and_html_show_what_differs() -> None:
    for text in (repr(ROWS), ROWS._repr_html_()):
        assert "recompute" in text
        assert "step_time" in text
        assert "zero_stage" not in text
    assert len(repr(ROWS).splitlines()) == 3
    assert repr(Ranked()) == "no strategies"


def test_a_data_frame_has_every_column() -> None:
    frame = ROWS.to_dataframe()
    assert frame.index.tolist() == [1, 2]
    assert frame["zero_stage"].tolist() == [1, 1]
    assert ROWS[1]["recompute"] == "full"
