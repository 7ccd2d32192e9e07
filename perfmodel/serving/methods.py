"""Which method finds an operating point: a closed form, or a recursion over passes.

The closed form takes half a microsecond, the recursion as long as a thousand of them. It is run
unasked where a question is small, and the column `method` says so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.served_fields import is_stated

if TYPE_CHECKING:
    from perfmodel.base.columns import Floats
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid

PHASES = ("prefill", "decode")
METHODS = ("auto", "closed", "recursion", *PHASES)
"""Whichever fits; a closed form, or a recursion over passes: slower, and with the distributions
that come out; or one phase of a static batch, which is what the load has under way."""

FOUND_BY = ("closed", "recursion", *PHASES, "replay")
"""What the column `method` says of a point, by code."""

MOST_REQUESTS = 4000.0
"""Of a batch, up to which a point is run pass by pass unasked: 0.3 s uncompiled."""
MOST_OF_ALL = 25 * MOST_REQUESTS
"""Of all points of a question."""
FEWEST_REQUESTS = 300.0
"""That are run of a point, in several orders where its clients make fewer."""
RECURSION_REQUESTS = 650.0
"""Of the recursions by which work is weighed (`perfmodel.kernels.work`)."""


def requests_run(grid: DeploymentGrid, loads: LoadGrid) -> Floats:
    """Return how many requests a recursion runs of each point, about, shape (deployments, loads).

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid

    Returns
    -------
    ndarray of float64, as `perfmodel.kernels.serving.recursion.requests_of` says of one batch
        inf where there is none: open loops, and two pools.
    """
    from perfmodel.kernels.serving.cycle import BEGINNING
    from perfmodel.kernels.serving.recursion import ENOUGH_REQUESTS, FEWEST_ROUNDS

    groups = (grid["workers"] * grid["pipeline_parallel"]).astype(np.float64)
    if not grid.model.has_experts:
        groups *= grid["attention_data_parallel"]
    clients = np.ceil(np.maximum(loads["concurrency"] / groups[:, None], 1.0))
    counted = np.clip(ENOUGH_REQUESTS / clients, FEWEST_ROUNDS, BEGINNING)
    before = np.where(loads["length_spread"] < 1.0, BEGINNING, counted)
    rounds = np.where(is_stated(loads.columns, "rounds"), loads["rounds"], before + counted)
    count = np.maximum(clients * np.maximum(rounds, 1.0), FEWEST_REQUESTS)
    alone = (grid["prefill_workers"] == 0)[:, None] & loads.is_closed_loop
    return np.where(alone, count, np.inf)


def is_small(grid: DeploymentGrid, loads: LoadGrid, devices: int = 1) -> bool:
    """Tell whether all points that are not large may be run pass by pass.

    Parameters
    ----------
    grid, loads
        All of a question, whoever projects which part of it.
    devices : int
        Rows of hardware.
    """
    if len(grid) * len(loads) * devices * FEWEST_REQUESTS > MOST_OF_ALL:
        return False
    count = requests_run(grid, loads)
    return bool(devices * count[count <= MOST_REQUESTS].sum() <= MOST_OF_ALL)


def requests_to_run(
    grid: DeploymentGrid, loads: LoadGrid, method: str, small: bool
) -> Floats | None:
    """Return the requests of points that are run pass by pass, 0 of others; None for no such."""
    if method == "recursion":
        most = sys.float_info.max
    elif method == "auto" and small:
        most = MOST_REQUESTS
    else:
        return None
    count = requests_run(grid, loads)
    return np.where(count <= most, count, 0.0)
