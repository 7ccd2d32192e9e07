"""Which method finds an operating point: a closed form, or a recursion over passes.

The closed form takes half a microsecond, the recursion as long as a thousand of them. It is run
unasked where a question is small, and the column `method` says so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.served_fields import is_stated

if TYPE_CHECKING:
    from perfmodel.base.columns import Flags, Floats
    from perfmodel.kernels.serving.tables import Deployments, Loads
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid

PHASES = ("prefill", "decode")
METHODS = ("auto", "closed", "recursion", *PHASES)
"""Whichever fits; a closed form, or a recursion over passes: slower, and with the distributions
that come out; or one phase of a static batch, which is what the load has under way."""

FOUND_BY = ("closed", "recursion", *PHASES, "replay")
"""What the column `method` says of a point, by code."""

MOST_REQUESTS = 4000.0
"""Of a batch, up to which a point is run pass by pass unasked: 0.3 s uncompiled."""
MOST_HARD = 5 * MOST_REQUESTS
"""The same of points of a kind for which the closed form is often far off (`hard_points`)."""
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


def hard_points(deployments: Deployments, loads: Loads) -> Flags:
    """Tell for which points the closed form is often far off, shape (deployments, loads).

    Ranks in step whose prompts are longer than a pass or whose cache is too small for all; and
    caches that are, by up to four times, where answers outgrow prompts and nothing is set aside.
    """
    from perfmodel.kernels.serving.tables import RESERVE

    def per(column: NDArray[Any]) -> NDArray[Any]:
        return column[:, None]

    mean = 0.5 * (1.0 + loads.length_spread)
    prompt, answer = mean * loads.input_length, mean * loads.output_length
    clients = loads.concurrency / per(deployments.ranks * deployments.stages)
    room = per(deployments.blocks * deployments.block_tokens / deployments.stages)
    held = room / (prompt + 0.5 * answer)
    beyond = clients > 0.9 * held
    chunked = loads.input_length - loads.prefix > per(deployments.token_budget)
    step = (per(deployments.lockstep_ranks) > 1) & (beyond | chunked)
    grows = (per(deployments.admission) != RESERVE) & (answer > prompt)
    found: Flags = step | (beyond & grows & (clients < 4.0 * held))
    return found


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
    grid: DeploymentGrid,
    loads: LoadGrid,
    method: str,
    small: bool,
    deployments: Deployments,
) -> Floats | None:
    """Return the requests of points that are run pass by pass, 0 of others; None for no such.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
    method : str
    small : bool
    deployments : Deployments
        Those of the grid.
    """
    if method == "recursion":
        most: Any = sys.float_info.max
    elif method == "auto" and small:
        most = MOST_REQUESTS
    else:
        return None
    count = requests_run(grid, loads)
    if method == "auto":
        hard = hard_points(deployments, loads.kernel_columns()) & (count <= MOST_HARD)
        if count[hard].sum() <= MOST_OF_ALL:
            most = np.where(hard, MOST_HARD, MOST_REQUESTS)
    return np.where(count <= most, count, 0.0)
