"""Closed forms of sums over rows of cores, against formulas of papers."""

from __future__ import annotations

import math

import pytest

from perfmodel.kernels.wafer import phases, reduce

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
    assert found == phases.phase_cycles(wavelets, wavelets * links, links, links, links, RAMP)


def test_a_message_is_that_of_luczynski() -> None:
    """B + P - 1 + 2 T_R + 1."""
    assert phases.message_cycles(100.0, 63.0, 1.0, RAMP) == 100 + 63 + STEP


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
