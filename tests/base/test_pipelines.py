"""Names of schedules stand where kernels number them."""

from __future__ import annotations

from perfmodel.base.pipelines import SCHEDULE_FACTS, SCHEDULES, TABLE
from perfmodel.kernels.pipeline import orders

NUMBERS = {
    "gpipe": orders.GPIPE,
    "1f1b": orders.ONE_F_ONE_B,
    "interleaved": orders.INTERLEAVED,
    "eager_1f1b": orders.EAGER,
    "looped_bfs": orders.LOOPED_BFS,
    "interleaved_zero_bubble": orders.INTERLEAVED_ZERO_BUBBLE,
    "zb_h1": orders.ZB_H1,
    "zb_h2": orders.ZB_H2,
    "zb_v": orders.ZB_V,
    "v_half": orders.V_HALF,
    "v_min": orders.V_MIN,
    "dualpipe": orders.DUALPIPE,
    "dualpipe_v": orders.DUALPIPE_V,
    "hanayo": orders.HANAYO,
}


def test_names_are_numbered_as_kernels_have_them():
    assert {name: number for number, name in enumerate(SCHEDULES)} == NUMBERS


def test_only_tables_have_no_order_of_their_own():
    assert set(SCHEDULE_FACTS) - set(SCHEDULES) == {TABLE}
    assert list(SCHEDULE_FACTS)[: len(SCHEDULES)] == list(SCHEDULES)
