"""Moves: which block goes from whom to whom in which step; all-gathers, broadcasts, gathers.

Every algorithm is written as moves, one row per block and hop; messages are moves of the
same step, source and target. Two facts keep the algorithms few:

* run backwards with source and target exchanged, an all-gather is a reduce-scatter, a
  broadcast a reduction and a gather a scatter (Chan et al. 2007, "Collective communication:
  theory, practice, and experience": dual operations);
* relabelling owners and positions puts one algorithm inside another (hierarchies).

Letters
    n   members, positions 0 .. n-1; trees have their root at 0
    m   moves
    o   owner of a block of an all-gather or gather
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from perfmodel.base.columns import Flags, Floats, Integers

REDUCER = -1  # position of a switch that reduces and multicasts


@dataclass(frozen=True)
class Moves:
    """Moves of blocks, in any order.

    Parameters
    ----------
    step : int64[m]
        Moves of one step happen together, with what was held when it began.
    source, target : int64[m]
        Positions in the group; ``REDUCER`` is the switch.
    block : int64[m]
    reduces : bool[m]
        Whether the target adds the block to its own (otherwise it stores it).
    """

    step: Integers
    source: Integers
    target: Integers
    block: Integers
    reduces: Flags

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step.max()) + 1 if self.step.size else 0


def moves(
    step: npt.ArrayLike, source: npt.ArrayLike, target: npt.ArrayLike, block: npt.ArrayLike
) -> Moves:
    """Broadcast the columns against each other and drop the shape; nothing reduces."""
    columns = np.broadcast_arrays(
        *(np.asarray(column, dtype=np.int64) for column in (step, source, target, block))
    )
    steps, sources, targets, blocks = (column.flatten() for column in columns)
    return Moves(steps, sources, targets, blocks, np.zeros(steps.size, dtype=bool))


def together(parts: Iterable[Moves]) -> Moves:
    """Moves of several algorithms that begin at the same time."""
    listed = list(parts)
    if not listed:
        return moves([], [], [], [])
    return Moves(
        *(
            np.concatenate([getattr(part, name) for part in listed])
            for name in ("step", "source", "target", "block", "reduces")
        )
    )


def one_after_another(parts: Iterable[Moves]) -> Moves:
    """Moves of several algorithms, each beginning when the one before is over."""
    shifted = []
    passed = 0
    for part in parts:
        shifted.append(replace(part, step=part.step + passed))
        passed += part.steps
    return together(shifted)


def backwards(forward: Moves, reduces: bool) -> Moves:
    """Return the dual: last step first, every move turned round."""
    return Moves(
        step=forward.steps - 1 - forward.step,
        source=forward.target,
        target=forward.source,
        block=forward.block,
        reduces=np.full(forward.step.size, reduces),
    )


def relabel(
    inner: Moves,
    positions: Sequence[int] | Integers,
    blocks: Sequence[Sequence[int]] | Integers | None = None,
) -> Moves:
    """Put moves among 0 .. k-1 at other positions, and other blocks for theirs.

    Parameters
    ----------
    inner : Moves
    positions : int64[k]
        Position that stands for each of theirs.
    blocks : sequence of sequences of int, optional
        Blocks that each of their blocks stands for (several, none); None keeps them.
    """
    place = np.append(np.asarray(positions, dtype=np.int64), REDUCER)  # place[-1] is the switch
    moved = replace(inner, source=place[inner.source], target=place[inner.target])
    if blocks is None:
        return moved
    counts = np.array([len(group) for group in blocks], dtype=np.int64)
    flat = np.concatenate([np.asarray(group, dtype=np.int64) for group in blocks])
    first = np.concatenate(([0], np.cumsum(counts)))[:-1]
    repeats = counts[moved.block]
    row = np.repeat(np.arange(moved.block.size), repeats)
    within = np.arange(row.size) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return Moves(
        step=moved.step[row],
        source=moved.source[row],
        target=moved.target[row],
        block=flat[first[moved.block[row]] + within],
        reduces=moved.reduces[row],
    )


def totals(index: Integers, amounts: Floats, count: int) -> Floats:
    """Sum of the amounts of every index 0 .. count-1, float64[count]."""
    summed: Floats = np.bincount(index, weights=amounts, minlength=count).astype(np.float64)
    return summed


def power_of_two_below(members: int) -> int:
    """Largest power of two that is at most ``members``."""
    return 1 << (members.bit_length() - 1)


def folded(members: int) -> tuple[Integers, Integers]:
    """Split a group into a power of two of members and the rest.

    Returns
    -------
    core : int64[2**k]
        Members that take part in the recursion.
    rest : int64[members - 2**k]
        The others; ``core[i]`` stands for ``rest[i]``.

    Notes
    -----
    Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations
    in MPICH": the first 2 r members form pairs, one of each pair takes part.
    """
    core = power_of_two_below(members)
    extra = members - core
    index = np.arange(core, dtype=np.int64)
    return np.where(index < extra, 2 * index, index + extra), 2 * index[:extra] + 1


def ring_all_gather(members: int) -> Moves:
    """Every block goes round, one neighbour per step: n-1 steps."""
    step = np.arange(members - 1)[:, None]
    owner = np.arange(members)[None, :]
    return moves(step, (owner + step) % members, (owner + step + 1) % members, owner)


def bidirectional_ring_all_gather(members: int) -> Moves:
    """Two rings in opposite directions; blocks o and n + o are the halves of owner o."""
    forward = ring_all_gather(members)
    turned = (-np.arange(members)) % members
    other = relabel(forward, turned, (turned + members)[:, None])
    return together([forward, other])


def turned_ring_all_gather(members: int) -> Moves:
    """The other way round, so that its dual, a reduce-scatter, goes the way of a ring."""
    turned = (-np.arange(members)) % members
    return relabel(ring_all_gather(members), turned, turned[:, None])


def direct_all_gather(members: int) -> Moves:
    """Everyone sends its block to everyone: one step."""
    source, target = np.nonzero(~np.eye(members, dtype=bool))
    return moves(0, source, target, source)


def doubling_all_gather(members: int) -> Moves:
    """Recursive doubling: log2(n) steps; two more when n is no power of two.

    Notes
    -----
    Thakur, Rabenseifner & Gropp 2005 Outside a power of two a member of the rest
    hands its block to the one that stands for it, and gets all others at the end.
    """
    core, rest = folded(members)
    held: list[list[int]] = [[int(position)] for position in core]
    for index, position in enumerate(rest):
        held[index].append(int(position))
    parts = [moves(0, rest, core[: rest.size], rest)]
    place = np.arange(core.size)
    for bit in range(core.size.bit_length() - 1):
        # Before this step, a place holds what 2**bit neighbours (equal upper bits) held.
        same = (place[:, None] >> bit << bit) + np.arange(1 << bit)[None, :]
        doubled = moves(0, place[:, None], place[:, None] ^ (1 << bit), same)
        parts.append(relabel(doubled, core, held))
    if rest.size:
        block = np.arange(members)[None, :].repeat(rest.size, axis=0)
        wanted = block != rest[:, None]
        source = np.broadcast_to(core[: rest.size, None], block.shape)[wanted]
        target = np.broadcast_to(rest[:, None], block.shape)[wanted]
        parts.append(moves(0, source, target, block[wanted]))
    return one_after_another(parts)


def aggregated_trees_all_gather(members: int) -> Moves:
    """Down a binomial tree from every owner at once, the farthest first: log2(n), rounded up.

    Notes
    -----
    Jeaugey 2025, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
    arXiv:2506.20252: Bruck's distances from the largest to 1, so that what travels far is one
    block. Whoever lies j places beyond an owner gets its block from j less its lowest bit.
    """
    place = np.arange(1, members, dtype=np.int64)[:, None]
    lowest = place & -place
    step = (members - 1).bit_length() - 1 - np.log2(lowest).astype(np.int64)
    owner = np.arange(members)[None, :]
    return moves(step, (owner + place - lowest) % members, (owner + place) % members, owner)


def ring_broadcast(members: int) -> Moves:
    """Down a chain: n-1 steps of the whole message."""
    position = np.arange(members - 1)
    return moves(position, position, position + 1, 0)


def bidirectional_ring_broadcast(members: int) -> Moves:
    """Two chains in opposite directions, each with one half."""
    forward = ring_broadcast(members)
    return together([forward, relabel(forward, (-np.arange(members)) % members, [[1]])])


def direct_broadcast(members: int) -> Moves:
    """The root sends to everyone: one step."""
    return moves(0, 0, np.arange(1, members), 0)


def doubling_broadcast(members: int) -> Moves:
    """Binomial tree: whoever has the message doubles the number of those who have it."""
    target = np.arange(1, members)
    step = np.floor(np.log2(target)).astype(np.int64) if members > 1 else target
    return moves(step, target - (1 << step), target, 0)


def scatter_gather_broadcast(members: int) -> Moves:
    """Scatter down a binomial tree, then recursive doubling (van de Geijn; long messages).

    Notes
    -----
    Chan et al. 2007: ``2 log2(n) α + 2 (n-1)/n S β``.
    """
    scatter = backwards(doubling_gather(members), reduces=False)
    return one_after_another([scatter, doubling_all_gather(members)])


def tree_parents(members: int) -> Integers:
    """Parents in the in-order binary tree below root 0, which has one child.

    Returns
    -------
    int64[n]
        -1 for the root. Odd positions are leaves, even ones have one or two children.

    Notes
    -----
    The lowest set bit says the height; the parent lies one height above, on the side that
    keeps the order, or, where that is outside of the group, on the other side (NCCL,
    src/graph/trees.cc; Sanders, Speck & Träff 2009, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan").
    """
    position = np.arange(members, dtype=np.int64)
    lowest = position & -position
    left = position ^ lowest
    above = left | (lowest << 1)
    parent = np.where(above < members, above, left)
    parent[0] = -1
    return parent


def tree_broadcast(members: int) -> Moves:
    """Down the in-order binary tree: the step is the depth of the parent."""
    parent = tree_parents(members)
    depth = np.zeros(members, dtype=np.int64)
    child = np.arange(1, members, dtype=np.int64)
    below: Integers = child
    above: Integers = parent[1:]
    while below.size:  # walk up until everyone arrived at the root
        depth[below] += 1
        below, above = below[above > 0], parent[above[above > 0]]
    return moves(depth[1:] - 1, parent[1:], child, 0)


def double_binary_tree_broadcast(members: int) -> Moves:
    """Two trees, half of the message each; who is inside one is a leaf of the other.

    Notes
    -----
    Sanders, Speck & Träff 2009: the second tree is the mirror image of the first one
    (odd n) or shifted by one position (even n), so that positions change their parity; the
    root feeds both. Every edge carries half of the message; in chunks, both trees run at
    full bandwidth.
    """
    position = np.arange(members)
    if members % 2:
        second = (members - position) % members
    else:
        second = np.where(position == members - 1, 1, position + 1)
        second[0] = 0
    first = tree_broadcast(members)
    return together([first, relabel(first, second, [[1]])])


def ring_gather(members: int) -> Moves:
    """Up a chain to 0; the block of owner o makes o hops."""
    owner = np.arange(members)
    step, block = np.nonzero(np.arange(members)[:, None] < owner[None, :])
    return moves(step, block - step, block - step - 1, block)


def direct_gather(members: int) -> Moves:
    """Everyone sends its block to 0: one step."""
    source = np.arange(1, members)
    return moves(0, source, 0, source)


def doubling_gather(members: int) -> Moves:
    """Binomial tree: in step k, multiples of 2**k that are odd ones hand over what they have."""
    parts = []
    step = 0
    while (1 << step) < members:
        size = 1 << step
        source = np.arange(size, members, 2 * size)[:, None]
        block = source + np.arange(size)[None, :]
        inside = block < members
        source = np.broadcast_to(source, block.shape)[inside]
        parts.append(moves(0, source, source - size, block[inside]))
        step += 1
    return one_after_another(parts)
