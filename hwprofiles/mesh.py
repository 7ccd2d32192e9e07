"""`MeshHardware`: chips that are meshes of cores, each with memory of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.fields import Field, fact_field
from perfmodel.hwprofiles.build import check_value
from perfmodel.hwprofiles.schema import LEAST

MOST_CORES = 2.0**24  # of a chip; more is a mistake


_field = partial(fact_field, least=LEAST, noun="an integer")
_positive = partial(_field, "number", positive=True)


MESH: Mapping[str, Field] = {
    "rows": _field("count", "usable rows of cores of a chip", minimum=1, maximum=MOST_CORES),
    "columns": _field("count", "usable columns of cores of a chip", minimum=1, maximum=MOST_CORES),
    "cores": _field(
        "count",
        "cores that the maker counts; 0: rows x columns",
        default=0,
        maximum=MOST_CORES,
    ),
    "clock": _positive("cycles per second", "Hz"),
    "sram_per_core": _positive("memory of a core", "B"),
    "sram_reserved": _field("number", "of it, taken by code and the runtime", "B", default=0.0),
    "sram_read": _positive("from its memory, per core", "B/cycle"),
    "sram_write": _positive("to its memory, per core", "B/cycle"),
    "link_width": _positive("per link and direction", "B/cycle"),
    "hop_cycles": _positive("from router to router", "cycles"),
    "ramp_cycles": _field("number", "from core to router, or back", "cycles"),
    "routes": _field("count", "routes that a router holds; 0: any number", default=0),
    "chip_rows": _field("count", "rows of chips", minimum=1, default=1, maximum=MOST_CORES),
    "chip_columns": _field("count", "columns of chips", minimum=1, default=1, maximum=MOST_CORES),
    "chip_bandwidth": _field("number", "between chips, per direction", "B/s", default=0.0),
    "chip_latency": _field("number", "between neighbouring chips", "s", default=0.0),
    "dram_bandwidth": _field("number", "of memory beside a chip; 0: none", "B/s", default=0.0),
    "dram_capacity": _field("number", "of memory beside a chip; 0: none", "B", default=0.0),
}
"""Facts of a mesh, as its file states them in ``[mesh]``."""

PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "bfp8", "bfp4", "int8")
"""Number formats with a rate of their own; ``bfp8``: 16 elements share an exponent."""

RATE = _positive("peak multiply-adds of a core", "1/cycle")

CONSTANTS: Mapping[str, Field] = {
    "mac_fraction": _positive(
        "share of the peak rate that a product's loop sustains", "", maximum=1
    ),
    "loop_issue": _field("number", "start of a product's loop over vectors", "cycles"),
    "vector_issue": _field("number", "start of a vector instruction", "cycles"),
    "element_cycles": _field("number", "of an elementwise operation on one number", "cycles"),
    "stage_latency": _field(
        "number", "of a dependent message, beyond ramps, way and wavelets", "cycles"
    ),
    "dram_fraction": _positive("share of the memory's bandwidth in decode", "", maximum=1),
    "layer_latency": _field("number", "of the host's dispatch of a layer in prefill", "s"),
}
"""Constants that measurements may move, at most `MOST_CONSTANTS` a device."""

MOST_CONSTANTS = 5


@dataclass(frozen=True)
class MeshHardware:
    """A mesh of cores with local memory, and what its calibrated constants are.

    Attributes
    ----------
    name, title : str
    rows, columns : int
        Usable cores of a chip.
    clock : float
        Cycles per second.
    sram_per_core : float
        Bytes of a core's memory.
    sram_reserved : float
        Bytes of it that code and buffers of the runtime take.
    macs_per_cycle : mapping of str to float
        Precision -> peak multiply-adds of a core per cycle.
    sram_read, sram_write : float
        Bytes per cycle of a core.
    link_width : float
        Bytes per cycle, link and direction.
    hop_cycles, ramp_cycles : float
        Cycles from router to router; from core to router or back (T_R of Luczynski et al.).
    routes : int
        Routes (colours) that a core's router can hold; 0 where packets carry their address.
    chips : int
        Chips of the system, side by side.
    chip_bandwidth, chip_latency : float
        Bytes per second and direction between two neighbouring chips; seconds.
    dram_bandwidth, dram_capacity : float
        Of memory beside the mesh, per chip; 0 where there is none.
    constants : mapping of str to float
        Calibrated constants by name (`CONSTANTS`), at most five a device.
    source : mapping of str to str
        Path in the profile's file (``mesh.clock``) -> where its number is from.
    cores : int
        Of a chip, as its maker counts them: a rectangle that programs can use may be smaller.
    chip_grid : (int, int)
        Rows and columns of chips.
    aliases, notes : tuple of str
    """

    name: str
    title: str
    rows: int
    columns: int
    clock: float
    sram_per_core: float
    sram_reserved: float
    macs_per_cycle: Mapping[str, float]
    sram_read: float
    sram_write: float
    link_width: float
    hop_cycles: float
    ramp_cycles: float
    routes: int
    chips: int = 1
    chip_bandwidth: float = 0.0
    chip_latency: float = 0.0
    dram_bandwidth: float = 0.0
    dram_capacity: float = 0.0
    constants: Mapping[str, float] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    chip_grid: tuple[int, int] = (1, 1)
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cores:
            object.__setattr__(self, "cores", self.rows * self.columns)
        if self.chip_grid == (1, 1) and self.chips > 1:
            object.__setattr__(self, "chip_grid", (1, self.chips))
        if math.prod(self.chip_grid) != self.chips:
            rows, columns = self.chip_grid
            raise HardwareError(f"{self.name}: {rows} x {columns} chips are not {self.chips}")

    @property
    def sram_free(self) -> float:
        """Bytes of a core's memory for weights, activations and the cache."""
        return self.sram_per_core - self.sram_reserved

    def peak_macs(self, precision: str) -> float:
        """Return the peak multiply-adds of a core per cycle.

        Raises
        ------
        HardwareError
            No rate for the precision.
        """
        if precision not in self.macs_per_cycle:
            raise HardwareError(
                f"{self.name} has no rate for precision '{precision}'"
                f"{did_you_mean(precision, self.macs_per_cycle)}; "
                f"it has {', '.join(self.macs_per_cycle)}"
            )
        return self.macs_per_cycle[precision]

    def constant(self, name: str) -> float:
        """Return a calibrated constant.

        Raises
        ------
        HardwareError
            The profile has none of the name.
        """
        if name not in self.constants:
            known = ", ".join(self.constants) or "none"
            raise HardwareError(f"{self.name} has no constant '{name}'; it has {known}")
        return self.constants[name]

    def with_values(self, values: Mapping[str, object]) -> MeshHardware:
        """Return a copy with some values replaced, checked as those of a file are.

        Parameters
        ----------
        values : mapping of str to number
            Path (``mesh.clock``, ``macs_per_cycle.fp16``, ``constants.stage_latency``) -> value.

        Raises
        ------
        HardwareError
            Unknown path, or a value that its key cannot have.
        """
        paths = mesh_paths(self)
        changed: dict[str, Any] = {}
        source = dict(self.source)
        for path, value in values.items():
            if path not in paths:
                raise HardwareError(
                    f"{self.name}: no value '{path}'{did_you_mean(path, paths)}; paths are those "
                    f"of 'perfmodel hardware show {self.name}'"
                )
            checked = check_value(value, paths[path], path, lambda _: f"{self.name}, overridden")
            table, key = path.split(".", 1)
            if table == "mesh":
                changed[key] = checked
            else:
                changed[table] = {**changed.get(table, getattr(self, table)), key: checked}
            source[path] = "overridden"
        rows = changed.pop("chip_rows", self.chip_grid[0])
        columns = changed.pop("chip_columns", self.chip_grid[1])
        if ("rows" in changed or "columns" in changed) and "cores" not in changed:
            changed["cores"] = 0
        return checked_mesh(
            dataclasses.replace(
                self, **changed, chip_grid=(rows, columns), chips=rows * columns, source=source
            )
        )

    def value(self, path: str) -> float:
        """Return the value of one of `mesh_paths`."""
        table, key = path.split(".", 1)
        if table == "mesh":
            grid = {"chip_rows": self.chip_grid[0], "chip_columns": self.chip_grid[1]}
            found: float = grid[key] if key in grid else getattr(self, key)
            return found
        return float(getattr(self, table)[key])

    def to_dict(self) -> dict[str, Any]:
        """Return all values, with units in the keys of `MESH`, for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "aliases": list(self.aliases),
            "notes": list(self.notes),
            "mesh": {key: self.value(f"mesh.{key}") for key in MESH},
            "macs_per_cycle": dict(self.macs_per_cycle),
            "constants": dict(self.constants),
            "source": dict(self.source),
        }


def mesh_paths(hardware: MeshHardware) -> dict[str, Field]:
    """Return the path of every number of a mesh, with its field."""
    return (
        {f"mesh.{key}": one for key, one in MESH.items()}
        | {f"macs_per_cycle.{key}": RATE for key in hardware.macs_per_cycle}
        | {f"constants.{key}": CONSTANTS[key] for key in hardware.constants}
    )


def checked_mesh(hardware: MeshHardware) -> MeshHardware:
    """Return a mesh whose numbers go together.

    Raises
    ------
    HardwareError
    """
    name = hardware.name
    for key in ("cores", "chips"):
        if getattr(hardware, key) > MOST_CORES:
            raise HardwareError(
                f"{name}: {getattr(hardware, key):,} {key} exceed {MOST_CORES:,.0f}"
            )
    if hardware.sram_reserved >= hardware.sram_per_core:
        raise HardwareError(
            f"{name}: 'mesh.sram_reserved' leaves nothing of the {hardware.sram_per_core:g} B "
            "of 'mesh.sram_per_core'"
        )
    if hardware.chips > 1 and hardware.chip_bandwidth <= 0.0:
        raise HardwareError(f"{name}: {hardware.chips} chips need 'mesh.chip_bandwidth'")
    return hardware


def mesh_of_nodes(
    wafer: MeshHardware,
    node_grid: tuple[int, int],
    core_grid: tuple[int, int],
    bank_bytes: float | None = None,
) -> MeshHardware:
    """Return a wafer's cores as a mesh of nodes, each a mesh of cores with banks.

    This is how the wafer workload generator (huawei-csl/wse-workload-generator) sees a wafer.

    Parameters
    ----------
    wafer : MeshHardware
        Whose cores, links and clock these are: the generator has no numbers of its own.
    node_grid, core_grid : (int, int)
        Rows and columns of nodes, and of cores in a node.
    bank_bytes : float, optional
        Memory beside each core [B]; the wafer's own memory of a core by default.

    Returns
    -------
    MeshHardware
        Nodes are its chips; neighbours are joined by the links of the shorter side of a node
        over which they touch, and a hop apart.

    Raises
    ------
    HardwareError
        More cores than the wafer has, or a grid that is none.
    """
    for key, grid in (("node_grid", node_grid), ("core_grid", core_grid)):
        if len(grid) != 2 or any(not isinstance(side, int) or side < 1 for side in grid):
            raise HardwareError(f"'{key}': two whole numbers above 0, not {grid}")
    wanted = math.prod(node_grid) * math.prod(core_grid)
    if wanted > wafer.cores * wafer.chips:
        raise HardwareError(
            f"'core_grid' x 'node_grid': {wanted:,} cores exceed the "
            f"{wafer.cores * wafer.chips:,} of {wafer.name}"
        )
    bank = wafer.sram_per_core if bank_bytes is None else bank_bytes
    if not (math.isfinite(bank) and bank > wafer.sram_reserved):
        raise HardwareError(f"'bank_bytes': more than {wafer.sram_reserved:g} B, not {bank!r}")
    side = min(core_grid)
    given = dict.fromkeys(
        (f"mesh.{key}" for key in ("rows", "columns", "cores", "chip_rows", "chip_columns")),
        "grids given",
    )
    given["mesh.chip_bandwidth"] = given["mesh.chip_latency"] = (
        "derived: links over which two nodes touch; one hop"
    )
    if bank_bytes is not None:
        given["mesh.sram_per_core"] = "bank given"
    return checked_mesh(
        dataclasses.replace(
            wafer,
            name=f"{wafer.name}-nodes",
            title=f"{node_grid[0]} x {node_grid[1]} nodes of {core_grid[0]} x {core_grid[1]} "
            f"cores with banks, cores of {wafer.name}",
            rows=core_grid[0],
            columns=core_grid[1],
            cores=0,
            sram_per_core=bank,
            chips=math.prod(node_grid),
            chip_grid=node_grid,
            chip_bandwidth=side * wafer.link_width * wafer.clock,
            chip_latency=wafer.hop_cycles / wafer.clock,
            aliases=(),
            source={**wafer.source, **given},
        )
    )
