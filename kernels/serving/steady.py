"""Operating points in closed form: every load on every deployment, one fused pass."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.serving.admission import is_closed_loop
from perfmodel.kernels.serving.closed import close_clients
from perfmodel.kernels.serving.disaggregated import close_disaggregated
from perfmodel.kernels.serving.open import close_open
from perfmodel.kernels.serving.tables import Deployments, Loads, PassTables


@jit
def close_points(
    tables: PassTables, deployments: Deployments, loads: Loads, out: np.ndarray
) -> None:
    """Fill the variables of all operating points.

    Parameters
    ----------
    tables : PassTables
    deployments : Deployments
    loads : Loads
    out : ndarray of float64, shape (len(ROWS), deployments, loads)
        Rows as in `perfmodel.kernels.serving.tables.ROWS`.
    """
    for d in range(deployments.layout.size):
        if deployments.prefill_layout[d] < 0:
            close_clients(tables, deployments, d, loads, out)
        for j in range(loads.concurrency.size):
            if deployments.prefill_layout[d] >= 0:
                close_disaggregated(tables, deployments, d, loads, j, out)
            elif not is_closed_loop(loads, j):
                close_open(tables, deployments, d, loads, j, out)
