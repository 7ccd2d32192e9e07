"""A phase's formula at its limits."""

from __future__ import annotations

import math

import pytest

from perfmodel.kernels.wafer import reduce


def test_the_larger_of_contention_and_way() -> None:
    """max(C, E/N + L) + (2 T_R + 1) D (Luczynski et al., HPDC 2024)."""
    assert reduce.phase_cycles(90.0, 100.0, 10.0, 20.0, 3.0, 2.0) == 90 + 15
    assert reduce.phase_cycles(10.0, 100.0, 10.0, 20.0, 3.0, 2.0) == 30 + 15
    assert reduce.phase_cycles(10.0, 100.0, 10.0, 20.0, 3.0, 2.0, 7.0) == 30 + 36
    assert reduce.phase_cycles(0.0, 0.0, 0.0, 0.0, 0.0, 2.0) == 0.0


@pytest.mark.parametrize(
    ("elements", "width", "found"), [(1, 2, 1), (4, 2, 2), (5, 2, 3), (3, 1, 3)]
)
def test_wavelets_are_whole(elements: int, width: int, found: int) -> None:
    assert reduce.wavelets_of(float(elements), float(width)) == found


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("side", [5, 9])
def test_stages_of_a_tree_are_those_of_he(levels: int, side: int) -> None:
    """K N^{1/K} / 2 routing stages, about N / 2 hops there and N / 2 back."""
    cores = float(side**levels)
    _, stages, root, contention, hops, longest = reduce.tree_reduce_cycles(
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
    assert reduce.group_size(float(members), float(levels)) == size


def test_streams_that_meet_share_a_ramp() -> None:
    """Both at once take 2 W; far apart, the later one counts."""
    assert reduce.meeting_cycles(10.0, 10.0, 6.0) == 22
    assert reduce.meeting_cycles(10.0, 40.0, 6.0) == 46
    assert reduce.meeting_cycles(10.0, 13.0, 6.0) == 22
    assert reduce.meeting_cycles(-1.0, 13.0, 6.0) == 19
    assert reduce.meeting_cycles(-1.0, -1.0, 6.0) == 0


RAMP = 2.0
STEP = 2 * RAMP + 1
PLAIN = (2.0, 1.0, 0.0, RAMP)  # fp16 in wavelets of 32 bit, one cycle a hop


def code(name: str) -> int:
    return reduce.ALGORITHMS.index(name)


@pytest.mark.parametrize("cores", [2, 3, 17, 512])
@pytest.mark.parametrize("wavelets", [1, 16, 1024])
def test_chain_is_that_of_luczynski(cores: int, wavelets: int) -> None:
    """B + (2 T_R + 2) (P - 1), and the formula of a phase with its counts."""
    found = reduce.reduce_cycles(code("chain"), float(cores), 2.0 * wavelets, *PLAIN)
    assert found == wavelets + (2 * RAMP + 2) * (cores - 1)
    links = cores - 1.0
    assert found == reduce.phase_cycles(wavelets, wavelets * links, links, links, links, RAMP)


def test_a_message_is_that_of_luczynski() -> None:
    """B + P - 1 + 2 T_R + 1."""
    assert reduce.message_cycles(100.0, 63.0, 1.0, RAMP) == 100 + 63 + STEP


def test_two_level_of_a_wafer_row() -> None:
    """420 cores: 20 stages of 21 groups of 20, 209 hops there and 210 back."""
    one = reduce.all_reduce_cycles(code("two_level"), 420.0, 2.0, 2.0, 1.0, 20.0, RAMP)
    hops = 10 + 10 * 20 + max(210, 209)
    assert one == pytest.approx(hops + 21 * (STEP + 20) + 3, abs=2)


def test_ring_takes_the_chunks_of_all() -> None:
    """2 (P - 1) steps of a chunk; long vectors approach 2 W."""
    cores, wavelets = 8.0, 8000.0
    found = reduce.all_reduce_cycles(code("ring"), cores, 2 * wavelets, *PLAIN)
    assert found == 14 * (1000 + STEP) + 4 * 7 - 3
    assert reduce.all_reduce_cycles(code("ring"), 2.0, 4.0, *PLAIN) == 2 * (1 + STEP + 1)


@pytest.mark.parametrize("name", reduce.ALGORITHMS)
def test_nothing_to_do_takes_no_time(name: str) -> None:
    for cores, elements in ((1.0, 100.0), (16.0, 0.0)):
        assert reduce.all_reduce_cycles(code(name), cores, elements, *PLAIN) == 0.0
        assert reduce.reduce_cycles(code(name), cores, elements, *PLAIN) == 0.0
        assert reduce.all_gather_cycles(code(name), cores, elements, *PLAIN) == 0.0
        assert reduce.all_reduce_counts(code(name), cores, elements, 2.0) == (0.0,) * 5


@pytest.mark.parametrize("name", reduce.ALGORITHMS)
def test_times_grow_with_vectors_and_latencies(name: str) -> None:
    algorithm = code(name)
    for cores in (2.0, 7.0, 60.0):
        base = reduce.all_reduce_cycles(algorithm, cores, 64.0, *PLAIN)
        assert reduce.all_reduce_cycles(algorithm, cores, 640.0, *PLAIN) > base
        assert reduce.all_reduce_cycles(algorithm, cores, 64.0, 2.0, 2.0, 0.0, RAMP) > base
        assert reduce.all_reduce_cycles(algorithm, cores, 64.0, 2.0, 1.0, 9.0, RAMP) > base
        contention, hops, links, longest, depth = reduce.all_reduce_counts(
            algorithm, cores, 64.0, 2.0
        )
        assert links == 2 * (cores - 1)
        assert hops / links <= contention * (2 if name == "chain" else 1) * 2
        assert min(contention, hops, longest, depth) > 0
        # No algorithm is faster than what its busiest core takes, or than its longest way.
        assert base >= contention
        assert base >= longest


def test_trees_beat_chains_on_long_rows_and_rings_on_short_vectors() -> None:
    times = {
        name: reduce.all_reduce_cycles(code(name), 420.0, 32.0, 2.0, 1.0, 20.0, RAMP)
        for name in reduce.ALGORITHMS
    }
    assert min(times, key=lambda name: times[name]) in ("three_level", "four_level", "two_level")
    assert times["two_level"] < times["one_level"] < times["chain"] < times["ring"]


def test_rectangles_add_their_sides() -> None:
    one = reduce.grid_all_reduce_cycles(code("chain"), 1.0, 9.0, 8.0, *PLAIN)
    assert one == reduce.all_reduce_cycles(code("chain"), 9.0, 8.0, *PLAIN)
    both = reduce.grid_all_reduce_cycles(code("chain"), 5.0, 9.0, 8.0, *PLAIN)
    assert both == (4 + 8 * 6) + (4 + 4 * 6) + (4 + 12 + STEP)
    assert math.isclose(
        reduce.grid_all_reduce_cycles(code("ring"), 5.0, 9.0, 8.0, *PLAIN),
        reduce.all_reduce_cycles(code("ring"), 9.0, 8.0, *PLAIN)
        + reduce.all_reduce_cycles(code("ring"), 5.0, 8.0, *PLAIN),
    )
