"""Arguments of kernels as plain Python takes them, and tables that kernels fill."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels import plain

PAIR = np.dtype([("whole", np.int64), ("part", np.float64)])


@pytest.fixture(params=[False, True])
def compiled(request, monkeypatch):
    monkeypatch.setattr(plain, "compiling", lambda: request.param)
    return request.param


def test_a_blank_table_is_written_and_read_in_one_way(compiled):
    table = plain.blank(PAIR, 2, 3)
    for i in range(2):
        for j in range(3):
            assert (table[i][j].whole, table[i][j].part) == (0, 0.0)
            table[i][j].whole += 10 * i + j
            own = table[i][j]
            own.part = 0.5 * own.whole
    assert isinstance(table, np.ndarray) == compiled
    assert np.array_equal(plain.column(table, "whole"), [[0, 1, 2], [10, 11, 12]])
    assert np.array_equal(plain.column(table, "part"), [[0, 0.5, 1], [5, 5.5, 6]])


def test_one_blank_record_and_the_length_of_a_table(compiled):
    record = plain.blank(PAIR)
    record.whole = 7
    assert (record.whole, record.part) == (7, 0.0)
    assert plain.blank(PAIR, 4).shape == (4,)
    assert len(plain.column(plain.blank(PAIR, 0), "whole")) == 0


def test_arguments_are_left_to_compiled_kernels_and_made_plain_for_python(compiled):
    rows = np.array([(1, 0.5), (2, 1.5)], PAIR).view(np.recarray)
    found = plain.plain(rows)
    assert [row.part for row in found] == [0.5, 1.5]
    assert (found is rows) == compiled
    column = plain.plain(np.array([1.0, 2.0]))
    assert column.shape == (2,)
    assert column.size == 2
    assert isinstance(column[0], float)
