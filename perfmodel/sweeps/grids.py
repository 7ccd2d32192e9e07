"""Grids of kernels: every combination of the axes, one call per device and format.

`KERNELS` says of every kernel which axes it has, which settings, and how a grid of it is
evaluated. `kernel_grid` evaluates it, and the commands of ``perfmodel kernel`` are made of the
same table, so that both always have the same axes, defaults and limits. Nothing is imported
here that computes: a help page costs no Numba.

How to add a kernel
-------------------
1. Write its evaluation beside those of its like, as `_attention` in `kernel_kinds.evaluations`,
   and import the model inside it.
2. Say its axes in the order of a help page, and its settings, in ``kernel_kinds/kernels.toml``;
   make a `Grid` with the axes in the order of the dataset, the last one fastest, and of both a
   kernel (`perfmodel.sweeps.kernel_kinds.kind.kernel_of`). Name it in `KERNELS`.
3. Write the page of ``perfmodel kernel <name>`` into ``cli/core/pages.toml``, and a
   column of results that no kernel has yet into `perfmodel.sweeps.grid_dataset`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import HardwareError
from perfmodel.sweeps.kernel_kinds.evaluations import (
    ATTENTION,
    CONVOLUTION,
    GEMM,
    INDEXER,
    MOE,
    SCAN,
    SPARSE_ATTENTION,
    STREAM,
)
from perfmodel.sweeps.kernel_kinds.kind import Kernel, Values, check_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from perfmodel.base.table import Table
    from perfmodel.hwprofiles import Hardware

KERNELS: Mapping[str, Kernel] = {
    kernel.name: kernel
    for kernel in (GEMM, ATTENTION, SPARSE_ATTENTION, INDEXER, SCAN, CONVOLUTION, STREAM, MOE)
}
"""All kernels, in the order of the help page."""


def kernel_grid(
    name: str,
    rows: Sequence[Hardware],
    axes: Values,
    /,
    *,
    swept: Mapping[str, Sequence[float]] | None = None,
    **settings: Any,
) -> Table:
    """Time every combination of the axes of a kernel on every device.

    Parameters
    ----------
    name : str
        One of `KERNELS`.
    rows : sequence of Hardware
    axes : mapping of str to sequence
        Values of the kernel's axes; those that have a default may be missing.
    swept : mapping of str to sequence of float, optional
        Values of swept paths of the profile, one per row of hardware.
    **settings
        Of the kernel.

    Returns
    -------
    Table
        See `perfmodel.sweeps.grid_dataset`.

    Raises
    ------
    DataError
        Unknown kernel, axis, setting or name, sizes out of range or that do not go together,
        or too many combinations.
    HardwareError
        No device has any of the kernels.

    Examples
    --------
    >>> from perfmodel.hwprofiles import load_hardware
    >>> sizes = {"m": [16, 4096], "n": [4096], "k": [4096], "precision": ["bf16", "fp8"]}
    >>> kernel_grid("gemm", [load_hardware("dgx-h100")], sizes).sizes["shape"]
    4
    """
    import numpy as np

    from perfmodel.base.table import Axis, cartesian
    from perfmodel.sweeps.grid_dataset import KERNEL_VARIABLES, kernel_table

    check_names([name], KERNELS, "unknown kernel")
    kernel = KERNELS[name]
    defaults = {setting.name: setting.default for setting in kernel.settings}
    check_names(settings, defaults, f"a grid of {name} has no setting")
    grid, values = kernel.grid(axes)
    about = {axis.name: axis for axis in kernel.axes}
    labelled = [
        Axis(
            axis,
            values[axis],
            about[axis].unit or "1",
            grid.long_names.get(axis, about[axis].long_name),
        )
        for axis in (*grid.apart, *grid.axes)
    ]
    columns = cartesian(labelled, len(rows), len(KERNEL_VARIABLES))
    size = next(iter(columns.values())).size
    codes = np.zeros(size, np.int64)
    for axis in grid.apart:
        _, inverse = np.unique(columns[axis], return_inverse=True)
        codes = codes * (int(inverse.max()) + 1) + inverse
    calls = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    results: dict[str, NDArray[Any]] = {}
    bounds: Sequence[str] = ()
    refusals: list[HardwareError] = []
    for index, hardware in enumerate(rows):
        for places in calls:
            same = {axis: columns[axis][places[0]].item() for axis in grid.apart}
            part = {axis: columns[axis][places] for axis in grid.axes}
            try:
                found, bounds = grid.evaluate(hardware, part, **same, **defaults | settings)
            except HardwareError as error:
                refusals.append(error)
                continue
            for key, column in found.items():
                if key not in results:
                    empty = -1 if key == "bound" else 0 if column.dtype.kind in "iu" else np.nan
                    results[key] = np.full((len(rows), size), empty)
                results[key][index, places] = column
    if not results:
        raise refusals[0]
    return kernel_table(grid.title, rows, labelled, columns, results, bounds, swept)
