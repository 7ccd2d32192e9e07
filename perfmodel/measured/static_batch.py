"""Batches that are measured as they are: all prompts together, then token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.serving.memory import deployment_memory
from perfmodel.serving.pass_table import pass_tables
from perfmodel.serving.project import Points, deployment_columns

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid


def project_batches(grid: DeploymentGrid, loads: LoadGrid, hardware: Hardware) -> Points:
    """Project static batches: both phases, one after the other.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
        Whose concurrency is the batch.
    hardware : Hardware

    Returns
    -------
    Points
        With the time until all first tokens are there, T1, the time of a later one, T2, and
        output tokens per second: b·O / (T1 + (O - 1)·T2) for b answers of O tokens.
    """
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving.phases import close_phase
    from perfmodel.kernels.serving.tables import ROWS
    from perfmodel.kernels.work import kernel_work

    layouts, layout, none = grid.layouts()
    memory = deployment_memory(grid, layouts, layout, hardware)
    # A batch that was measured had room.
    memory = replace(memory, blocks=np.full(len(grid), np.inf))
    arguments = (
        pass_tables(grid.model, layouts, hardware),
        deployment_columns(grid, memory, hardware, layout, none),
        loads.kernel_columns(),
    )
    values: Floats = np.empty((len(ROWS), len(grid), len(loads)))
    prompts = np.empty_like(values)
    with kernel_work(phases=2 * prompts[0].size):
        close_phase(*map(plain, arguments), False, prompts)
        close_phase(*map(plain, arguments), True, values)
    first = ROWS.time_to_first_token_mean, ROWS.time_to_first_token_p99
    for low, high in (first, (ROWS.time_to_first_token_low, ROWS.time_to_first_token_high)):
        values[low : high + 1] = prompts[low : high + 1]
    answers = loads["output_length"]
    each = values[ROWS.time_per_output_token_mean]
    whole = prompts[ROWS.time_to_first_token_mean] + (answers - 1) * each
    tokens = loads["concurrency"] * answers
    values[ROWS.tokens_per_second_per_device] = tokens / whole / grid.devices[:, None]
    values[ROWS.queue_time] = 0.0
    status = np.repeat(grid.status[:, None].astype(np.int8), len(loads), axis=1)
    return Points(values, status, memory, None)
