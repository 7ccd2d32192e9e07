"""Instructions of cores as columns, and what they come to.

What an instruction is, whom it is for and what it waits for stand in one table of whole numbers,
its arguments in a second. A core runs its instructions in their order; what it waits for are
instructions of its own that follow one another, counted back from it. A barrier waits for all
that its cores were given before it, and all that they are given after it wait for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.wafer.system import WaferSystem, core_places, mesh_sides

# Instructions of cores as columns: what the text of traces and the columnar file are made of.

OPCODES = ("READ", "WRITE", "GEMM", "ADD", "COPY", "MULTICAST", "BARRIER")
READ, WRITE, GEMM, ADD, COPY, MULTICAST, BARRIER = range(7)

OPCODE, CORE, TILE, ARGUMENTS, BACK, WAITS = range(6)
"""Columns of a line: code, core, tile (of an operation's comment), number of arguments, lines back
to the first instruction of its core that it waits for, and for how many it waits."""
COLUMNS = 6
HALF = 2**32 - 1
SPREAD = 2654435761  # so that the same barrier of many nodes has as many names
MOST_ARGUMENTS = 4
"""READ and WRITE: bank, bytes; GEMM: M, K, N; ADD: its sides; COPY: source bank, destination bank,
bytes; MULTICAST: source bank, bytes, first of its destinations and how many; BARRIER: upper and
lower half of 64 bits that name it, and whether cores of several nodes meet there."""


class Instructions(NamedTuple):
    """Instructions of an operation on some cores, each core's in its order.

    Attributes
    ----------
    lines : array of int, shape (lines, 6)
        Columns `OPCODE` to `WAITS`.
    arguments : array of int, shape (lines, 4)
        See `MOST_ARGUMENTS`; bytes are [B].
    destinations : array of int, shape (destinations,)
        Banks that multicasts go to.
    """

    lines: Integers
    arguments: Integers
    destinations: Integers

    def moved(self, cores: int) -> Instructions:
        """Return the same on cores and banks that are numbered so many higher."""
        lines, arguments = self.lines.copy(), self.arguments.copy()
        lines[:, CORE] += cores
        opcode = lines[:, OPCODE]
        arguments[(opcode <= WRITE) | (opcode == COPY) | (opcode == MULTICAST), 0] += cores
        arguments[opcode == COPY, 1] += cores
        alone = (opcode == BARRIER) & (arguments[:, 2] == 0)
        arguments[alone, 1] = (arguments[alone, 1] + cores * SPREAD) & HALF
        return Instructions(lines, arguments, self.destinations + cores)

    def called(self, name: str) -> Instructions:
        """Return the same with barriers of an operation of this name."""
        arguments = self.arguments.copy()
        arguments[self.lines[:, OPCODE] == BARRIER, 0] = zlib.crc32(name.encode())
        return self._replace(arguments=arguments)


NOTHING = Instructions(
    np.empty((0, COLUMNS), np.int64),
    np.empty((0, MOST_ARGUMENTS), np.int64),
    np.empty(0, np.int64),
)


def build(
    opcode: int,
    core: Integers,
    arguments: Sequence[Integers | int],
    *,
    tile: Integers | int = 0,
    back: Integers | int = 0,
    waits: Integers | int | None = None,
) -> Instructions:
    """Return instructions of one kind, one for each core that is named.

    Parameters
    ----------
    opcode : int
        `READ` to `ADD`, `COPY` or `BARRIER`; for `MULTICAST` see `multicasts`.
    core : array of int, shape (lines,)
    arguments : sequence of int or array of int, shape (lines,)
    tile, back, waits : int or array of int, shape (lines,), optional
        Without `waits`, all from `back` on are waited for.
    """
    core = np.asarray(core, np.int64)
    lines = np.zeros((core.size, COLUMNS), np.int64)
    lines[:, OPCODE] = opcode
    lines[:, CORE] = core
    lines[:, TILE] = tile
    lines[:, ARGUMENTS] = len(arguments)
    lines[:, BACK] = back
    lines[:, WAITS] = back if waits is None else waits
    table = np.zeros((core.size, MOST_ARGUMENTS), np.int64)
    for place, argument in enumerate(arguments):
        table[:, place] = argument
    return Instructions(lines, table, NOTHING.destinations)


def multicasts(
    source: Integers, size: Integers, destinations: Integers, counts: Integers
) -> Instructions:
    """Return a multicast for each source bank, issued by the core beside it.

    Parameters
    ----------
    source, size : array of int, shape (lines,)
        Bank and bytes [B].
    destinations : array of int
        Banks of all, one multicast behind the other.
    counts : array of int, shape (lines,)
        Destinations of each.
    """
    first = np.cumsum(counts) - counts
    built = build(MULTICAST, source, (source, size, first, counts))
    return built._replace(destinations=np.asarray(destinations, np.int64))


def barrier(label: str, cores: Integers, shared: bool = False) -> Instructions:
    """Return a barrier of some cores, called by a hash of its label within an operation.

    Parameters
    ----------
    label : str
        The same on all nodes whose cores meet there.
    cores : array of int, shape (lines,)
    shared : bool
        Whether cores of several nodes meet; each node's barrier is its own otherwise.
    """
    built = build(BARRIER, cores, (0, zlib.crc32(label.encode()), int(shared)))
    built.lines[:, ARGUMENTS] = 2
    return built


def joined(parts: Sequence[Instructions]) -> Instructions:
    """Return all instructions, those of each core in the order of the parts."""
    lines = np.concatenate([part.lines for part in parts] or [NOTHING.lines])
    arguments = np.concatenate([part.arguments for part in parts] or [NOTHING.arguments])
    shift = 0
    at = 0
    for part in parts:
        end = at + len(part.lines)
        if shift:
            cast = lines[at:end, OPCODE] == MULTICAST
            arguments[at:end, 2][cast] += shift
        shift += part.destinations.size
        at = end
    destinations = np.concatenate([part.destinations for part in parts] or [NOTHING.destinations])
    return Instructions(lines, arguments, destinations)


# What instructions come to: counts, bytes, multiply-adds, and bytes times links of the mesh.


class CoreTotals(NamedTuple):
    """Totals of some instructions.

    Attributes
    ----------
    counts : array of int, shape (7,)
        Instructions by opcode.
    moved : array of int, shape (7,)
        Bytes by opcode; a multicast's once [B].
    macs : int
        Multiply-adds of products.
    busiest_macs : int
        Of the core with the most.
    cores : int
        Cores that have an instruction.
    """

    counts: Integers
    moved: Integers
    macs: int
    busiest_macs: int
    cores: int


def core_totals(instructions: Instructions) -> CoreTotals:
    """Return counts, bytes and multiply-adds of instructions."""
    lines, arguments, _ = instructions
    opcode, core = lines[:, OPCODE], lines[:, CORE]
    moved = np.zeros(len(OPCODES), np.int64)
    for code, place in ((READ, 1), (WRITE, 1), (MULTICAST, 1), (COPY, 2)):
        moved[code] = arguments[opcode == code, place].sum()
    product = opcode == GEMM
    macs = arguments[product, :3].prod(axis=1)
    first = int(core.min()) if core.size else 0
    by_core = np.zeros(int(core.max()) - first + 1 if core.size else 1, np.int64)
    np.add.at(by_core, core[product] - first, macs)
    cores = int(np.count_nonzero(np.bincount(core - first)))
    counts = np.bincount(opcode, minlength=len(OPCODES))
    return CoreTotals(counts, moved, int(macs.sum()), int(by_core.max()), cores)


def bytes_times_links(instructions: Instructions, system: WaferSystem) -> int:
    """Return the bytes that instructions put on links of the mesh, each link on the way counted.

    Reads and writes go between a core and the bank, copies between two banks, along rows first;
    a multicast's bytes go once over a link that leads to several of its destinations.

    Parameters
    ----------
    instructions : Instructions
        Cores and banks counted over the wafer.
    system : WaferSystem
    """
    lines, arguments, destinations = instructions
    opcode, core, first = lines[:, OPCODE], lines[:, CORE], arguments[:, 0]
    columns = mesh_sides(system)[1]
    places = core_places(system)
    total = 0
    for code, target, at in ((READ, core, 1), (WRITE, core, 1), (COPY, arguments[:, 1], 2)):
        some = (opcode == code) & (first != target)
        links = route_links(columns, places[first[some]], places[target[some]])
        total += int((arguments[some, at] * links).sum())
    source, size, begin, counts = arguments[opcode == MULTICAST].T
    tree = np.repeat(np.arange(source.size), counts)
    within = np.arange(tree.size) - np.repeat(np.cumsum(counts) - counts, counts)
    to = places[destinations[begin[tree] + within]]
    return total + int((size * tree_links(columns, places[source], to, tree)).sum())


def route_links(columns: int, source: Integers, target: Integers) -> Integers:
    """Return the links of routes between places of a mesh of so many columns."""
    (row, column), (to_row, to_column) = np.divmod(source, columns), np.divmod(target, columns)
    return abs(to_row - row) + abs(to_column - column)


def tree_links(columns: int, source: Integers, targets: Integers, tree: Integers) -> Integers:
    """Return the links of multicasts, each once: along the source's row first, then along columns.

    Parameters
    ----------
    columns : int
        Of the mesh.
    source : array of int, shape (trees,)
        Place that each multicast leaves.
    targets, tree : array of int, shape (targets,)
        Places, and the multicast that each belongs to.
    """
    row, column = np.divmod(source, columns)
    to_row, to_column = np.divmod(targets, columns)
    branch, first, at = np.unique(
        tree * columns + to_column, return_index=True, return_inverse=True
    )
    found = _reach(tree, to_column - column[tree], source.size)
    down = _reach(at, to_row - row[tree], branch.size)
    np.add.at(found, tree[first], down)
    return found


def _reach(groups: Integers, steps: Integers, count: int) -> Integers:
    """Return how far the steps of each group reach, both ways together."""
    far = np.zeros((2, count), np.int64)
    np.maximum.at(far[0], groups, steps)
    np.maximum.at(far[1], groups, -steps)
    return far[0] + far[1]
