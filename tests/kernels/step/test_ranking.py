"""The best and the front so far, against all that came."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.kernels.step.ranking import (
    BEST,
    COUNTS,
    FRONT,
    PENDING,
    Ranking,
    keep_best,
    keep_front,
    leave_pending,
    might_rank,
)


def blank(top=3, objectives=3, room=64) -> Ranking:
    """A ranking that has seen nothing."""
    return Ranking(
        np.zeros(objectives, np.int64),
        np.ones(objectives),
        np.zeros(3),
        0,
        True,
        np.zeros(top),
        np.full(top, -1),
        np.zeros((room, objectives)),
        np.full(room, -1),
        np.zeros(room, np.int64),
        np.zeros(COUNTS, np.int64),
    )


def non_dominated(costs) -> list[int]:
    """Numbers of what no other is as good as in everything and better in anything; first ones."""
    front = []
    for number, own in enumerate(costs):
        alike = any(other == own for other in costs[:number])
        beaten = any(
            all(a <= b for a, b in zip(other, own, strict=True)) and other != own for other in costs
        )
        if not alike and not beaten:
            front.append(number)
    return front


FEW = st.integers(0, 5).map(float)
TRIPLES = st.lists(st.tuples(FEW, FEW, FEW), min_size=1, max_size=20)


@given(TRIPLES, st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_lowest_are_kept_in_whatever_order_they_come(costs, top, random) -> None:
    ranking, arrivals = blank(top), list(enumerate(costs))
    random.shuffle(arrivals)
    for number, cost in arrivals:
        keep_best(number, cost[0], ranking)
    expected = sorted((cost[0], number) for number, cost in enumerate(costs))[:top]
    known = ranking.counts[BEST]
    assert known == len(expected)
    found = zip(ranking.cost[:known].tolist(), ranking.best[:known].tolist(), strict=True)
    assert list(found) == expected


@given(TRIPLES, st.randoms(use_true_random=False))
def test_the_front_is_what_nothing_beats(costs, random) -> None:
    ranking, arrivals = blank(), list(enumerate(costs))
    random.shuffle(arrivals)
    for number, cost in arrivals:
        keep_front(number, np.array(cost), ranking)
    expected = non_dominated([cost[1:] for cost in costs])
    count = ranking.counts[FRONT]
    assert sorted(ranking.front[:count].tolist()) == expected
    for number, kept in zip(ranking.front[:count], ranking.front_cost[:count], strict=True):
        assert kept[1:].tolist() == list(costs[number][1:])
    assert ranking.counts[PENDING] == 0


@given(TRIPLES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_nothing_that_belongs_is_ruled_out(costs, top, random) -> None:
    """Whatever came before: what would be kept may rank, by its costs or by lower ones."""
    ranking, arrivals = blank(top), list(range(len(costs)))
    random.shuffle(arrivals)
    for count, number in enumerate(arrivals):
        own, before = np.array(costs[number]), sorted(arrivals[: count + 1])
        so_far = [costs[one] for one in before]
        place = before.index(number)
        front = non_dominated([cost[1:] for cost in so_far])
        if place in ranked(so_far, top) or place in front:
            assert might_rank(own, ranking)
            assert might_rank(own - 0.5, ranking)
        keep_best(number, own[0], ranking)
        keep_front(number, own, ranking)
    assert not might_rank(np.full(3, 9.0), ranking) or ranking.counts[BEST] < top


def ranked(costs, top) -> list[int]:
    return sorted(range(len(costs)), key=lambda number: (costs[number][0], number))[:top]


def test_what_equals_one_of_the_front_may_take_its_place() -> None:
    ranking = blank(top=1)
    keep_best(9, 0.0, ranking)
    keep_front(9, np.array([1.0, 2.0, 3.0]), ranking)
    assert might_rank(np.array([1.0, 2.0, 3.0]), ranking)  # it may have a lower number
    assert not might_rank(np.array([1.0, 2.0, 3.5]), ranking)


def test_a_full_front_says_that_there_is_no_room() -> None:
    ranking = blank(room=2)
    for number in range(3):
        keep_front(number, np.array([0.0, number, -number]), ranking)
    assert ranking.counts[FRONT] == 2
    assert ranking.counts[PENDING] > ranking.pending.size


def test_pending_counts_on_beyond_its_room() -> None:
    ranking = blank(room=2)
    for number in (7, 8, 9):
        leave_pending(number, ranking)
    assert ranking.pending.tolist() == [7, 8]
    assert ranking.counts[PENDING] == 3
