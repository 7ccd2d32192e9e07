"""Names say in which fields strategies differ, and groups have their colours."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.figures import GREY, PALETTE
from perfmodel.report.plots.names import MOST_GROUPS, OTHERS, Groups, groups_of, in_common, names_of
from perfmodel.store.results import best, select
from perfmodel.store.subject import TRAINING

ROW = {
    "hardware": "dgx-h100", "tensor_parallel": 4, "pipeline_parallel": 2, "virtual_pipeline": 1,
    "zero_stage": 1, "data_parallel": 2, "micro_batch_size": 1, "recompute": "none",
}  # fmt: skip


def test_names_hold_what_differs_and_captions_what_does_not():
    rows = [ROW, {**ROW, "zero_stage": 3, "recompute": "full"}]
    assert names_of(rows, TRAINING, 40) == [
        "ZeRO-1, recompute none",
        "ZeRO-3, recompute full",
    ]
    assert in_common(rows, TRAINING) == "all: dgx-h100, TP4, PP2, micro-batch 1"


def test_degrees_of_one_are_silent_and_lines_break_between_parts():
    rows = [ROW, {**ROW, "tensor_parallel": 8, "virtual_pipeline": 5, "zero_stage": 2}]
    assert names_of(rows, TRAINING, 12) == ["TP4, ZeRO-1", "TP8, VP5,\nZeRO-2"]


def test_what_follows_from_others_is_named_where_nothing_else_differs():
    rows = [ROW, {**ROW, "data_parallel": 4}]
    assert names_of(rows, TRAINING) == ["DP2", "DP4"]


def test_one_row_has_a_name():
    assert names_of([ROW], TRAINING) == ["TP4, PP2"]


def test_rare_groups_are_others_in_grey():
    values = np.repeat(np.arange(MOST_GROUPS + 2), np.arange(1, MOST_GROUPS + 3))
    groups = Groups(values, "tensor_parallel", values.size)
    assert groups.labels[-1] == OTHERS
    assert len(groups.labels) == MOST_GROUPS
    assert groups.colour(MOST_GROUPS - 1) == GREY
    assert [groups.colour(at) for at in range(3)] == list(PALETTE[:3])
    assert np.count_nonzero(groups.of == MOST_GROUPS - 1) == 1 + 2 + 3


def test_groups_are_by_the_first_column_that_differs(training):
    chosen = select(training)
    assert groups_of(training, chosen, None).name == "hardware"
    assert groups_of(training, chosen, "tp").labels == ["TP1", "TP2", "TP4"]
    alone = select(training, "hardware == 'dgx-h100'")
    assert groups_of(training, alone, None).labels == [""]
    with pytest.raises(DataError, match="no variable 'modell'"):
        groups_of(training, chosen, "modell")


def test_names_of_results_tell_all_apart(training):
    rows = best(training, 40)
    names = names_of(rows, TRAINING)
    assert len(set(names)) == len(rows)
