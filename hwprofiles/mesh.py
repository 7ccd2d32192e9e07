"""`MeshHardware`: chips that are meshes of cores, each with memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        Cycles from router to router; from core to router and back (T_R of Luczynski et al.).
    routes : int
        Routes (colours) that a core's router can hold.
    chips : int
        Chips of the system, side by side.
    chip_bandwidth, chip_latency : float
        Bytes per second and direction between two chips; seconds.
    dram_bandwidth, dram_capacity : float
        Of memory beside the mesh, per chip; 0 where there is none.
    constants : mapping of str to float
        Calibrated constants by name, at most five a device.
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
