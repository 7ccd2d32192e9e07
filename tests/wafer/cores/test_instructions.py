"""Instructions as columns."""

import numpy as np

from perfmodel.wafer.cores import instructions as columns


def test_multicasts_keep_their_destinations_when_joined():
    first = columns.multicasts(np.array([0]), np.array([8]), np.array([1, 2]), np.array([2]))
    second = columns.multicasts(np.array([3]), np.array([8]), np.array([4, 5]), np.array([2]))
    both = columns.joined((first, second)).moved(36)
    for row, wanted in ((0, [37, 38]), (1, [40, 41])):
        at, count = both.arguments[row, 2:4]
        assert both.destinations[at : at + count].tolist() == wanted
    assert both.lines[:, columns.CORE].tolist() == [36, 39]
    assert both.arguments[:, 0].tolist() == [36, 39]


def test_moved_cores_keep_sizes_of_products():
    product = columns.build(columns.GEMM, np.arange(2), (4, 5, 6), back=2)
    moved = product.moved(10)
    assert moved.arguments[:, :3].tolist() == [[4, 5, 6]] * 2
    assert moved.lines[:, columns.WAITS].tolist() == [2, 2]
    assert product.lines[:, columns.CORE].tolist() == [0, 1]


def test_barriers_are_called_after_their_name():
    one, other = (columns.barrier(name, np.arange(3)) for name in ("a", "b"))
    assert one.arguments[0, :2].tolist() != other.arguments[0, :2].tolist()
    assert (one.arguments == one.arguments[0]).all()


def test_nothing_joined_is_nothing():
    assert columns.joined(()).lines.shape == (0, columns.COLUMNS)
