"""Times of sums, copies and gathers over the cores of a mesh, and sums as flows to simulate.

What `perfmodel.kernels.wafer.reduce` puts in closed forms stands here as flows in full: who sends
what to whom, and what it waits for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.kernels.wafer import reduce
from perfmodel.kernels.wafer.reduce import ALGORITHMS, ONE_LEVEL, group_size
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.mappings import parse_grid
from perfmodel.wafer.system import bucket_sizes

# Sums over rows and rectangles of cores as flows, message by message, for the simulation.

LARGEST = 4_000_000
"""Wavelets x hops that are simulated at most: memory and time grow with them."""


class Flow(NamedTuple):
    """One message or multicast.

    Attributes
    ----------
    source : int
        Core.
    targets : tuple of int
        Cores.
    wavelets : int
    needs : tuple of int
        Earlier flows that have to have arrived at the source as a whole.
    streams : tuple of int
        Earlier flows whose wavelets are added and sent on as they arrive.
    turn : int
        A core takes what comes to it turn by turn.
    """

    source: int
    targets: tuple[int, ...]
    wavelets: int
    needs: tuple[int, ...] = ()
    streams: tuple[int, ...] = ()
    turn: int = 0


Needs = dict[int, list[int]]
"""Core -> flows whose sum it has to have before it sends its own."""


def chain_flows(
    flows: list[Flow], cores: Sequence[int], wavelets: int, into: Needs, turn: int
) -> int:
    """Add the messages of a chain from the first core to the last; return the last message."""
    before: tuple[int, ...] = ()
    for source, target in itertools.pairwise(cores):
        needs = tuple(into.get(source, ()))
        flows.append(Flow(source, (target,), wavelets, needs, before, turn))
        before = (len(flows) - 1,)
    return len(flows) - 1


def tree_flows(
    flows: list[Flow], cores: Sequence[int], wavelets: int, levels: int, into: Needs, turn: int
) -> int:
    """Add the messages of a tree of chains that meet in the middle of groups; return its root."""
    members = list(cores)
    while len(members) > 1:
        size = int(group_size(float(len(members)), float(levels)))
        roots = []
        for start in range(0, len(members), size):
            group = members[start : start + size]
            root = len(group) // 2
            sides = (group[: root + 1], group[root:][::-1])
            arrivals = [
                chain_flows(flows, side, wavelets, into, turn) for side in sides if len(side) > 1
            ]
            into.setdefault(group[root], []).extend(arrivals)
            roots.append(group[root])
        members = roots
        levels -= 1
        turn += 1
    return members[0]


def ring_flows(flows: list[Flow], cores: Sequence[int], elements: int, per_wavelet: int) -> None:
    """Add the steps of an all-reduce over cores that are folded into a ring."""
    ring = [*cores[::2], *cores[1::2][::-1]]
    count = len(ring)
    chunks = [-(-int(size) // per_wavelet) for size in bucket_sizes(elements, count)]
    last: list[tuple[int, ...]] = [()] * count
    for step in range(2 * (count - 1)):
        now: list[tuple[int, ...]] = [()] * count
        for place in range(count):
            after = (place + 1) % count
            size = chunks[(place - step) % count]
            flows.append(Flow(ring[place], (ring[after],), size, last[place], turn=step))
            now[after] = (len(flows) - 1,)
        last = now


def reduce_flows(
    flows: list[Flow],
    algorithm: str,
    cores: Sequence[int],
    wavelets: int,
    into: Needs,
    turn: int = 0,
) -> int:
    """Add the messages of a sum over a row; return the core that has it in the end.

    Parameters
    ----------
    flows : list of Flow
        Added to.
    algorithm : str
    cores : sequence of int
    wavelets : int
    into : mapping of int to list of int
        Added to for the root.
    turn : int
        Of the first messages.
    """
    if algorithm == "chain":
        if len(cores) > 1:
            last = chain_flows(flows, cores, wavelets, into, turn)
            into.setdefault(cores[-1], []).append(last)
        return cores[-1]
    if algorithm == "star":
        root = cores[len(cores) // 2]
        for core in cores:
            if core != root:
                flows.append(Flow(core, (root,), wavelets, tuple(into.get(core, ())), turn=turn))
                into.setdefault(root, []).append(len(flows) - 1)
        return root
    levels = ALGORITHMS.index(algorithm) - ONE_LEVEL + 1
    return tree_flows(flows, cores, wavelets, levels, into, turn)


def reduction(
    algorithm: str,
    rows: int,
    columns: int,
    elements: int,
    elements_per_wavelet: int = 2,
    to_all: bool = True,
) -> list[Flow]:
    """Return the flows of a sum of vectors over all cores of a mesh.

    Parameters
    ----------
    algorithm : str
        One of `perfmodel.kernels.wafer.reduce.ALGORITHMS`.
    rows, columns : int
        Of the mesh; core (r, c) is number ``r columns + c``.
    elements : int
        Of the vector that every core has.
    elements_per_wavelet : int
    to_all : bool
        Whether all cores get the sum (all-reduce), or one (reduce).

    Raises
    ------
    DataError
        Unknown algorithm, or sizes that cannot be.
    """
    if algorithm not in ALGORITHMS:
        raise DataError(
            f"unknown algorithm '{algorithm}'{did_you_mean(algorithm, ALGORITHMS)}; it may be "
            + ", ".join(ALGORITHMS)
        )
    for name, value in (
        ("rows", rows),
        ("columns", columns),
        ("elements", elements),
        ("elements_per_wavelet", elements_per_wavelet),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"'{name}': a whole number above 0, not {value!r}")
    if rows * columns * elements > LARGEST:
        raise DataError(
            f"'elements': {rows * columns * elements:,} of all cores exceed {LARGEST:,}"
        )
    flows: list[Flow] = []
    lines = [range(row * columns, (row + 1) * columns) for row in range(rows)]
    if algorithm == "ring":
        if not to_all:
            raise DataError("a ring has no root: its sum is an all-reduce")
        if rows > 1 and columns > 1:
            raise DataError("a ring is simulated over a row or a column, not over a rectangle")
        whole = [core for line in lines for core in line]
        ring_flows(flows, whole, elements, elements_per_wavelet)
        return flows
    wavelets = -(-elements // elements_per_wavelet)
    into: Needs = {}
    roots = [reduce_flows(flows, algorithm, line, wavelets, into) for line in lines]
    root = roots[0]
    if rows > 1:
        root = reduce_flows(flows, algorithm, roots, wavelets, into, len(ALGORITHMS))
    if to_all and rows * columns > 1:
        others = tuple(core for core in range(rows * columns) if core != root)
        needs = tuple(into.get(root, ()))
        flows.append(Flow(root, others, wavelets, needs, turn=2 * len(ALGORITHMS)))
    return flows


def simulated_cycles(
    flows: Sequence[Flow],
    rows: int,
    columns: int,
    hop_cycles: int = 1,
    ramp_cycles: int = 2,
    stage_cycles: int = 0,
) -> Integers:
    """Run flows on a mesh cycle by cycle.

    Parameters
    ----------
    flows : sequence of Flow
    rows, columns : int
        Of the mesh.
    hop_cycles, ramp_cycles, stage_cycles : int
        From router to router; between core and router; of software, before a core sends.

    Returns
    -------
    array of int, shape (flows,)
        Cycles until each has arrived at its last target.

    Raises
    ------
    DataError
        Cores that the mesh does not have, more wavelets than are simulated, or flows that wait
        for ever.
    """
    cores = rows * columns
    for name, value, least in (
        ("hop_cycles", hop_cycles, 1),
        ("ramp_cycles", ramp_cycles, 0),
        ("stage_cycles", stage_cycles, 0),
    ):
        if not isinstance(value, int) or value < least:
            raise DataError(f"'{name}': a whole number of at least {least}, not {value!r}")
    hops = 0
    for number, flow in enumerate(flows):
        ends = (flow.source, *flow.targets)
        if not all(0 <= core < cores for core in ends) or flow.source in flow.targets:
            raise DataError(f"flow {number}: cores 0 to {cores - 1}, targets other than its source")
        if any(not 0 <= need < number for need in (*flow.needs, *flow.streams)):
            raise DataError(f"flow {number}: it may wait for earlier flows only")
        row, column = divmod(flow.source, columns)
        way = sum(abs(one // columns - row) + abs(one % columns - column) for one in flow.targets)
        hops += flow.wavelets * way
    if hops > 4 * LARGEST or len(flows) * cores > 2 * LARGEST:  # a quarter of a GB either way
        raise DataError(f"{len(flows):,} flows over {cores:,} cores are too many to simulate")
    needs = [(*flow.needs, *flow.streams) for flow in flows]
    streams = [
        flag for flow in flows for flag in [False] * len(flow.needs) + [True] * len(flow.streams)
    ]
    arrays = (
        np.array([flow.source for flow in flows], dtype=np.int64),
        _offsets([len(flow.targets) for flow in flows]),
        np.array([core for flow in flows for core in flow.targets], dtype=np.int64),
        np.array([flow.wavelets for flow in flows], dtype=np.int64),
        _offsets([len(one) for one in needs]),
        np.array([need for one in needs for need in one], dtype=np.int64),
        np.array(streams, dtype=np.bool_),
        np.array([flow.turn for flow in flows], dtype=np.int64),
    )
    with kernel_work(wavelet_hops=hops):
        from perfmodel.kernels.wafer import simulate

        found: Integers = simulate.simulate_flows(
            rows, columns, *arrays, hop_cycles, ramp_cycles, stage_cycles
        )
    if (found < 0).any():
        raise DataError(f"flow {int(np.argmin(found))} waits for ever")
    return found


def _offsets(lengths: Sequence[int]) -> Integers:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


# Times of a collective, in closed form and simulated.

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather")
LARGEST_VECTOR = 2**40
"""Bytes of a core's vector."""
MOST_SIMULATED = 4_000_000
"""Cores x cycles of all that is simulated at once: seconds, even uncompiled."""


class MeshCollective(NamedTuple):
    """One collective over a row or a rectangle of cores.

    Attributes
    ----------
    collective, algorithm : str
    rows, columns : int
    size : int
        A core's vector [B]; of all_gather, what each core gives.
    cycles : float
    time : float
        [s].
    contention, hops, longest, depth : float or None
        Of an all-reduce over a row: wavelets of the busiest core, wavelets x hops, hops and
        messages one after the other.
    simulated_cycles : int or None
        Of the mesh cycle by cycle, where that was asked for.
    """

    collective: str
    algorithm: str
    rows: int
    columns: int
    size: int
    cycles: float
    time: float
    contention: float | None
    hops: float | None
    longest: float | None
    depth: float | None
    simulated_cycles: int | None


def mesh_collective_times(
    hardware: MeshHardware | str,
    collective: str,
    grids: Sequence[Any],
    sizes: Sequence[int],
    algorithms: Sequence[str] = ALGORITHMS,
    element_bytes: int = 2,
    simulated: bool = False,
) -> list[MeshCollective]:
    """Return the times of a collective for all grids, sizes and algorithms that do it.

    Parameters
    ----------
    hardware : MeshHardware or str
    collective : {"all_reduce", "reduce", "broadcast", "all_gather"}
        The last over a row or column only, as is every ring.
    grids : sequence of int, str or (int, int)
        Rows and columns of cores; of a number, so many in a row.
    sizes : sequence of int
        Bytes of a core's vector.
    algorithms : sequence of str
        Of `perfmodel.kernels.wafer.reduce.ALGORITHMS`; a broadcast has none, an all-gather
        ``ring`` or, as ``star``, one multicast of every core.
    element_bytes : int
        [B].
    simulated : bool
        Also run reduce and all_reduce cycle by cycle (small grids).

    Returns
    -------
    list of MeshCollective
        Grid by grid, size by size.

    Raises
    ------
    DataError, HardwareError
        Unknown names, sizes that cannot be, more cores than the mesh has, or too much to simulate.
    """
    mesh = load_mesh(hardware)
    _check(mesh, collective, sizes, algorithms, element_bytes)
    names = {"broadcast": ["multicast"], "all_gather": ["star", "ring"]}.get(collective)
    found = []
    simulated_so_far = 0.0
    for grid in grids:
        rows, columns = parse_grid((1, grid) if isinstance(grid, int) else grid)
        if rows > mesh.rows or columns > mesh.columns:
            raise DataError(
                f"grid {rows} x {columns} exceeds the {mesh.rows} x {mesh.columns} cores of "
                f"{mesh.name}"
            )
        if rows > 1 and columns > 1 and collective == "all_gather":
            raise DataError(f"all_gather: over a row or a column, not over {rows} x {columns}")
        for size in sizes:
            for name in names or algorithms:
                if names and collective == "all_gather" and name not in algorithms:
                    continue
                if name == "ring" and (collective == "reduce" or min(rows, columns) > 1):
                    continue
                one = _one(mesh, collective, name, rows, columns, size, element_bytes)
                if simulated and collective in ("all_reduce", "reduce") and one.cycles:
                    simulated_so_far += one.cycles * rows * columns
                    if simulated_so_far > MOST_SIMULATED:
                        raise DataError(
                            f"{name} over {rows} x {columns} cores: {simulated_so_far:,.0f} cores "
                            f"x cycles in all, {MOST_SIMULATED:,} at most are simulated; ask for "
                            "fewer cores, bytes or algorithms"
                        )
                    one = one._replace(simulated_cycles=_run(mesh, one, element_bytes))
                found.append(one)
    if not found:
        raise DataError(f"none of {', '.join(algorithms)} does {collective} over these cores")
    return found


def _one(
    mesh: MeshHardware,
    collective: str,
    name: str,
    rows: int,
    columns: int,
    size: int,
    element_bytes: int,
) -> MeshCollective:
    elements = -(-size // element_bytes)
    per_wavelet = max(1, int(mesh.link_width // element_bytes))
    stage = mesh.constants.get("stage_latency", 0.0)
    lone = min(rows, columns) == 1
    cores = float(max(rows, columns))
    along = (float(elements), float(per_wavelet), mesh.hop_cycles, stage, mesh.ramp_cycles)
    counts: Any = None
    if collective == "broadcast":
        wavelets = reduce.wavelets_of(along[0], along[1])
        far = rows + columns - 2.0
        cycles = reduce.message_cycles(wavelets, far, mesh.hop_cycles, mesh.ramp_cycles, stage)
        cycles = cycles if far and size else 0.0
    else:
        algorithm = ALGORITHMS.index(name)
        if collective == "all_gather":
            cycles = reduce.all_gather_cycles(algorithm, cores, *along)
        elif collective == "all_reduce":
            if lone:
                cycles = reduce.all_reduce_cycles(algorithm, cores, *along)
                counts = reduce.all_reduce_counts(algorithm, cores, *along[:2])
            else:
                cycles = reduce.grid_all_reduce_cycles(
                    algorithm, float(rows), float(columns), *along
                )
        else:
            cycles = reduce.reduce_cycles(algorithm, float(columns), *along)
            cycles += reduce.reduce_cycles(algorithm, float(rows), *along)
    contention, hops, _, longest, depth = counts or (None,) * 5
    return MeshCollective(
        collective, name, rows, columns, size, cycles, cycles / mesh.clock,
        contention, hops, longest, depth, None,
    )  # fmt: skip


def _run(mesh: MeshHardware, one: MeshCollective, element_bytes: int) -> int:
    flows = reduction(
        one.algorithm,
        one.rows,
        one.columns,
        -(-one.size // element_bytes),
        max(1, int(mesh.link_width // element_bytes)),
        one.collective == "all_reduce",
    )
    stage = round(mesh.constants.get("stage_latency", 0.0))
    machine = (_whole(mesh, "hop_cycles"), _whole(mesh, "ramp_cycles"), stage)
    return int(simulated_cycles(flows, one.rows, one.columns, *machine).max())


def _whole(mesh: MeshHardware, key: str) -> int:
    value: float = getattr(mesh, key)
    if value != int(value):
        raise DataError(f"'mesh.{key}': the simulation needs whole cycles, not {value:g}")
    return int(value)


def _check(
    mesh: MeshHardware,
    collective: str,
    sizes: Sequence[int],
    algorithms: Sequence[str],
    element_bytes: int,
) -> None:
    if collective not in COLLECTIVES:
        raise DataError(
            f"unknown collective '{collective}'{did_you_mean(collective, COLLECTIVES)}; it may be "
            + ", ".join(COLLECTIVES)
        )
    for name in algorithms:
        if name not in ALGORITHMS:
            raise DataError(
                f"unknown algorithm '{name}'{did_you_mean(name, ALGORITHMS)}; it may be "
                + ", ".join(ALGORITHMS)
            )
    if not 1 <= element_bytes <= mesh.link_width:
        raise DataError(
            f"element size: 1 to {mesh.link_width:g} B, the width of a link, not {element_bytes}"
        )
    for size in sizes:
        if not 0 <= size <= LARGEST_VECTOR:
            raise DataError(f"size: 0 to {LARGEST_VECTOR} B, not {size}")
