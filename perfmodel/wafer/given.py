"""A system from the degrees that somebody states: the others follow."""

from __future__ import annotations

from math import isqrt

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.system import Grid, WaferSystem

CORE_GRID: Grid = (6, 6)
"""Of the wafer workload generator's default system."""


def given_system(
    *,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
    sequence_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int | None = None,
    ffn_tensor_parallel: int = 1,
    ffn_data_parallel: int = 1,
    node_grid: Grid | None = None,
    core_grid: Grid = CORE_GRID,
    shared_copies: int = 1,
    expert_exchange: str = "alltoall",
) -> WaferSystem:
    """Return a system of as many nodes as the degrees of attention make.

    Parameters
    ----------
    data_parallel, tensor_parallel, sequence_parallel, pipeline_parallel : int
        Their product is the number of nodes.
    expert_parallel : int, optional
        What the other degrees of the feed-forward network leave of a stage's nodes.
    ffn_tensor_parallel, ffn_data_parallel : int
    node_grid : (int, int), optional
        As square as the number of nodes allows.
    core_grid : (int, int)
    shared_copies : int
    expert_exchange : str

    Raises
    ------
    StrategyError
        Degrees or grids that contradict each other; names the key.
    """
    degrees = (data_parallel, tensor_parallel, sequence_parallel, pipeline_parallel)
    nodes = 1
    for degree in degrees:
        nodes *= degree
    if nodes > 2**24:
        raise StrategyError(f"degrees of attention: {nodes} nodes exceed {2**24}")
    others = ffn_tensor_parallel * ffn_data_parallel * pipeline_parallel
    if expert_parallel is None:
        if nodes % others:
            raise StrategyError(
                f"keys 'ffn_tensor_parallel' and 'ffn_data_parallel': {ffn_tensor_parallel} x "
                f"{ffn_data_parallel} nodes do not divide a stage's {nodes // pipeline_parallel}"
            )
        expert_parallel = nodes // others
    if node_grid is None:
        rows = next(rows for rows in range(isqrt(nodes), 0, -1) if nodes % rows == 0)
        node_grid = (rows, nodes // rows)
    return WaferSystem(
        nodes=nodes,
        node_grid=node_grid,
        core_grid=core_grid,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel,
        ffn_tensor_parallel=ffn_tensor_parallel,
        ffn_data_parallel=ffn_data_parallel,
        shared_copies=shared_copies,
        expert_exchange=expert_exchange,
    )
