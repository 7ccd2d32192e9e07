"""Which algorithms each collective has, as moves of blocks; those of two levels, and all-to-alls.

A group of n members lies in ``n / d`` domains of d neighbouring positions: position
``p = d * (domain of p) + (place of p)``. *Inside* is among the members of one domain,
*across* is among the members with the same place in all domains.

Letters
    n   members
    d   members of a domain
    k   equal parts that an algorithm cuts a buffer (or the block of an owner) into
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.workloads.schedules.moves import (
    REDUCER,
    Moves,
    aggregated_trees_all_gather,
    backwards,
    bidirectional_ring_all_gather,
    bidirectional_ring_broadcast,
    direct_all_gather,
    direct_broadcast,
    direct_gather,
    double_binary_tree_broadcast,
    doubling_all_gather,
    doubling_broadcast,
    doubling_gather,
    folded,
    moves,
    one_after_another,
    relabel,
    ring_all_gather,
    ring_broadcast,
    ring_gather,
    scatter_gather_broadcast,
    together,
    turned_ring_all_gather,
)

OneGroup = Callable[[int], Moves]


def grid(members: int, domain: int) -> Integers:
    """Positions as int64[domains, places]."""
    return np.arange(members, dtype=np.int64).reshape(-1, domain)


def all_gather_across(members: int, domain: int, across: OneGroup) -> Moves:
    """All-gather among equal places, all places at once; blocks are named by their owners."""
    positions = grid(members, domain)
    algorithm = across(positions.shape[0])
    return together(
        relabel(algorithm, place, place[:, None]) for place in positions.T if place.size > 1
    )


def all_gather_inside(
    members: int, domain: int, inside: OneGroup, blocks_of_domain: list[Integers]
) -> Moves:
    """All-gather inside the domains, all at once.

    ``blocks_of_domain[a][place]`` are the blocks that the member at that place of domain a
    brings along.
    """
    algorithm = inside(domain)
    return together(
        relabel(algorithm, own, blocks)
        for own, blocks in zip(grid(members, domain), blocks_of_domain, strict=True)
        if own.size > 1
    )


def hierarchical_all_gather(members: int, domain: int, inside: OneGroup, across: OneGroup) -> Moves:
    """Across by place, then inside with everything that the place has collected."""
    positions = grid(members, domain)
    collected = [positions.T for _ in positions]
    return one_after_another(
        [
            all_gather_across(members, domain, across),
            all_gather_inside(members, domain, inside, collected),
        ]
    )


def hierarchical_broadcast(members: int, domain: int, inside: OneGroup, across: OneGroup) -> Moves:
    """From 0 to the first place of every domain, then inside."""
    positions = grid(members, domain)
    return one_after_another(
        [
            relabel(across(positions.shape[0]), positions[:, 0]),
            together(relabel(inside(domain), own) for own in positions),
        ]
    )


def hierarchical_gather(members: int, domain: int, inside: OneGroup, across: OneGroup) -> Moves:
    """Inside to the first place of every domain, then across to 0."""
    positions = grid(members, domain)
    return one_after_another(
        [
            together(relabel(inside(domain), own, own[:, None]) for own in positions),
            relabel(across(positions.shape[0]), positions[:, 0], positions),
        ]
    )


def pairs(members: int) -> tuple[Integers, Integers, Integers]:
    """Sources, targets and blocks of an all-to-all; block ``n source + target``."""
    source, target = np.nonzero(~np.eye(members, dtype=bool))
    return source, target, source * members + target


def direct_all_to_all(members: int) -> Moves:
    """Everyone sends to everyone: one step."""
    source, target, block = pairs(members)
    return moves(0, source, target, block)


def ring_all_to_all(members: int) -> Moves:
    """Handed on from neighbour to neighbour; a block for the k-th one makes k hops."""
    source, target, block = pairs(members)
    distance = (target - source) % members
    step, pair = np.nonzero(np.arange(members - 1)[:, None] < distance[None, :])
    here = (source[pair] + step) % members
    return moves(step, here, (here + 1) % members, block[pair])


def hierarchical_all_to_all(members: int, domain: int) -> Moves:
    """Across to the own place of the target's domain, then inside to the target.

    Notes
    -----
    As DeepEP's dispatch between nodes: the own adapter carries everything for a node, the
    device links spread it there. A group that takes every tp-th device (tensor-parallel
    striding) has ``domain = devices of a node / tp``: that many adapters serve it.
    """
    source, target, block = pairs(members)
    return _two_hops(source, target, block, target // domain * domain + source % domain)


def rail_aligned_all_to_all(members: int, domain: int) -> Moves:
    """Inside to the target's place in the own domain, then across to the target.

    Notes
    -----
    NCCL's PXN (release notes 2.12): data reach the adapter on the target's rail over the
    device links, so no message crosses from rail to rail.
    """
    source, target, block = pairs(members)
    return _two_hops(source, target, block, source // domain * domain + target % domain)


def _two_hops(source: Integers, target: Integers, block: Integers, between: Integers) -> Moves:
    first = between != source
    second = between != target
    hops = [
        moves(0, source[first], between[first], block[first]),
        moves(1, between[second], target[second], block[second]),
    ]
    return together(hops)


@dataclass(frozen=True)
class Levels:
    """How a two-level algorithm works: domain size, and what it runs on each level."""

    domain: int
    inside: str
    across: str


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of one collective.

    Parameters
    ----------
    build : callable
        Members (and levels, if ``two_level``) to moves; the root is position 0.
    parts : callable
        Members to k.
    two_level : bool
        Whether it needs a domain.
    """

    build: Callable[..., Moves]
    parts: Callable[[int], int] = lambda members: 1
    two_level: bool = False


def _halves(members: int) -> int:
    return 2


def _blocks(members: int) -> int:
    return members


# What may run on a level of a two-level algorithm: one block per owner or message.
LEVEL_ALL_GATHERS: dict[str, OneGroup] = {
    "ring": ring_all_gather,
    "direct": direct_all_gather,
    "recursive_doubling": doubling_all_gather,
}
TURNED_ALL_GATHERS = {**LEVEL_ALL_GATHERS, "ring": turned_ring_all_gather}  # for their duals
LEVEL_BROADCASTS: dict[str, OneGroup] = {
    "recursive_doubling": doubling_broadcast,
    "ring": ring_broadcast,
    "direct": direct_broadcast,
}
LEVEL_GATHERS: dict[str, OneGroup] = {
    "direct": direct_gather,
    "recursive_doubling": doubling_gather,
    "ring": ring_gather,
}


def _two_levels(
    compose: Callable[[int, int, OneGroup, OneGroup], Moves], of: dict[str, OneGroup]
) -> Algorithm:
    def build(members: int, levels: Levels) -> Moves:
        return compose(members, levels.domain, of[levels.inside], of[levels.across])

    return Algorithm(build, two_level=True)


def _reduce_scatter(gather: Algorithm) -> Algorithm:
    def build(members: int, *levels: Levels) -> Moves:
        return backwards(gather.build(members, *levels), reduces=True)

    return Algorithm(build, gather.parts, gather.two_level)


def _scatter(gather: Algorithm) -> Algorithm:
    def build(members: int, *levels: Levels) -> Moves:
        return backwards(gather.build(members, *levels), reduces=False)

    return Algorithm(build, gather.parts, gather.two_level)


def _there_and_back(gather: OneGroup, there: OneGroup | None = None) -> OneGroup:
    """All-reduce as the dual of an all-gather or broadcast (of ``there``), followed by it."""

    def build(members: int) -> Moves:
        first = backwards((there or gather)(members), reduces=True)
        return one_after_another([first, gather(members)])

    return build


def _hierarchical_all_reduce(members: int, levels: Levels) -> Moves:
    """Reduce-scatter inside, all-reduce across by place, all-gather inside.

    The all-reduce across is a reduce-scatter, which leaves block p at member p, and an
    all-gather.
    """
    first = REDUCE_SCATTERS["hierarchical"].build(members, levels)
    return one_after_another([first, ALL_GATHERS["hierarchical"].build(members, levels)])


def _on_a_power_of_two(core_algorithm: OneGroup, parts: Callable[[int], int]) -> OneGroup:
    """All-reduce for any n: the rest hands its buffer over first and gets the result last.

    Thakur, Rabenseifner & Gropp 2005
    """

    def build(members: int) -> Moves:
        core, rest = folded(members)
        block = np.arange(parts(members))[None, :]
        unfold = moves(0, core[: rest.size, None], rest[:, None], block)
        middle = relabel(core_algorithm(core.size), core)
        return one_after_another([backwards(unfold, reduces=True), middle, unfold])

    return build


def _exchange_and_double(members: int) -> Moves:
    """Exchange whole partial sums with the neighbour over every bit; n a power of two."""
    index = np.arange(members)[None, :]
    step = np.arange(members.bit_length() - 1)[:, None]
    return _reducing(moves(step, index, index ^ (1 << step), 0))


def _reducing(forward: Moves) -> Moves:
    """Make every move add to what the target has (a dual of a dual)."""
    return backwards(backwards(forward, reduces=True), reduces=True)


def _one_shot(members: int) -> Moves:
    """Everyone sends its whole buffer to everyone, and adds what arrives."""
    source, target = np.nonzero(~np.eye(members, dtype=bool))
    return _reducing(moves(0, source, target, 0))


def _in_network_all_gather(members: int) -> Moves:
    source, target = np.nonzero(~np.eye(members, dtype=bool))
    own: Integers = np.arange(members if members > 1 else 0)
    up = moves(0, own, REDUCER, own)
    return one_after_another([up, moves(0, REDUCER, target, source)])


def _in_network_all_reduce(members: int) -> Moves:
    """The switch adds what comes up and sends the sum down to all: S each way."""
    down = moves(0, REDUCER, np.arange(members if members > 1 else 0), 0)
    return one_after_another([backwards(down, reduces=True), down])


def _in_network_broadcast(members: int) -> Moves:
    up = moves(0, np.zeros(min(members - 1, 1)), REDUCER, 0)
    return one_after_another([up, moves(0, REDUCER, np.arange(1, members), 0)])


def _core_parts(members: int) -> int:
    return int(folded(members)[0].size)


ALL_GATHERS = {
    "ring": Algorithm(ring_all_gather),
    "bidirectional_ring": Algorithm(bidirectional_ring_all_gather, _halves),
    "direct": Algorithm(direct_all_gather),
    "recursive_doubling": Algorithm(doubling_all_gather),
    "halving_doubling": Algorithm(doubling_all_gather),
    "hierarchical": _two_levels(hierarchical_all_gather, LEVEL_ALL_GATHERS),
    "in_network": Algorithm(_in_network_all_gather),
    "aggregated_trees": Algorithm(aggregated_trees_all_gather),
}
BROADCASTS = {
    "ring": Algorithm(ring_broadcast),
    "bidirectional_ring": Algorithm(bidirectional_ring_broadcast, _halves),
    "direct": Algorithm(direct_broadcast),
    "recursive_doubling": Algorithm(doubling_broadcast),
    "halving_doubling": Algorithm(scatter_gather_broadcast, _blocks),
    "double_binary_tree": Algorithm(double_binary_tree_broadcast, _halves),
    "hierarchical": _two_levels(hierarchical_broadcast, LEVEL_BROADCASTS),
    "in_network": Algorithm(_in_network_broadcast),
}
GATHERS = {
    "ring": Algorithm(ring_gather),
    "direct": Algorithm(direct_gather),
    "recursive_doubling": Algorithm(doubling_gather),
    "hierarchical": _two_levels(hierarchical_gather, LEVEL_GATHERS),
}
TWO_SHOT = Algorithm(_there_and_back(direct_all_gather), _blocks)
REDUCE_SCATTERS = {
    name: _reduce_scatter(algorithm)
    for name, algorithm in {
        **ALL_GATHERS,
        "ring": Algorithm(turned_ring_all_gather),
        "hierarchical": _two_levels(hierarchical_all_gather, TURNED_ALL_GATHERS),
    }.items()
    if name != "recursive_doubling"  # run backwards, doubling is halving
}

ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(_there_and_back(ring_all_gather, turned_ring_all_gather), _blocks),
        "bidirectional_ring": Algorithm(
            _there_and_back(bidirectional_ring_all_gather), lambda members: 2 * members
        ),
        "direct": TWO_SHOT,
        "halving_doubling": Algorithm(
            _on_a_power_of_two(_there_and_back(doubling_all_gather), _core_parts), _core_parts
        ),
        "recursive_doubling": Algorithm(
            _on_a_power_of_two(_exchange_and_double, lambda members: 1)
        ),
        "double_binary_tree": Algorithm(_there_and_back(double_binary_tree_broadcast), _halves),
        "hierarchical": Algorithm(_hierarchical_all_reduce, _blocks, two_level=True),
        "one_shot": Algorithm(_one_shot),
        "two_shot": TWO_SHOT,
        "in_network": Algorithm(_in_network_all_reduce),
    },
    "all_gather": ALL_GATHERS,
    "reduce_scatter": REDUCE_SCATTERS,
    "all_to_all": {
        "direct": Algorithm(direct_all_to_all),
        "ring": Algorithm(ring_all_to_all),
        "hierarchical": Algorithm(
            lambda members, levels: hierarchical_all_to_all(members, levels.domain),
            two_level=True,
        ),
        "rail_aligned": Algorithm(
            lambda members, levels: rail_aligned_all_to_all(members, levels.domain),
            two_level=True,
        ),
    },
    "broadcast": BROADCASTS,
    "multicast": {
        name: algorithm for name, algorithm in BROADCASTS.items() if not algorithm.two_level
    },
    "gather": GATHERS,
    "scatter": {name: _scatter(algorithm) for name, algorithm in GATHERS.items()},
    "point_to_point": {"direct": Algorithm(direct_broadcast)},
}

LEVEL_CHOICES: dict[str, tuple[str, ...]] = {
    "all_reduce": tuple(LEVEL_ALL_GATHERS),
    "all_gather": tuple(LEVEL_ALL_GATHERS),
    "reduce_scatter": tuple(LEVEL_ALL_GATHERS),
    "broadcast": tuple(LEVEL_BROADCASTS),
    "gather": tuple(LEVEL_GATHERS),
    "scatter": tuple(LEVEL_GATHERS),
    "all_to_all": ("direct",),
}
