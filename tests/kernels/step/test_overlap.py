"""Communication beside compute: what shows, how sure that is, and what it costs the compute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from perfmodel.kernels.step.overlap import (
    alone_share,
    beside_sends,
    drives_links,
    hidden_width,
    hide,
    overlap_tax,
    width_of,
)
from perfmodel.kernels.step.placement import Group, Groups
from perfmodel.kernels.step.tables import WIDTHS

INSIDE, OUTSIDE = 0.5, 0.125


class Few(NamedTuple):
    """The settings that count here: nodes of eight."""

    domain: int = 8
    tax_inside: float = INSIDE
    tax_outside: float = OUTSIDE


def group(members: int, stride: int) -> Group:
    return Group(members, stride, 0, stride, stride)


def test_what_outlasts_compute_shows_and_the_rest_slows_it():
    assert hide(4.0, 3.0, 0.0, 0.0) == 1.0
    assert hide(4.0, 9.0, 1.0, 0.25) == 1.0 + 0.25 * 3.0  # the last bucket, and the tax
    assert hide(4.0, 0.0, 1.0, 0.25) == 4.0


def test_all_of_an_error_shows_where_nothing_hides():
    assert hidden_width(4.0, 0.0, 0.0, 0.0, 0.25) == 1.0
    assert hidden_width(4.0, 9.0, 0.0, 0.0, 0.25) == 0.0
    assert hidden_width(4.0, 4.0, 0.0, 0.0, 0.25) == 0.5  # slower shows, faster does not


def test_small_middle_and_large_operations_have_widths_of_their_own():
    regimes = np.rec.array([(1e6, 1e8, 0.3, 0.2, 0.1)], dtype=WIDTHS)[0]
    assert [width_of(size, regimes) for size in (1.0, 1e6, 1e7, 1e8)] == [0.3, 0.2, 0.2, 0.1]


@pytest.mark.parametrize(
    ("members", "stride", "drives"),
    [
        (1, 1, False),  # alone
        (8, 1, True),  # a node
        (16, 1, True),  # two nodes, eight of each
        (4, 4, True),  # two nodes, two of each
        (2, 8, False),  # one of each node
        (64, 16, False),
    ],
)
def test_groups_with_one_member_a_node_drive_adapters_alone(members, stride, drives):
    assert drives_links(group(members, stride), Few()) == drives


@pytest.mark.parametrize(
    ("dense", "sparse", "experts", "tax"),
    [
        (group(2, 8), group(16, 1), False, OUTSIDE),  # no experts: their group does not count
        (group(2, 8), group(4, 4), True, INSIDE),  # experts drive links inside nodes
        (group(1, 1), group(4, 4), True, INSIDE),
        (group(16, 1), group(2, 8), True, INSIDE),
        (group(2, 8), group(2, 8), True, OUTSIDE),
    ],
)
def test_compute_pays_for_whichever_group_drives_device_links(dense, sparse, experts, tax):
    assert overlap_tax(Groups(dense, sparse, 1), experts, Few()) == tax


def test_sends_and_collectives_share_links_until_one_is_done():
    wait, lost, window = beside_sends(4.0, 10.0, 1.0, True, 0.0)
    assert (wait, lost, window) == (1.0, 0.0, 11.0)  # half of the links for twice their time
    wait, lost, window = beside_sends(4.0, 10.0, 1.0, False, 0.0)
    assert (wait, lost, window) == (0.0, 1.0, 10.0)
    assert beside_sends(4.0, 10.0, 0.0, True, 0.0) == (0.0, 0.0, 10.0)


def test_without_a_pipeline_the_first_forward_and_the_last_backward_are_alone():
    assert alone_share(8, 1, 1) == 1 / 8
    assert alone_share(1, 1, 1) == 1.0


@pytest.mark.parametrize(("m", "p", "v"), [(16, 4, 1), (64, 8, 1), (16, 4, 3), (128, 8, 4)])
def test_warm_up_is_alone_on_the_mean_of_all_ranks(m, p, v):
    """Megatron-Core, schedules.py: 2 (p - r - 1) + (v - 1) p chunks, or p - r - 1, and one."""
    chunks = [(2 * (p - r - 1) + (v - 1) * p if v > 1 else p - r - 1) + 1 for r in range(p)]
    assert alone_share(m, p, v) == pytest.approx(sum(chunks) / p / (m * v))


def test_never_more_than_all_and_less_with_more_micro_batches():
    assert alone_share(1, 16, 1) == 1.0
    shares = [alone_share(m, 8, 2) for m in (8, 16, 64, 256)]
    assert shares == sorted(shares, reverse=True)
