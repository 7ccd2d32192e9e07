"""What a row of a table of wafers is projected as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.mesh.products import gemv_cycles
from perfmodel.kernels.mesh.reduce import TWO_LEVEL
from perfmodel.measured.rows import Skip
from perfmodel.measured.wafer_rows import GEMV, PREFILL, WHOLE, WaferCase
from perfmodel.wafer.chips import chip_times

ELEMENT_BYTES = 2.0  # of fp16, in which the products of the tables are


@dataclass(frozen=True)
class Price:
    """A projection.

    Attributes
    ----------
    value : float
        Time [s], or tokens of a capacity.
    details : mapping of str to value
        What it is made of, SI units.
    assumed : tuple of str
        What the row leaves open and the projection chose, as ``field=value``.
    """

    value: float
    details: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def price(case: WaferCase, constants: Mapping[str, float] | None = None) -> Price:
    """Project a case.

    Parameters
    ----------
    case : WaferCase
    constants : mapping of str to float, optional
        Values that stand in for those of the profile.

    Raises
    ------
    Skip
        The row does not say enough, or there is no projection of such a run.
    PerfModelError
        The projection refuses it.
    """
    hardware = case.hardware
    if constants:
        changed = {f"constants.{name}": value for name, value in constants.items()}
        hardware = hardware.with_values(changed)
    if case.phase == GEMV:
        return _product(case, hardware)
    if hardware.dram_bandwidth:
        return _chips(case, hardware)
    raise Skip("runs of this kind are not projected yet", case.phase)


def _chips(case: WaferCase, hardware: MeshHardware) -> Price:
    """Project a pass of a model on chips with memory beside their cores."""
    if case.model is None or case.phase == WHOLE:
        raise Skip("runs of this kind are not projected on chips with memory beside them")
    found = chip_times(
        case.model,
        hardware,
        phase=case.phase,
        batch=1 if case.phase == PREFILL else case.batch,
        context=case.input_length,
    )
    details = {f"{name}_time": value for name, value in found._asdict().items() if name != "time"}
    return Price(found.time, details, ("weights=bfp8",))


def _product(case: WaferCase, hardware: MeshHardware) -> Price:
    """Project a vector times a matrix, on the fastest square that holds it where none is stated."""
    rows, columns = case.product
    grid = case.grids.get(PREFILL)
    if grid is not None:
        compute, network = _gemv(hardware, rows, columns, *grid)
        return Price((compute + network) / hardware.clock, _parts(hardware, compute, network))
    best = None
    for side in range(1, min(hardware.rows, hardware.columns, rows, columns) + 1):
        held = -(-rows // side) * -(-columns // side) * ELEMENT_BYTES
        if held > hardware.sram_per_core - hardware.sram_reserved:
            continue
        parts = _gemv(hardware, rows, columns, side, side)
        if best is None or sum(parts) < sum(best[0]):
            best = (parts, side)
    if best is None:
        raise Skip("the matrix exceeds the memory of the cores", f"{rows} x {columns}")
    (compute, network), side = best
    details = _parts(hardware, compute, network)
    return Price((compute + network) / hardware.clock, details, (f"grid={side}x{side}",))


def _parts(hardware: MeshHardware, compute: float, network: float) -> dict[str, float]:
    return {"compute_time": compute / hardware.clock, "network_time": network / hardware.clock}


def _gemv(
    hardware: MeshHardware, rows: int, columns: int, grid_rows: int, grid_columns: int
) -> tuple[float, float]:
    """Return the cycles of compute and network of a vector times a matrix."""
    compute, network = gemv_cycles(
        float(rows),
        float(columns),
        float(grid_columns),
        float(grid_rows),
        TWO_LEVEL,
        ELEMENT_BYTES,
        hardware.peak_macs("fp16"),
        hardware.sram_read,
        hardware.sram_write,
        hardware.constant("vector_issue"),
        hardware.link_width / ELEMENT_BYTES,
        hardware.hop_cycles,
        hardware.constant("stage_latency"),
        hardware.ramp_cycles,
    )
    return float(compute), float(network)
