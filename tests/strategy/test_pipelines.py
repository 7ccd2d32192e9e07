"""Pipelines by name, and what is refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError, StrategyError
from perfmodel.kernels.pipeline.actions import Order
from perfmodel.strategy.pipelines import (
    format_schedule,
    linked_pipeline,
    named_pipeline,
    parse_schedule,
    read_schedule,
    schedule_rows,
    usual_chunks,
    usual_group,
    write_schedule,
)
from tests.data import table_of
from tests.kernels.pipeline.cases import random_pipeline


def test_a_pipeline_is_made_once():
    assert named_pipeline("1f1b", 4, 8) is named_pipeline("1f1b", 4, 8, 1)


def test_an_order_of_too_many_passes_is_refused_before_it_is_made():
    with pytest.raises(DataError, match=r"order of 400,000,000 passes would take about .*--large"):
        named_pipeline("1f1b", 4, 10**8)


def test_groups_are_pytorchs():
    """PyTorch 2.13, ScheduleInterleaved1F1B: 4 ranks and 10 micro-batches make two groups of 5."""
    assert usual_group(4, 10) == 5
    assert usual_group(4, 3) == 3
    assert usual_group(4, 8) == 4
    assert usual_group(4, 13) == 0


def test_a_v_has_two_chunks_unless_said():
    assert [usual_chunks(name) for name in ("1f1b", "interleaved", "zb_v", "hanayo")] == [
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    table_of(__file__, "what_cannot_be_is_refused_in_one_line"),
)
def test_what_cannot_be_is_refused_in_one_line(arguments, text):
    with pytest.raises(StrategyError) as caught:
        named_pipeline(*arguments)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def order(kinds, stages, batches, *, rank_of=(0, 1), first=(0, 2, 4), paired=()):
    columns = (np.array(column) for column in (kinds, stages, batches))
    marks = np.isin(np.arange(len(kinds)), paired)
    return Order(np.array(first), *columns, marks, np.array(rank_of), 1, 1)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            order([0, 1, 1, 0], [0, 0, 1, 1], [0] * 4),
            "stage 1 (rank 1) runs the backward pass of micro-batch 0 before its forward pass",
        ),
        (
            order([0, 1, 0, 0], [0, 0, 1, 1], [0] * 4),
            "stage 1 runs the forward pass of micro-batch 0 twice",
        ),
        (
            order([0, 1, 0, 1], [0, 0, 1, 0], [0] * 4),
            "rank 1 runs the backward pass of micro-batch 0 of stage 0, which is on rank 0",
        ),
        (
            order([0, 1, 0], [0, 0, 1], [0] * 3, first=(0, 2, 3)),
            "stage 1 never runs the backward pass of micro-batch 0",
        ),
        (
            order([0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 3]),
            "rank 1 runs the backward pass of micro-batch 3 on stage 1, which there is not",
        ),
        (
            order([0, 1, 0, 1], [0, 0, 1, 1], [0] * 4, paired=[3]),
            "stage 1 (rank 1) runs the backward pass of micro-batch 0 together with",
        ),
        (
            order([0, 3, 2, 0, 1], [0, 0, 0, 1, 1], [0] * 5, first=(0, 3, 5)),
            "stage 0 (rank 0) runs the backward pass for the weights of micro-batch 0 before that",
        ),
    ],
)
def test_a_wrong_order_names_stage_and_micro_batch(made, text):
    with pytest.raises(StrategyError) as caught:
        linked_pipeline(made)
    assert text in str(caught.value)


# torch 2.13, Schedule1F1B's order of two ranks and ScheduleDualPipeV's first rank, as _dump_csv
# writes them, with the sends that _prepare_schedule_with_comms adds and cells that are empty.
ONE_F_ONE_B = """\
0F0,0F1,,0B0,0B1
,1F0,1B0,1F1,1B1
"""
WITH_MOVES = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1
"""


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_table_is_read_as_pytorch_dumps_it():
    order = parse_schedule(ONE_F_ONE_B).order
    assert schedule_rows(order) == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    assert order.rank_of.tolist() == [0, 1]
    assert same(order, parse_schedule(WITH_MOVES).order)


def test_pairs_are_read_in_both_forms():
    cells = ["0F0", "1F0", "0F1", "1B0", ["1F1", "0B0"], "1B1", "0I1", "0W1"]
    text = "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1\n"
    order = parse_schedule(json.dumps({"order": [cells], "stage_to_rank": [0, 0]})).order
    assert schedule_rows(order) == [cells]
    assert format_schedule(order) == text
    assert same(order, parse_schedule(text).order)


def test_what_is_written_is_read_again(tmp_path):
    random = np.random.default_rng(3)
    for number in range(40):
        order = random_pipeline(random).order
        path = tmp_path / f"{number}.csv"
        write_schedule(order, path)
        assert same(order, read_schedule(path).order)
        document = {"order": schedule_rows(order), "stage_to_rank": order.rank_of.tolist()}
        packed = tmp_path / f"{number}.json.gz"
        packed.write_bytes(gzip.compress(json.dumps(document).encode()))
        assert same(order, read_schedule(packed).order)


@pytest.mark.parametrize(
    ("text", "message"),
    table_of(__file__, "what_is_wrong_is_one_line_with_the_place"),
)
def test_what_is_wrong_is_one_line_with_the_place(text, message):
    with pytest.raises(FormatError) as caught:
        parse_schedule(text, "s.csv")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"none\.csv"):
        read_schedule(tmp_path / "none.csv")
