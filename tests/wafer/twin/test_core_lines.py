"""Traffic of boxes put together, and barriers."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.twin.core_lines import Traffic, barriers, single, traffic
from perfmodel.wafer.twin.layouts import fresh


def test_boxes_are_taken_in_any_order():
    some = Traffic(np.array([0, 2, 2, 3]), np.array([5, 6, 7]), np.array([50, 60, 70]))
    taken = some.of(np.array([2, 0, 1, 0]))
    assert taken.counts.tolist() == [1, 2, 0, 2]
    assert taken.bank.tolist() == [7, 5, 6, 5, 6]
    assert taken.size.tolist() == [70, 50, 60, 50, 60]


def test_reads_of_one_tensor_come_before_those_of_another():
    both = Traffic(np.array([0, 2, 3]), np.array([1, 2, 3]), np.array([1, 2, 3])).before(
        single(np.array([8, 9]), np.array([8, 9]))
    )
    assert both.starts.tolist() == [0, 3, 5]
    assert both.bank.tolist() == [1, 2, 8, 3, 9]
    assert both.size.tolist() == both.bank.tolist()


def test_a_box_stays_within_its_tensor():
    with pytest.raises(DataError, match="beyond its tensor"):
        traffic(fresh((4,), (2,), 0, 2), np.array([[[0], [5]]]), 2)


def test_barriers_are_named_by_a_hash_of_name_and_cores():
    # the first lines of all cores but 0 and 1 in out_deepseekv3/traces/node_0
    piece = barriers("cross_layer", np.array([[0], [56]]), [range(36)] * 2, 0, 36)
    lines, arguments, _ = piece.instructions
    assert piece.comment == "cross_layer"
    assert lines[:, 1].tolist() == [*range(36)] * 2
    names = ["".join(f"{half:08x}" for half in row[:2]) for row in arguments.tolist()]
    assert (names[0], names[36]) == ("853de71e442444d4", "3a819e2c456f8eb5")


def test_only_cores_of_the_node_wait_and_barriers_within_it_say_so():
    within = barriers("x_barrier_reduce", np.array([[1]]), [[36, 38]], 36, 4)
    assert within.comment == "x_intrabarrier_reduce"
    assert within.instructions.lines[:, 1].tolist() == [0, 2]
    across = barriers("x_barrier_reduce", np.array([[1]]), [[0, 36]], 36, 4)
    assert across.comment == "x_barrier_reduce"
    assert across.instructions.lines[:, 1].tolist() == [0]
