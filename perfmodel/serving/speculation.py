"""Until which batch drafts pay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.serving.grid import DeploymentGrid
from perfmodel.serving.pass_table import pass_tables

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.routing import Routing


def last_paying_batches(
    grid: DeploymentGrid,
    hardware: Hardware,
    *,
    context_length: float = 2048.0,
    most: int = 1024,
    routing: Routing | None = None,
) -> Floats:
    """Return the largest batch at which tokens come faster with drafts than without.

    A pass that verifies gamma drafts is worth (1 - alpha^(gamma + 1))/(1 - alpha) passes without
    (Leviathan et al., arXiv 2211.17192). While it only reads weights it takes no longer; from
    some batch on it does.

    Parameters
    ----------
    grid : DeploymentGrid
    hardware : Hardware
    context_length : float
        Tokens that each sequence keeps.
    most : int
        Largest batch of interest.
    routing : Routing, optional
        How tokens spread over experts; default uniform.

    Returns
    -------
    ndarray of float64, shape (deployments,)
        Sequences that decode on an attention rank: 0 where drafts never pay, `most` where they
        always do, NaN for deployments without drafts.

    Examples
    --------
    >>> from perfmodel import load_hardware, serving_grid
    >>> grid = serving_grid("deepseek-v3", tensor_parallel=8, draft_length=1, acceptance=0.8)
    >>> batch = last_paying_batches(grid, load_hardware("dgx-h200"))
    """
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import speculation
    from perfmodel.kernels.work import kernel_work

    layouts, layout, _ = grid.layouts()
    count = len(layouts)
    both = {name: np.concatenate((it, it)) for name, it in layouts.columns.items()}
    both["draft_length"][count:] = 0
    tables = pass_tables(grid.model, replace(layouts, columns=both), hardware, routing=routing)
    batches = np.full(len(grid), np.nan)
    with kernel_work(operating_points=len(grid)):
        numbers = plain(tables)
        for place in np.flatnonzero(grid["draft_length"]):
            row = int(layout[place])
            drafted, acceptance = grid["draft_length"][place], grid["acceptance"][place]
            batches[place] = speculation.last_paying_batch(
                numbers,
                count + row,
                row,
                float(drafted),
                float(acceptance),
                float(context_length),
                float(most),
            )
    return batches
