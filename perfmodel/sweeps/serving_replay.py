"""A trace of requests replayed on deployments: the labelled table of `serve`, pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.base.table import Column, Table
from perfmodel.kernels.serving.variables import ROW_VARIABLES
from perfmodel.serving.enumerate import load_grid
from perfmodel.serving.grid import (
    CACHE_BELOW_ONE_REQUEST,
    CONTEXT_TOO_LONG,
    VALID,
    DeploymentGrid,
    LoadGrid,
)
from perfmodel.serving.methods import FOUND_BY
from perfmodel.serving.project import prepare
from perfmodel.serving.replay import lacks_room, replay_trace, requests_work
from perfmodel.serving.requests import RequestTrace
from perfmodel.sweeps.serving import DIMS, Block, ServedGrid, serve_table
from perfmodel.sweeps.sweep import hardware_rows
from perfmodel.sweeps.workers import PIECES, in_blocks

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.workers import Workers

TRIED = 4  # requests, which need all kernels


def trace_loads(trace: RequestTrace, concurrency: Sequence[float] = ()) -> LoadGrid:
    """Return the loads by whose coordinates results of a trace go: its longest lengths and rate.

    Parameters
    ----------
    trace : RequestTrace
    concurrency : sequence of float
        Requests that clients keep under way instead of the trace's arrivals, one load each.
    """
    lengths = {
        "input_length": int(trace.input_length.max()),
        "output_length": int(trace.output_length.max()),
    }
    if len(concurrency):
        return load_grid(**lengths, concurrency=list(concurrency))
    span = float(trace.arrival[-1] - trace.arrival[0])
    # Requests that come all at once have no rate; they are as many as there are.
    rate = (len(trace) - 1) / span if span > 0.0 else float(len(trace))
    return load_grid(**lengths, arrival_rate=rate)


def replay_table(
    grid: DeploymentGrid,
    trace: RequestTrace,
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    concurrency: Sequence[float] = (),
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
    workers: Workers | None = None,
) -> Table:
    """Replay a trace of requests on every deployment and device.

    Parameters
    ----------
    grid : DeploymentGrid
        Of one pool each.
    trace : RequestTrace
        Such as `perfmodel.serving.requests.read_requests` returns.
    hardware : Hardware or str, or sequence of them
    concurrency : sequence of float
        Send so many requests at once, and each other one when one has ended, one load each;
        without it they come when the trace says.
    progress, hardware_values, workers
        As of `perfmodel.sweeps.serving.serve`.

    Returns
    -------
    Table
        As of `serve`, over all requests of the trace; lengths among the coordinates are its
        longest. Bounds are NaN where a replay has none.

    Raises
    ------
    StrategyError
        Deployments of two pools, or concurrency below 1.
    DataError
        A trace with too many requests or blocks of prompts.
    """
    if grid["prefill_workers"].any():
        raise StrategyError("a trace is replayed on one pool; some deployments have two")
    rows = hardware_rows(hardware)
    loads = trace_loads(trace, concurrency)
    table = serve_table(
        grid.model, grid, loads, rows, method="closed", hardware_values=hardware_values
    )
    shape = tuple(table.sizes[dim] for dim in DIMS)
    values = np.full((len(ROW_VARIABLES), *shape), np.nan)
    status = table["status"].values.copy()
    served = ServedGrid(grid, loads, rows)
    work = _Replay(served, trace, tuple(concurrency))
    blocks = served.blocks(PIECES * len(workers) if workers is not None else 1)
    for block, found in in_blocks(work, blocks, workers, progress):
        at = block.deployments, block.hardware, block.loads
        values[:, *at] = found.values
        answered = found.status >= 0
        status[at][answered] = found.status[answered]
    return _with_results(table, values, status)


class _Replayed(NamedTuple):
    """Values of a block, shape (variables, deployments, loads), and its status, -1 for no news."""

    values: np.ndarray
    status: np.ndarray


@dataclass(frozen=True, slots=True)
class _Replay:
    """What is replayed (`perfmodel.sweeps.workers.Work`); attributes as of `replay_table`."""

    served: ServedGrid
    trace: RequestTrace
    concurrency: tuple[float, ...]

    def size(self, block: Block) -> int:
        """Return how many replays a block has."""
        return block.points

    def done(self, block: Block, progress: Callable[[int], None] | None = None) -> _Replayed:
        """Replay a trace on the deployments of a block."""
        served, trace, concurrency = self.served, self.trace, self.concurrency[block.loads]
        grid = served.grid.take(block.deployments)
        size = len(grid), block.loads.stop - block.loads.start
        values, status = np.full((len(ROW_VARIABLES), *size), np.nan), np.full(size, -1, np.int8)
        ready = prepare(grid, served.rows[block.hardware], routing=served.routing)
        if ready.tables is None or ready.deployments is None:
            return _Replayed(values, status)
        longest = int((trace.input_length + trace.output_length).max())
        too_long = 0 < grid.model.max_positions < longest
        for i, d in enumerate(ready.possible.tolist()):
            for j in range(size[1]):
                status[d, j] = CONTEXT_TOO_LONG if too_long else VALID
                if too_long:
                    continue
                if lacks_room(ready.deployments, i, trace):
                    status[d, j] = CACHE_BELOW_ONE_REQUEST
                    continue
                found = replay_trace(
                    ready.tables,
                    ready.deployments,
                    trace,
                    deployment=i,
                    concurrency=int(concurrency[j]) if concurrency else None,
                ).summary
                for k, variable in enumerate(ROW_VARIABLES):
                    values[k, d, j] = found[variable.name]
                if progress:
                    progress(1)
        return _Replayed(values, status)

    def warm(self) -> dict[str, float]:
        """Compile what the whole trace is run with, without running it."""
        from perfmodel.kernels.work import expect

        served, trace = self.served, self.trace
        points = len(served.grid) * len(served.rows) * len(served.loads)
        work = requests_work(points * len(trace), bool(self.concurrency))
        expect(**work)
        few = RequestTrace(
            trace.arrival[:TRIED], trace.input_length[:TRIED], trace.output_length[:TRIED]
        )
        replace(self, trace=few).done(Block(0, slice(0, 1), slice(0, 1)))
        return work


def _with_results(table: Table, values: np.ndarray, status: np.ndarray) -> Table:
    """Return a table with the results of a replay in place of those in closed form."""
    new: dict[str, Column] = dict(table.data_vars)
    for k, variable in enumerate(ROW_VARIABLES):
        new[variable.name] = Column(DIMS, values[k], table[variable.name].attrs)
    new["status"] = Column(DIMS, status, table["status"].attrs)
    fits = (status != CACHE_BELOW_ONE_REQUEST) & np.isfinite(values[0])
    replayed = np.full(status.shape, FOUND_BY.index("replay"), np.int8)
    new["method"] = Column(DIMS, replayed, table["method"].attrs)
    new["fits"] = Column(DIMS, fits, table["fits"].attrs)
    new["tight"] = Column(DIMS, fits & table["tight"].values, table["tight"].attrs)
    attributes: dict[str, Any] = {**table.attrs, "method": "replay"}
    return Table(new, table.coords, attributes, table.sizes)
