"""How the throughput of a sweep scales with the number of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.base.variables import RATE
from perfmodel.store.ranked import Ranked
from perfmodel.store.results import as_table, column, grouped, rows, select
from perfmodel.store.subject import TRAINING, subject_of

if TYPE_CHECKING:
    import xarray as xr

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
        framework, hardware row, sequence length, precision, and batch (of weak scaling the batch
        per device).

    Raises
    ------
    DataError
        Malformed filter, results of served models, or nothing that says on how many devices a
        strategy runs.
    """
    table = as_table(results)
    if subject_of(table) is not TRAINING:
        raise DataError("scaling compares training steps, and these are none")
    devices, rate = column(table, "devices"), column(table, RATE)
    batch = column(table, "global_batch_size").astype(float)
    if table.attrs.get("scaling") == "weak":
        batch = batch / devices
    of_curve = [*(column(table, name) for name in GROUPS), batch]
    found = Ranked()
    for curve in grouped(select(table, where, fitting=fitting), of_curve):
        counts = np.unique(devices[curve])
        here = (curve[devices[curve] == count] for count in counts)
        best = rows(table, np.array([part[np.argmax(rate[part])] for part in here], np.intp))
        for row, count in zip(best, counts.tolist(), strict=True):
            row["devices"] = count
            row["tokens_per_second"] = row[RATE] * count
            row["scaling_efficiency"] = row[RATE] / best[0][RATE]
        found += best
    return found
