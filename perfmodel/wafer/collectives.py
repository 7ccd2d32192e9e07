"""Times of sums, copies and gathers over the cores of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.kernels.wafer import reduce
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.wafer.flows import reduction, simulated_cycles
from perfmodel.wafer.mappings import parse_grid

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather")
LARGEST = 2**40
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
        if not 0 <= size <= LARGEST:
            raise DataError(f"size: 0 to {LARGEST} B, not {size}")
