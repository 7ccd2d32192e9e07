"""Two-level algorithms and the all-to-alls as moves.

A group of n members lies in ``n / d`` domains of d neighbouring positions: position
``p = d * (domain of p) + (place of p)``. *Inside* is among the members of one domain,
*across* is among the members with the same place in all domains.

Letters
    n   members
    d   members of a domain
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.workloads.schedules.moves import Moves, moves, one_after_another, relabel, together

Algorithm = Callable[[int], Moves]


def grid(members: int, domain: int) -> Integers:
    """Positions as int64[domains, places]."""
    return np.arange(members, dtype=np.int64).reshape(-1, domain)


def all_gather_across(members: int, domain: int, across: Algorithm) -> Moves:
    """All-gather among equal places, all places at once; blocks are named by their owners."""
    positions = grid(members, domain)
    algorithm = across(positions.shape[0])
    return together(
        relabel(algorithm, place, place[:, None]) for place in positions.T if place.size > 1
    )


def all_gather_inside(
    members: int, domain: int, inside: Algorithm, blocks_of_domain: list[Integers]
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


def hierarchical_all_gather(
    members: int, domain: int, inside: Algorithm, across: Algorithm
) -> Moves:
    """Across by place, then inside with everything that the place has collected."""
    positions = grid(members, domain)
    collected = [positions.T for _ in positions]
    return one_after_another(
        [
            all_gather_across(members, domain, across),
            all_gather_inside(members, domain, inside, collected),
        ]
    )


def hierarchical_broadcast(
    members: int, domain: int, inside: Algorithm, across: Algorithm
) -> Moves:
    """From 0 to the first place of every domain, then inside."""
    positions = grid(members, domain)
    return one_after_another(
        [
            relabel(across(positions.shape[0]), positions[:, 0]),
            together(relabel(inside(domain), own) for own in positions),
        ]
    )


def hierarchical_gather(members: int, domain: int, inside: Algorithm, across: Algorithm) -> Moves:
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
