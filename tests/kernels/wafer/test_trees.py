"""Groups, stages and ways of trees of chains."""

from __future__ import annotations

import pytest

from perfmodel.kernels.wafer import reduce, trees


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("side", [5, 9])
def test_stages_of_a_tree_are_those_of_he(levels: int, side: int) -> None:
    """K N^{1/K} / 2 routing stages, about N / 2 hops there and N / 2 back."""
    cores = float(side**levels)
    _, stages, root, contention, hops, longest = trees.tree_reduce_cycles(
        cores, 7.0, float(levels), 1.0, 5.0
    )
    assert stages == levels * (side // 2)
    assert root == longest == (cores - 1) / 2
    assert contention == levels * 2 * 7
    assert hops >= 7 * (cores - 1)
    counts = reduce.all_reduce_counts(reduce.ONE_LEVEL + levels - 1, cores, 14.0, 2.0)
    assert counts == (contention, hops + 7 * (cores - 1), 2 * (cores - 1), cores - 1, stages + 1)


@pytest.mark.parametrize(
    ("members", "levels", "size"),
    [
        (420, 2, 20),
        (660, 2, 22),
        (540, 2, 20),
        (360, 2, 18),
        (8, 2, 2),
        (31, 2, 8),  # 31 is a prime: groups of 8, 8, 8 and 7
        (27, 3, 3),
        (420, 1, 420),
        (2, 4, 2),
    ],
)
def test_groups_are_as_even_as_can_be(members: int, levels: int, size: int) -> None:
    assert trees.group_size(float(members), float(levels)) == size


def test_streams_that_meet_share_a_ramp() -> None:
    """Both at once take 2 W; far apart, the later one counts."""
    assert trees.meeting_cycles(10.0, 10.0, 6.0) == 22
    assert trees.meeting_cycles(10.0, 40.0, 6.0) == 46
    assert trees.meeting_cycles(10.0, 13.0, 6.0) == 22
    assert trees.meeting_cycles(-1.0, 13.0, 6.0) == 19
    assert trees.meeting_cycles(-1.0, -1.0, 6.0) == 0
