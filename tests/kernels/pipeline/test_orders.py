"""Orders of schedules: PyTorch's tables, tables by hand, and what holds of all."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from perfmodel.base.pipelines import SCHEDULES
from perfmodel.kernels.pipeline.actions import (
    BIDIRECTIONAL,
    FORWARD,
    LOOP,
    WAVE,
    WEIGHT,
    place_stages,
)
from perfmodel.launch.torchtitan import NAMES
from perfmodel.strategy.pipelines import named_pipeline, schedule_rows
from tests.data import TORCH_SCHEDULES, needed
from tests.kernels.pipeline.cases import random_pipeline

TORCH = {theirs: ours for ours, theirs in NAMES.items()}


def rows(schedule, ranks, micro_batches, chunks=None, group_size=None):
    pipeline = named_pipeline(schedule, ranks, micro_batches, chunks, group_size)
    return [" ".join(map(str, row)) for row in schedule_rows(pipeline.order)]


def test_orders_are_pytorchs():
    """PyTorch 2.13, torch.distributed.pipelining.schedules."""
    tables = json.loads(gzip.decompress(needed(TORCH_SCHEDULES).read_bytes()))["tables"]
    for table in tables[::7]:
        order = named_pipeline(
            TORCH[table["schedule"]], table["ranks"], table["microbatches"], table["chunks"]
        ).order
        assert schedule_rows(order) == table["order"]
        assert order.rank_of.tolist() == table["stage_to_rank"]


def test_1f1b_by_hand():
    """Narayanan et al. 2021 (arXiv:2104.04473), figure 4, top, with three ranks."""
    assert rows("1f1b", 3, 4) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_eager_1f1b_by_hand():
    """Zhuang et al. 2022 (arXiv:2211.05322), figure 6: 2 (p - s) - 1 micro-batches under way."""
    assert rows("eager_1f1b", 2, 4) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3",
    ]


def test_groups_of_interleaved_by_hand():
    """Megatron-Core, schedules.py, get_schedule_table: 5 micro-batches, 2 chunks, groups of 3."""
    assert rows("interleaved", 1, 5, 2, group_size=3) == [
        "0F0 0F1 0F2 1F0 1B0 1F1 1B1 1F2 1B2 0F3 0B0 0F4 0B1 1F3 0B2 1F4 1B3 1B4 0B3 0B4"
    ]


def test_zero_bubble_h1_by_hand():
    """Qi et al. 2023 (arXiv:2401.10241), figure 3, top: weights stay r micro-batches behind."""
    assert rows("zb_h1", 3, 4) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ]


def test_zero_bubble_h2_by_hand():
    """The same, bottom: twice as many ahead, twice as many behind."""
    assert rows("zb_h2", 2, 4) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3",
    ]


def test_dualpipe_begins_as_in_the_paper():
    """DeepSeek-V3 (arXiv:2412.19437), figure 5: 8 ranks, 20 micro-batches, device 0."""
    row = schedule_rows(named_pipeline("dualpipe", 8, 20).order)[0]
    assert row[:6] == [f"0F{i}" for i in range(6)]  # before the other end's first arrives
    assert row[6:8] == ["0F6", "15F10"]
    assert row[8:11] == ["15I10", "15W10", "15F11"]  # ready, and no gap to wait in
    assert row[17] == ["0F7", "15B13"]


def test_both_ends_of_dualpipe_do_the_same():
    order = named_pipeline("dualpipe", 6, 16).order
    for rank, row in enumerate(schedule_rows(order)):
        other = schedule_rows(order)[5 - rank]
        assert str(row).translate(str.maketrans("", "", "0123456789")) == str(other).translate(
            str.maketrans("", "", "0123456789")
        )


def test_placements():
    assert place_stages(LOOP, 3, 2).tolist() == [0, 1, 2, 0, 1, 2]
    assert place_stages(WAVE, 3, 4).tolist() == [0, 1, 2, 2, 1, 0] * 2
    assert place_stages(BIDIRECTIONAL, 4, 1).tolist() == [0, 1, 2, 3, 3, 2, 1, 0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_sees_every_micro_batch_once(schedule):
    random = np.random.default_rng(2)
    for _ in range(20):
        order = random_pipeline(random, schedule).order
        depth, each = order.rank_of.size // order.copies, order.micro_batches // order.copies
        expected = {
            (stage, stage // depth * each + micro_batch)
            for stage in range(order.rank_of.size)
            for micro_batch in range(each)
        }
        for kinds in ((FORWARD,), (1, 2), (1, WEIGHT)):
            among = np.isin(order.kind, kinds)
            seen = list(
                zip(order.stage[among].tolist(), order.micro_batch[among].tolist(), strict=True)
            )
            assert len(seen) == len(set(seen))
            assert set(seen) == expected
