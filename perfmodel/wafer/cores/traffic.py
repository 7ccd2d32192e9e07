"""What instructions come to: counts, bytes, multiply-adds, and bytes times links of the mesh."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.cores.instructions import (
    COPY,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    OPCODES,
    READ,
    WRITE,
    Instructions,
)
from perfmodel.wafer.places import core_places, mesh_sides
from perfmodel.wafer.system import WaferSystem


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


@functools.cache
def bank_places(system: WaferSystem) -> tuple[Integers, Integers]:
    """Return row and column of every core of a wafer, and of the bank beside it.

    Nodes lie row by row on the node grid, cores row by row in a node.
    """
    rows, columns = np.divmod(core_places(system), mesh_sides(system)[1])
    return rows, columns


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
    rows, columns = bank_places(system)
    opcode = lines[:, OPCODE]
    total = 0
    for code, place in ((READ, 1), (WRITE, 1), (COPY, 2)):
        some = opcode == code
        source = arguments[some, 0]
        other = lines[some, CORE] if code != COPY else arguments[some, 1]
        hops = abs(rows[source] - rows[other]) + abs(columns[source] - columns[other])
        total += int((hops * arguments[some, place]).sum())
    cast = np.flatnonzero(opcode == MULTICAST)
    if cast.size:
        counts = arguments[cast, 3]
        starts = np.concatenate(([0], np.cumsum(counts)))
        places = np.repeat(arguments[cast, 2] - starts[:-1], counts) + np.arange(starts[-1])
        with kernel_work(instructions=int(counts.sum())):
            from perfmodel.kernels.wafer import trace_blocks

            links = trace_blocks.tree_links(
                np.ascontiguousarray(arguments[cast, 0]),
                starts,
                np.ascontiguousarray(destinations[places]),
                rows,
                columns,
            )
        total += int((links * arguments[cast, 1]).sum())
    return total
