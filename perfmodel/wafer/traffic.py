"""What instructions of cores bring over the wafer, and what each core does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.cores.instructions import (
    ADD,
    COPY,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    READ,
    WRITE,
    Instructions,
)
from perfmodel.wafer.system import WaferSystem, core_places, mesh_sides

ALONE = -1
"""Tree of a flow that shares its links with none, as in `perfmodel.kernels.wafer.routes`."""


class Traffic(NamedTuple):
    """Flows between cores (and the banks beside them), and the work of each core.

    Attributes
    ----------
    sources, targets : array of int, shape (flows,)
        Cores, counted over the wafer.
    sizes : array of float, shape (flows,)
        [B]
    trees : array of int, shape (flows,)
        Flows of one multicast have its number and stand one after the other; else `ALONE`.
    macs, additions : array of float, shape (cores,)
        Multiply-adds and additions of each core.
    local : array of float, shape (cores,)
        Bytes that each core moves to and from its own bank [B].
    """

    sources: Integers
    targets: Integers
    sizes: Floats
    trees: Integers
    macs: Floats
    additions: Floats
    local: Floats


class LinkLoads(NamedTuple):
    """What flows come to on the links of the wafer's mesh.

    Attributes
    ----------
    loads : array of float, shape (6, cores)
        Bytes that leave each place (see `core_places`) east, west, south, north, up and down [B].
    hops : float
        Bytes times links [B].
    longest : int
        Links of the longest way.
    """

    loads: Floats
    hops: float
    longest: int

    @property
    def busiest(self) -> float:
        """Bytes over the busiest link between two cores [B]."""
        return float(self.loads[:4].max(initial=0.0))


def traffic_of(parts: Iterable[Instructions], cores: int) -> Traffic:
    """Sum what instructions move and compute.

    A READ goes from a bank to the core that asks, a WRITE from the core to a bank, a COPY from
    bank to bank, a MULTICAST from one bank to several; bank and core of a number stand together.

    Parameters
    ----------
    parts : iterable of Instructions
        Cores and banks counted over the wafer.
    cores : int
        Of the wafer.

    Raises
    ------
    DataError
        A core or bank that the wafer does not have.
    """
    pairs: dict[int, float] = {}
    cast: list[tuple[Integers, Integers, Floats, Integers]] = []
    macs, additions, local = (np.zeros(cores) for _ in range(3))
    trees = 0
    for part in parts:
        opcode, core = part.lines[:, OPCODE], part.lines[:, CORE]
        first, second, third = (part.arguments[:, place] for place in range(3))
        _check_cores(core, cores, "core")
        product, addition = opcode == GEMM, opcode == ADD
        work = part.arguments[product, :3].prod(axis=1, dtype=np.float64)
        macs += np.bincount(core[product], work, minlength=cores)
        sides = np.maximum(part.arguments[addition], 1).prod(axis=1, dtype=np.float64)
        additions += np.bincount(core[addition], sides, minlength=cores)
        for code, source, target, size in (
            (READ, first, core, second),
            (WRITE, core, first, second),
            (COPY, first, second, third),
        ):
            chosen = opcode == code
            begin, end = source[chosen], target[chosen]
            _check_cores(begin, cores, "bank")
            _check_cores(end, cores, "bank")
            key, place = np.unique(begin * cores + end, return_inverse=True)
            total = np.bincount(place, size[chosen].astype(np.float64), minlength=key.size)
            for one, moved in zip(key.tolist(), total.tolist(), strict=True):
                pairs[one] = pairs.get(one, 0.0) + moved
        multicast = part.arguments[opcode == MULTICAST]
        if len(multicast):
            counts = multicast[:, 3]
            ends = np.cumsum(counts)
            row = np.repeat(np.arange(len(multicast)), counts)
            within = np.arange(row.size) - np.repeat(ends - counts, counts)
            banks = part.destinations[multicast[row, 2] + within]
            _check_cores(banks, cores, "bank")
            sizes = multicast[row, 1].astype(np.float64)
            cast.append((multicast[row, 0], banks, sizes, row + trees))
            trees += len(multicast)
    keys = np.array(sorted(pairs), dtype=np.int64)
    sizes = np.array([pairs[key] for key in keys.tolist()])
    sources, targets = np.divmod(keys, cores)
    own = sources == targets
    local += np.bincount(sources[own], sizes[own], minlength=cores)
    alone = np.full(int((~own).sum()), ALONE)
    several = [(sources[~own], targets[~own], sizes[~own], alone), *cast]
    return Traffic(
        sources=np.concatenate([one[0] for one in several]),
        targets=np.concatenate([one[1] for one in several]),
        sizes=np.concatenate([one[2] for one in several]),
        trees=np.concatenate([one[3] for one in several]),
        macs=macs,
        additions=additions,
        local=local,
    )


def link_loads(traffic: Traffic, system: WaferSystem) -> LinkLoads:
    """Route all flows along rows, then along columns, and sum what the links carry."""
    rows, columns = mesh_sides(system)
    places = core_places(system)
    with kernel_work(mesh_flows=traffic.sources.size):
        from perfmodel.kernels.wafer.routes import flow_loads

        loads, _, hops, longest = flow_loads(
            rows,
            columns,
            places[traffic.sources],
            places[traffic.targets],
            traffic.sizes,
            traffic.trees,
        )
    return LinkLoads(loads, float(hops), int(longest))


def between_nodes(traffic: Traffic, system: WaferSystem) -> Floats:
    """Return the bytes that nodes bring to nodes, shape (nodes, nodes): source, destination."""
    table = np.zeros((system.nodes, system.nodes))
    where = (traffic.sources // system.cores, traffic.targets // system.cores)
    np.add.at(table, where, traffic.sizes)
    own = np.add.reduceat(traffic.local, np.arange(0, traffic.local.size, system.cores))
    table[np.diag_indices(system.nodes)] += own
    return table


def _check_cores(cores: Integers, count: int, noun: str) -> None:
    if cores.size and not 0 <= cores.min() <= cores.max() < count:
        wrong = cores.max() if cores.max() >= count else cores.min()
        raise DataError(f"instructions: {noun} {wrong} is none of the wafer's 0 to {count - 1}")
