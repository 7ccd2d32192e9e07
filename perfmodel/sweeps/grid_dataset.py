"""A grid of kernels on one or more devices as a labelled table.

Dimensions are ``hardware`` and ``shape``; the axes of the grid are coordinates along
``shape``. A kernel that a device has no unit for has NaN as its time, and the bound
``unsupported``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.precisions import rate_format
from perfmodel.base.provenance import versions
from perfmodel.base.table import Axis, Column, Table, described, flags
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.hardware import row_names, unit_of
from perfmodel.kernels.variables import read_variables
from perfmodel.sweeps.trust import add_trust

SCHEMA_VERSION = "1.0"
UNSUPPORTED = "unsupported"

KERNEL_VARIABLES, COLLECTIVE_VARIABLES = (
    {variable.name: variable for variable in found}
    for found in read_variables(Path(__file__).with_name("variables.csv")).values()
)
COUNTED = ("tile_m", "tile_n", "split_k")


def kernel_table(
    kernel: str,
    rows: Sequence[Hardware],
    axes: Sequence[Axis],
    columns: Mapping[str, NDArray[Any]],
    results: Mapping[str, NDArray[Any]],
    bounds: Sequence[str],
    swept: Mapping[str, Sequence[float]] | None = None,
) -> Table:
    """Label the results of a grid.

    Parameters
    ----------
    kernel : str
        ``gemm``, ``attention``, …
    rows : sequence of Hardware
        Along ``hardware``.
    axes, columns
        The grid, and its columns from `perfmodel.base.table.cartesian`; further columns are
        coordinates too.
    results : mapping of str to ndarray, shape (hardware, shape)
        Names of `KERNEL_VARIABLES`; ``bound`` is an index into `bounds`, -1 where the
        device has no such kernel.
    bounds : sequence of str
    swept : mapping of str to sequence of float, optional
        Values of swept paths of the profile along ``hardware``.

    Returns
    -------
    Table
        Also with the achieved rates, where `results` allows.
    """
    count = len(next(iter(columns.values())))
    coordinates = {
        "shape": Column(
            "shape", np.arange(count), {"units": "1", "long_name": "kernel of the grid"}
        ),
        "hardware": Column(
            "hardware", row_names(rows), {"units": "1", "long_name": "hardware profile"}
        ),
    }
    for path, numbers in (swept or {}).items():
        about = {"units": unit_of(rows[0], path), "long_name": f"swept value of {path}"}
        coordinates[path] = Column("hardware", numbers, about)
    for axis in axes:
        about = {"units": axis.units, "long_name": axis.long_name}
        coordinates[axis.name] = Column("shape", columns[axis.name], about)
    found = {**results, **_rates(rows, columns, results)}
    data = {}
    for name, variable in KERNEL_VARIABLES.items():
        if name not in found:
            continue
        values = found[name]
        attributes: dict[str, Any] = {"units": variable.units, "long_name": variable.long_name}
        if name == "bound":
            values = np.where(values < 0, len(bounds), values).astype(np.int8)
            attributes |= flags((*bounds, UNSUPPORTED))
        elif name in COUNTED:
            values = values.astype(np.int32)
        data[name] = Column(("hardware", "shape"), values, attributes)
    sizes = {"hardware": len(rows), "shape": count}
    return add_trust(Table(data, coordinates, _attributes(kernel, rows), sizes), rows)


def _rates(
    rows: Sequence[Hardware],
    columns: Mapping[str, NDArray[Any]],
    results: Mapping[str, NDArray[Any]],
) -> dict[str, NDArray[np.float64]]:
    """Return the achieved rates and their shares of the datasheet's."""
    found = {}
    if "flops" in results:
        found["flops_per_second"] = results["flops"] / results["time"]
    if "flops" in results and "precision" in columns:
        peaks = np.array([_peaks(row, columns["precision"]) for row in rows])
        found["peak_share"] = found["flops_per_second"] / peaks
    if "memory_traffic" in results:
        found["bytes_per_second"] = results["memory_traffic"] / results["time"]
        bandwidth = np.array([[row.device.memory.bandwidth] for row in rows])
        found["bandwidth_share"] = found["bytes_per_second"] / bandwidth
    return found


def _peaks(hardware: Hardware, precisions: NDArray[Any]) -> NDArray[np.float64]:
    """Return the dense matrix rate of every precision, NaN where there is none."""
    names, places = np.unique(precisions, return_inverse=True)
    known = hardware.device.peak_flops
    return np.array([known.get(rate_format(n), math.nan) for n in names.tolist()])[places]


def _attributes(kernel: str, rows: Sequence[Hardware]) -> dict[str, Any]:
    provenance = {
        "hardware": {name: row.to_dict() for name, row in zip(row_names(rows), rows, strict=True)},
        "versions": versions("numpy"),
    }
    title = f"Times of {kernel} kernels"
    return described(title, SCHEMA_VERSION, kernel=kernel, provenance=provenance)


def kernel_rows(table: Table, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the kernels as dictionaries with plain Python values, device by device.

    Parameters
    ----------
    table : Table
    limit : int, optional
        How many at most.
    """
    shapes = table.sizes["shape"]
    total = shapes * table.sizes["hardware"]
    count = total if limit is None else min(limit, total)
    wanted = [
        name
        for name, column in table.variables.items()
        if name not in ("shape", "hardware") and {*column.dims} <= {"shape", "hardware"}
    ]
    columns: dict[str, list[Any]] = {}
    device, shape = np.divmod(np.arange(count), shapes)
    at = {"hardware": device, "shape": shape}
    for name in ("hardware", *wanted):
        column = table[name]
        columns[name] = column.labelled()[tuple(at[dim] for dim in column.dims)].tolist()
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
