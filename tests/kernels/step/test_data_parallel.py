"""From when buckets are ready, and which collectives of a bucket run side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from perfmodel.kernels.collective.algorithms import ALL_REDUCE, REDUCE_SCATTER
from perfmodel.kernels.step.data_parallel import on_other_links, ready_window, whole_stage
from perfmodel.kernels.step.overlap import hide
from perfmodel.kernels.step.placement import Group, Groups, leaves_domain
from perfmodel.kernels.step.sharding import gradient_transfers
from perfmodel.kernels.step.tables import WIDTHS


class Few(NamedTuple):
    """The settings that count here."""

    domain: int = 8
    reduce_bytes: float = 2.0
    copies_bytes: float = 4.0
    reduces_whole: bool = False


def test_one_chunk_has_a_pass_of_one_micro_batch():
    assert ready_window(8.0, 5.0, 4, 1) == 5.0


def test_interleaved_chunks_are_ready_one_after_the_other():
    # Two chunks, four stages: 5 s of the second chunk's gradients have the 4 passes of 1 s of the
    # first and 1 s of their own; 5 s of the first have 1 s. The second's are done 1 s before the
    # end, as the four passes are shorter than they are: 10 s less 5 s remain.
    assert hide(10.0, ready_window(10.0, 2.0, 4, 2), 0.0, 0.0) == 5.0
    # Of 3 s each, the second's are done in time; of the first's, 2 s show.
    assert hide(6.0, ready_window(6.0, 2.0, 4, 2), 0.0, 0.0) == pytest.approx(2.0)
    # Of 1 s each nothing shows.
    assert hide(2.0, ready_window(2.0, 2.0, 4, 2), 0.0, 0.0) == 0.0


@pytest.mark.parametrize("time", [0.5, 2.0, 7.0, 90.0])
def test_more_chunks_and_stages_never_show_more(time):
    shown = [
        [hide(time, ready_window(time, 3.0, p, v), 0.0, 0.0) for p in (2, 4, 16)]
        for v in (1, 2, 4, 8)
    ]
    for row in shown:
        assert row == sorted(row, reverse=True)
    for column in zip(*shown, strict=True):
        assert list(column) == sorted(column, reverse=True)
        assert column[0] == max(0.0, time - 3.0)


@pytest.mark.parametrize(
    ("group", "apart"),
    [
        (Group(32, 1, 8, 1, 8), True),  # sets of a node, copies in four nodes
        (Group(32, 1, 4, 1, 4), False),  # two copies share a node
        (Group(32, 1, 16, 1, 16), False),  # sets leave the node, too
        (Group(32, 1, 0, 1, 1), False),  # no copies
        (Group(4, 32, 1, 32, 32), True),  # sets of one device
    ],
)
def test_copies_use_other_links_where_sets_fill_a_node(group, apart):
    assert on_other_links(group, Few()) == apart


@pytest.mark.parametrize(
    ("zero", "whole", "kind"),
    [
        (0, False, ALL_REDUCE),
        (1, False, REDUCE_SCATTER),
        (1, True, ALL_REDUCE),
        (2, True, REDUCE_SCATTER),
        (3, True, REDUCE_SCATTER),
    ],
)
def test_gradients_are_reduced_whole_where_the_software_does_so(zero, whole, kind):
    settings = Few(reduces_whole=whole)
    first, second = gradient_transfers(zero, 10.0, Group(16, 2, 8, 2, 16), settings)
    assert first.kind == kind
    assert first.size == 20.0
    shards = kind == REDUCE_SCATTER
    assert first.members == (8 if shards else 16)
    assert second.members == (2 if shards else 1)
    # the shard of eight ranks, in twice the bytes
    assert second.size == (20.0 / 8 * 2 if shards else 20.0)


@pytest.mark.parametrize(("members", "stride", "leaves"), [(1, 32, False), (2, 32, True)])
def test_one_device_alone_never_leaves_its_node(members, stride, leaves):
    assert leaves_domain(Group(members, stride, 0, 1, 1), Few()) == leaves


class Interleaved(NamedTuple):
    """A strategy of two stages, four chunks each."""

    zero_stage: int = 1
    pipeline_parallel: int = 2
    virtual_pipeline: int = 4


class Whole(NamedTuple):
    """Parameters of a stage."""

    weights: float = 100.0
    experts: float = 0.0


class Windows(NamedTuple):
    """Passes of a micro-batch through it [s]."""

    forward_window: float = 40.0
    backward_window: float = 80.0


class Overlaps(NamedTuple):
    """The settings that count here: buckets of a hundredth of a stage, no tax."""

    overlap_update: bool
    domain: int = 8
    gradient_bytes: float = 2.0
    reduce_bytes: float = 2.0
    bucket_bytes: float = 2.0
    bucket_bytes_per_rank: float = 0.0
    overlap_reduce: bool = True
    overlap_gather: bool = True
    tax_inside: float = 0.0
    tax_outside: float = 0.0
    collective_widths: np.record = np.rec.array([(1e6, 1e8, 0.0, 0.0, 0.0)], dtype=WIDTHS)[0]


@pytest.mark.parametrize(
    ("overlap", "virtual", "update", "shown"),
    [
        (False, 4, 9.0, 0.12 + 0.08),  # the last bucket of 12 s, the first of 8 s
        (True, 4, 0.0, 3.0 + 2.0),  # a chunk of either
        (True, 4, 2.0, 3.0 + 0.5),  # three quarters of the update hide the gather
        (True, 4, 9.0, 3.0),  # all of it
        (True, 1, 9.0, 0.12 + 0.08),  # one chunk is updated at once
    ],
)
def test_the_first_chunk_is_gathered_beside_the_update_of_the_others(
    overlap, virtual, update, shown
):
    group = Group(4, 1, 0, 1, 1)
    reduced, gathered = whole_stage(
        Interleaved(virtual_pipeline=virtual),
        Whole(),
        12.0,
        0.0,
        8.0,
        update,
        Groups(group, group, 4),
        Windows(),
        0.0,
        True,
        Overlaps(overlap),
    )
    assert (reduced.total, gathered.total) == (12.0, 8.0)
    assert (reduced.width + gathered.width, reduced.waits + gathered.waits) == (0.0, 0.0)
    assert reduced.exposed + gathered.exposed == pytest.approx(shown)
