"""Layouts of tensors: where each element lies before and after views."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.twin import layouts
from perfmodel.wafer.twin.layouts import Layout, fresh


def elements(layout: Layout) -> np.ndarray:
    """Return the bank of every element."""
    found = np.full(layout.dims, -1)
    for place in np.ndindex(layout.banks.shape):
        box = tuple(
            slice(max(int(begin[at]), 0), int(end[at]))
            for at, begin, end in zip(place, layout.begins, layout.ends, strict=True)
        )
        found[box] = layout.banks[place]
    assert (found >= 0).all()
    return found


def test_fresh_deals_blocks_in_turn():
    layout = fresh((5, 4), (2, 3), 10, 4, offset=1)
    assert layout.banks.tolist() == [[11, 12], [13, 10], [11, 12]]
    assert layout.ends[0].tolist() == [2, 4, 5]
    assert elements(layout)[4].tolist() == [11, 11, 11, 12]


@pytest.mark.parametrize(
    ("dims", "tile", "view"),
    [
        ((3, 12), (1, 2), (3, 3, 4)),
        ((3, 12, 2), (3, 4, 1), (3, 3, 4, 2)),
        ((3, 3, 4), (1, 1, 2), (3, 12)),
        ((4, 1, 6, 5), (2, 1, 3, 5), (4, 6, 5)),
        ((4, 6, 5), (2, 3, 5), (4, 1, 6, 5)),
        ((4, 6, 4, 2), (4, 3, 2, 2), (4, 24, 2)),
        ((4, 6), (2, 3), (4, 6)),
    ],
)
def test_views_leave_every_element_where_it_is(dims, tile, view):
    layout = fresh(dims, tile, 0, 7)
    seen = layouts.viewed(layout, view)
    assert seen.dims == view
    assert (elements(seen) == elements(layout).reshape(view)).all()


def test_other_views_leave_every_element_where_it_is():
    layout = fresh((4, 6, 8), (2, 3, 4), 0, 5)
    everything = elements(layout)
    assert (elements(layouts.transposed(layout, 0, 2)) == everything.swapaxes(0, 2)).all()
    first, second = layouts.split(layout, 2, (4, 4))
    assert (elements(first) == everything[..., :4]).all()
    assert (elements(second) == everything[..., 4:]).all()
    assert (elements(layouts.concatenated([first, second], 2)) == everything).all()
    assert (elements(layouts.sliced(layout, 1, 3, 6)) == everything[:, 3:]).all()
    one = layouts.sliced(layout, 0, 3, 4)
    assert (elements(one) == everything[3:4]).all()
    assert one.begins[0].tolist() == [-1]
    assert one.tile == (1, 3, 4)
    assert (elements(layouts.with_ones(layout, (4, 1, 6, 8))) == everything[:, None]).all()
    assert layouts.with_ones(layouts.with_ones(layout, (4, 1, 6, 8)), (4, 6, 8)).dims == (4, 6, 8)


def test_rows_are_put_together_as_slices_are():
    some = [fresh((5, 1, 6), tile, 2, 7) for tile in ((1, 1, 2), (3, 1, 2), (1, 1, 3))]
    for chosen in ((0, 0, 0), (0, 1, 1), (1, 2, 0)):
        rows = [layouts.Row(some[one], place) for place, one in enumerate(chosen)]
        mine = layouts.rows_together(rows)
        other = layouts.concatenated([row.taken() for row in rows], 0)
        assert (mine.dims, mine.tile) == (other.dims, other.tile)
        assert (mine.banks == other.banks).all()
        for edges in ("begins", "ends"):
            pairs = zip(getattr(mine, edges), getattr(other, edges), strict=True)
            assert all((one == two).all() for one, two in pairs)


def test_smaller_blocks_stay_where_they_begin():
    layout = layouts.remapped(fresh((6,), (4,), 0, 9), (3,))
    assert layout.banks.tolist() == [0, 0]  # the second lies in both blocks of before
    halved, _ = layouts.split(fresh((2, 6), (2, 6), 3, 4), 1, (4, 2))
    assert halved.tile == (2, 2)
    assert halved.banks.tolist() == [[3, 3]]


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda one: layouts.with_ones(one, (4, 12)), "cannot be read as"),
        (lambda one: layouts.with_ones(one, (6,)), "cannot be read as"),
        (lambda one: layouts.viewed(one, (4, 7)), "one axis is split"),
        (lambda one: layouts.viewed(one, (4, 2, 4)), "one axis is split"),
        (lambda one: layouts.split(one, 1, (3, 4)), "not two parts"),
        (lambda one: layouts.split(one, 1, (1, 5)), None),
        (lambda one: layouts.split(fresh((4, 5), (2, 2), 0, 5), 1, (3, 2)), "do not divide"),
        (lambda one: layouts.sliced(one, 0, 2, 2), "no elements"),
        (lambda one: layouts.sliced(one, 0, 3, 5), "no elements"),
        (lambda one: layouts.sliced(one, 0, 1, 3), "cuts blocks"),
        (lambda one: layouts.remapped(one, (4, 3)), "cannot become larger"),
        (lambda one: layouts.concatenated([one, fresh((4, 7), (2, 3), 0, 5)], 0), "concatenation"),
        (
            lambda one: layouts.concatenated([fresh((3, 6), (2, 3), 0, 5), one], 0),
            "do not divide",
        ),
        (lambda one: fresh((2**30, 2**30), (1, 1), 0, 4), "blocks"),
        (
            lambda one: layouts.viewed(fresh((4, 3, 5), (1, 3, 2), 0, 5), (4, 15)),
            "do not divide",
        ),
        (lambda one: layouts.viewed(fresh((15,), (4,), 0, 5), (3, 5)), "do not divide"),
    ],
)
def test_refuses(do, message):
    layout = fresh((4, 6), (2, 3), 0, 5)
    if message is None:
        do(layout)
        return
    with pytest.raises(DataError, match=message):
        do(layout)
