"""The table of schedules, and the orders that kernels make."""

from __future__ import annotations

import pytest

from perfmodel.base import pipelines
from perfmodel.base.pipelines import (
    CLOSED_FORMS,
    LOOP,
    SCHEDULE_FACTS,
    SCHEDULES,
    TABLE,
    WAVE,
    Schedule,
    schedule_facts,
)
from perfmodel.kernels.pipeline import actions
from perfmodel.kernels.pipeline.orders import ORDERS, gpipe, make_order, order
from perfmodel.kernels.step import tables


def test_every_schedule_has_an_order_and_only_tables_have_none():
    assert set(ORDERS) == set(SCHEDULES) == set(SCHEDULE_FACTS) - {TABLE}


def test_kernels_call_placements_and_closed_forms_the_same():
    assert tuple(tables.CLOSED_FORMS) == CLOSED_FORMS
    for name in ("LOOP", "WAVE", "BIDIRECTIONAL"):
        assert getattr(actions, name) == getattr(pipelines, name)


def test_numbers_of_stored_datasets_stay():
    """Columns and files have places of this table: new schedules are appended."""
    stored = """gpipe 1f1b interleaved eager_1f1b looped_bfs interleaved_zero_bubble zb_h1 zb_h2
    zb_v v_half v_min dualpipe dualpipe_v hanayo table"""
    assert list(SCHEDULE_FACTS)[:15] == stored.split()


def test_facts_by_number():
    assert [SCHEDULES[i] for i in schedule_facts("repeats").nonzero()[0]] == [
        "interleaved",
        "zb_h1",
    ]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"placement": "ring"}, "mine: placement is none of loop, wave"),
        ({"groups": "some"}, "mine: groups is none of"),
        ({"closed_form": "zb_h1"}, "mine: closed_form is none of"),
        ({"placement": WAVE}, "mine: a wave goes down and up"),
        ({"fewest_chunks": 0}, "mine: a stage has at least one chunk"),
    ],
)
def test_facts_that_nobody_knows(facts, reason):
    usual = {"placement": LOOP, "fewest_chunks": 1, "chunk_step": 0, "splits_backward": False}
    with pytest.raises(ValueError, match=reason):
        Schedule("mine", title="", **{**usual, **facts})


def test_orders_that_are_missing_or_there_twice():
    with pytest.raises(LookupError, match="schedule mine: no order in"):
        make_order("mine", LOOP, 2, 1, 4, 4)
    with pytest.raises(ValueError, match="two orders of schedule gpipe"):
        order("gpipe")(gpipe)
