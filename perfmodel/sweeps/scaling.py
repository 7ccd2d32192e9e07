"""How the throughput of a sweep scales with the number of devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.sweeps.ranked import Ranked
from perfmodel.sweeps.results import as_table, column, rows, select

if TYPE_CHECKING:
    import xarray as xr

RATE = "tokens_per_second_per_device"
GROUPS = ("model", "framework", "hardware", "sequence_length", "precision")
"""What a curve has one of."""


def scaling(
    results: Table | xr.Dataset, *, where: str | None = None, fitting: bool = True
) -> Ranked:
    """Return the best strategy on every number of devices, and how efficient it is.

    Parameters
    ----------
    results : xarray.Dataset or Table
        Of `perfmodel.sweep_several` or ``perfmodel sweep --devices 256,512,1024``.
    where : str, optional
        Filter, such as ``"tensor_parallel <= 8"``.
    fitting : bool
        Leave out what does not fit in memory.

    Returns
    -------
    Ranked
        One strategy per curve and number of devices, the smallest number first: what has the
        most tokens per second and device. Beside what `best` gives ``devices``,
        ``tokens_per_second`` [1/s] and ``scaling_efficiency`` [1]: tokens per second and device
        over those of the smallest number of devices of the curve. A curve is one model,
        framework, hardware row, sequence length and precision.

    Raises
    ------
    DataError
        Malformed filter, or nothing that says on how many devices a strategy runs.
    """
    table = as_table(results)
    devices = column(table, "devices")
    chosen = select(table, where, fitting=fitting)
    found = Ranked()
    for curve in _curves(table, chosen):
        best = rows(table, np.array(list(_best_of_each(table, devices, curve)), np.intp))
        for row, count in zip(best, np.unique(devices[curve]).tolist(), strict=True):
            row["devices"] = count
            row["tokens_per_second"] = row[RATE] * count
            row["scaling_efficiency"] = row[RATE] / best[0][RATE]
        found += best
    return found


def _curves(table: Table, chosen: np.ndarray) -> Iterator[np.ndarray]:
    """Give the flat indices of every curve, in the order of the table."""
    codes = []
    for name in GROUPS:
        try:
            values = column(table, name)[chosen]
        except DataError:  # a file of one model and software does not have to name them
            continue
        codes.append(np.unique(values, return_inverse=True)[1])
    if not chosen.size:
        return
    _, first, curve = np.unique(
        np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
    )
    curve = curve.reshape(-1)
    for number in np.argsort(first):
        yield chosen[curve == number]


def _best_of_each(table: Table, devices: np.ndarray, curve: np.ndarray) -> Iterator[Any]:
    """Give the best index of a curve on each number of devices, the smallest first."""
    rate = column(table, RATE)
    for count in np.unique(devices[curve]):
        here = curve[devices[curve] == count]
        yield here[np.argmax(rate[here])]
