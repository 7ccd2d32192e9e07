"""Moves: which block of data goes from whom to whom in which step.

Every algorithm is written as moves, one row per block and hop; messages are moves of the
same step, source and target. Two facts keep the algorithms few:

* run backwards with source and target exchanged, an all-gather is a reduce-scatter, a
  broadcast a reduction and a gather a scatter (Chan et al. 2007, "Collective communication:
  theory, practice, and experience": dual operations);
* relabelling owners and positions puts one algorithm inside another (hierarchies).

Letters
    n   members, positions 0 .. n-1
    m   moves
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
