"""Where the cores of a wafer stand: nodes on a grid, each a grid of cores."""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.wafer.system import Grid, WaferSystem


def mesh_sides(system: WaferSystem) -> Grid:
    """Return rows and columns of cores of the whole wafer."""
    return (
        system.node_grid[0] * system.core_grid[0],
        system.node_grid[1] * system.core_grid[1],
    )


def core_places(system: WaferSystem) -> Integers:
    """Return the place of every core in the mesh of all cores.

    Cores count node by node, row by row in a node (as banks and cores of traces do); places count
    row by row over the wafer, as `perfmodel.kernels.wafer.routes` does.

    Returns
    -------
    array of int, shape (nodes x cores,)
    """
    rows, columns = system.core_grid
    across = system.node_grid[1]
    node, core = np.divmod(np.arange(system.nodes * system.cores), system.cores)
    row = node // across * rows + core // columns
    column = node % across * columns + core % columns
    return row * (across * columns) + column
