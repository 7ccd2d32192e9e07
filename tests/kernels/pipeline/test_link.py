"""Linking: sequences in which all can run, and what is wrong with orders that have none."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline import link
from perfmodel.kernels.pipeline.actions import Order
from perfmodel.kernels.pipeline.link import link_order
from tests.kernels.pipeline.cases import random_pipeline

KINDS = "FBIW"


def order(*rows, rank_of=None, micro_batches=1):
    """Return an order of cells such as ``0F0``; one that ends in + runs with the next."""
    cells = [cell for row in rows for cell in row.split()]
    first = np.cumsum([0, *(len(row.split()) for row in rows)])
    columns = [(int(c[0]), KINDS.index(c[1]), int(c[2]), c.endswith("+")) for c in cells]
    stage, kind, batch, paired = (np.array(column) for column in zip(*columns, strict=True))
    rank_of = np.array(rank_of if rank_of is not None else range(len(rows)))
    return Order(first, kind, stage, batch, paired.astype(bool), rank_of, 1, micro_batches)


def test_a_sequence_has_everything_after_what_it_needs():
    random = np.random.default_rng(4)
    for _ in range(60):
        pipeline = random_pipeline(random)
        program = pipeline.program
        places = np.arange(program.action.size)
        assert (program.needs < places).all()
        assert sorted(program.action) == places.tolist()
        for rank in range(program.ranks):  # in the order of each rank
            own = program.action[program.rank == rank]
            assert (np.diff(own) == 1).all()
        made_by = program.rank[program.needs]
        assert (program.receives == ((program.needs >= 0) & (made_by != program.rank))).all()
        assert program.receives.sum() == program.sends.sum()


@pytest.mark.parametrize(
    ("rows", "problem", "place"),
    [
        (("0F0 0B0", "1F0 2B0"), link.UNKNOWN, 3),
        (("0F0 0B0", "0F0 1F0 1B0"), link.WRONG_RANK, 2),
        (("0F0 0B0 0B0", "1F0 1B0"), link.TWICE, 2),
        (("0F0 0B0 0W0", "1F0 1B0"), link.TWICE, 2),
        (("0F0 0B0", "1B0 1F0"), link.TOO_EARLY, 2),
        (("0F0 0W0 0I0", "1F0 1B0"), link.TOO_EARLY, 1),
        (("0F0+ 0B0", "1F0 1B0"), link.TOO_EARLY, 1),
        (("0F0+", "1F0 1B0"), link.UNPAIRED, 0),
        (("0F0 0I0+ 0W0", "1F0 1B0"), link.UNPAIRED, 1),
    ],
)
def test_what_is_wrong_is_found_where_it_is(rows, problem, place):
    program = link_order(order(*rows))
    assert (program.problem, program.place) == (problem, place)
    assert program.action.size == 0


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("0F0 0B0", "1B0"), None),
        (("0F0 0B0", "1F0"), (1, 0, 1)),
        (("0F0 0I0", "1F0 1I0 1W0"), (0, 0, 2)),
    ],
)
def test_what_is_missing_is_named(rows, found):
    program = link_order(order(*rows))
    if found is None:
        assert program.problem == link.TOO_EARLY
        return
    stage, micro_batch, work = found
    assert program.problem == link.MISSING
    assert program.found == 3 * (stage * 1 + micro_batch) + work


def test_ranks_that_wait_for_each_other_are_stuck():
    rows = ("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")
    program = link_order(order(*rows, micro_batches=2))
    assert program.problem == link.STUCK
    assert program.place == 1  # the backward pass of the first micro-batch


def test_a_pair_waits_for_all_that_either_needs():
    """Apart they could run: the second rank returns the first micro-batch after the pair's F."""
    apart = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")
    together = ("0F0 0F1+ 0B0 0B1", "1F0 1F1 1B0 1B1")
    assert link_order(order(*apart, micro_batches=2)).problem == link.FINE
    assert link_order(order(*together, micro_batches=2)).problem == link.STUCK
