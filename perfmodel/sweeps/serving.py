"""Deployments under loads on hardware: one labelled table of operating points."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.served_fields import DEPLOYMENT_FIELDS, LOAD_FIELDS, UNITS
from perfmodel.base.table import Column, Table, described, flags, labelled
from perfmodel.hwprofiles.hardware import row_names
from perfmodel.kernels.serving.variables import (
    MEMORY_VARIABLES,
    ROW_VARIABLES,
    SCHEMA_VERSION,
    VARIABLES,
)
from perfmodel.model.presets import load_model
from perfmodel.serving.defaults import with_limits
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.serving.grid import CACHE_BELOW_ONE_REQUEST, STATUS_NAMES, DeploymentGrid, LoadGrid
from perfmodel.serving.methods import FOUND_BY, is_small
from perfmodel.serving.project import project_points
from perfmodel.store.netcdf import narrow, or_single
from perfmodel.sweeps.sweep import (
    hardware_coordinates,
    hardware_rows,
    numbered,
)
from perfmodel.sweeps.trust import add_trust
from perfmodel.sweeps.workers import PIECES, cut, in_blocks, whole_work

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.base.fields import Field
    from perfmodel.base.routing import Routing
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.project import Points
    from perfmodel.sweeps.workers import Workers


class Block(NamedTuple):
    """Some deployments under some loads on one row of hardware."""

    hardware: int
    deployments: slice
    loads: slice

    @property
    def points(self) -> int:
        """How many operating points it has."""
        deployments, loads = (it.stop - it.start for it in self[1:])
        return int(deployments * loads)


@dataclass(frozen=True, slots=True)
class ServedGrid:
    """Deployments under loads on hardware, projected in blocks (`perfmodel.sweeps.workers.Work`).

    Attributes
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
    rows : list of Hardware
    method, small, routing, prefill_hardware, threads
        As of `perfmodel.serving.project.project_points`.
    out : ndarray of float64, optional
        Where values of whole rows of hardware go at once, in this process.
    """

    grid: DeploymentGrid
    loads: LoadGrid
    rows: list[Hardware]
    method: str = "closed"
    small: bool = False
    routing: Routing | None = None
    prefill_hardware: Hardware | None = None
    threads: int | None = None
    out: Floats | None = None

    def blocks(self, pieces: int = 1) -> list[Block]:
        """Cut it into about so many blocks: of a row of hardware each, and of all loads if it can.

        What passes cost is found for every block, of all its deployments and whatever its loads.
        """
        each = -(-pieces // len(self.rows))
        deployments = cut(len(self.grid), each)
        loads = cut(len(self.loads), -(-each // len(deployments)))
        return [
            Block(row, some, under)
            for row in range(len(self.rows))
            for some in deployments
            for under in loads
        ]

    def size(self, block: Block) -> int:
        """Return how many operating points a block has."""
        return block.points

    def done(self, block: Block, progress: Callable[[int], None] | None = None) -> Points:
        """Project a block."""
        return project_points(
            self.grid.take(block.deployments),
            self.loads.take(block.loads),
            self.rows[block.hardware],
            method=self.method,
            small=self.small,
            routing=self.routing,
            prefill_hardware=self.prefill_hardware,
            threads=1 if progress is None else self.threads,
            progress=progress,
            out=None if self.out is None else self.out[block.hardware],
        )

    def warm(self) -> dict[str, float]:
        """Project one point; others need the same kernels."""
        one = Block(0, slice(0, 1), slice(0, 1))
        deployments = len(self.grid) * len(self.rows)
        # What passes cost is found once per deployment at most, and its points one by one.
        return whole_work(lambda: self.done(one), deployments * len(self.loads))


DIMS = ("deployment", "hardware", "load")
MEMORY_FIELDS = {
    "memory_weights": "weights",
    "memory_activations": "activations",
    "memory_workspace": "workspace",
    "memory_cache": "cache",
    "memory_total": "total",
    "kv_blocks": "blocks",
    "kv_tokens": "tokens",
    "kv_concurrency": "concurrency",
    "kv_longest_request": "longest",
    "kv_block_tokens": "block_tokens",
    "kv_bytes_per_token": "bytes_per_token",
    "sequence_state_bytes": "state_bytes",
}
"""Variable -> attribute of `DeploymentMemory`."""


def serve(
    model: ModelSpec | str,
    deployments: DeploymentGrid | Mapping[str, Any],
    loads: LoadGrid | Mapping[str, Any],
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    method: str = "auto",
    routing: Routing | None = None,
    prefill_hardware: Hardware | str | None = None,
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
    workers: Workers | None = None,
) -> xr.Dataset:
    """Project a served model: every deployment, on every device, under every load.

    Parameters
    ----------
    model : ModelSpec or str
        As of `load_model`; a preset's name, or a path of a ``config.json``.
    deployments : DeploymentGrid or mapping
        From `serving_grid`, or what it takes, such as ``{"tensor_parallel": [4, 8]}``.
    loads : LoadGrid or mapping
        From `load_grid`, or what it takes, such as ``{"input_length": 8192, "concurrency":
        [1, 8, 64]}``.
    hardware : Hardware or str, or sequence of them
        Profiles or their names, one row each.
    method : {"auto", "closed", "recursion"}
        Closed form, or pass by pass: slower, and without open loops and two pools. "auto" takes the
        recursion where a question is small (`perfmodel.serving.methods`), and the variable
        `method` says which method found a point.
    routing : Routing, optional
        How tokens spread over experts; default uniform.
    prefill_hardware : Hardware or str, optional
        Of prefill pools, beside every row of `hardware`; default: the same.
    dtype : numpy floating type
        Of the results.
    threads : int, optional
        Threads over chunks of deployments; default: one per core.
    progress : callable, optional
        Called with the number of operating points closed since the last call.
    hardware_values : mapping of str to sequence of float, optional
        Coordinates along ``hardware`` for swept values, by dotted path.
    workers : Workers, optional
        Who projects, blocks of deployments and loads at a time; default: this process.

    Returns
    -------
    xarray.Dataset
        Dimensions ``deployment``, ``hardware`` and ``load``; variables of
        `perfmodel.kernels.serving.variables.VARIABLES`, each with ``units`` and ``long_name``.
        ``status`` says why there is no answer. Its accessor ``perfmodel`` ranks.

    Raises
    ------
    StrategyError
        No deployment, load or hardware, or one that means nothing; deployments of another
        model; more than memory holds.
    HardwareError, ModelError
        No such profile or model.

    Examples
    --------
    >>> found = serve("llama-3.1-70b", {"tensor_parallel": [2, 4, 8]},
    ...               {"input_length": 8192, "output_length": 1024, "concurrency": [1, 16, 64]},
    ...               "dgx-h200")
    >>> dict(found.sizes)
    {'deployment': 3, 'hardware': 1, 'load': 3}
    """
    from perfmodel.store.datasets import wrapped

    return wrapped(
        serve_table(
            model,
            deployments,
            loads,
            hardware,
            method=method,
            routing=routing,
            prefill_hardware=prefill_hardware,
            dtype=dtype,
            threads=threads,
            progress=progress,
            hardware_values=hardware_values,
            workers=workers,
        )
    )


def serve_table(
    model: ModelSpec | str,
    deployments: DeploymentGrid | Mapping[str, Any],
    loads: LoadGrid | Mapping[str, Any],
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    method: str = "auto",
    routing: Routing | None = None,
    prefill_hardware: Hardware | str | None = None,
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
    workers: Workers | None = None,
) -> Table:
    """Return what `serve` does as a table, with codes for choices; takes what it takes."""

    rows = hardware_rows(hardware)
    grid = _deployments(load_model(model, mtp="stated"), deployments, rows)
    grid = with_limits(grid, rows)
    asked = loads if isinstance(loads, LoadGrid) else load_grid(**loads)
    if not rows or not len(grid) or not len(asked):
        raise StrategyError("serving needs at least one deployment, load and hardware profile")
    pool = None if prefill_hardware is None else hardware_rows(prefill_hardware)[0]
    count = len(grid) * len(asked)
    check_memory(
        f"{count:,} operating points on {len(rows):,} rows of hardware",
        count * len(rows) * ((len(ROW_VARIABLES) + 1) * np.dtype(dtype).itemsize + 3),
        f"take fewer deployments or loads{or_single(dtype)}",
        StrategyError,
    )
    values = np.empty((len(rows), len(ROW_VARIABLES) + 1, len(grid), len(asked)), dtype)
    status = np.empty((len(rows), len(grid), len(asked)), np.int8)
    found_by = np.zeros_like(status)
    memory = {name: np.empty(status.shape[:2]) for name in MEMORY_FIELDS}
    fits, tight = np.empty(status.shape, bool), np.empty(status.shape, bool)
    longest = asked["input_length"] + asked["output_length"] + grid["draft_length"][:, None]

    small = method == "auto" and is_small(grid, asked, len(rows))
    served = ServedGrid(grid, asked, rows, method, small, routing, pool, threads)
    blocks = served.blocks(PIECES * len(workers) if workers is not None else 1)
    if workers is None and values.dtype == np.float64:
        served = dataclasses.replace(served, out=values)
    for block, found in in_blocks(served, blocks, workers, progress):
        at = block.deployments, block.loads
        if served.out is None:
            values[block.hardware][:, *at] = found.values
        status[block.hardware][at] = found.status
        found_by[block.hardware][at] = found.found_by
        room = found.memory.fits
        close = found.memory.tight(longest[at])
        if found.prefill_memory is not None:
            room = room & found.prefill_memory.fits
            close |= found.prefill_memory.tight(np.zeros((1, 1)))
        fits[block.hardware][at] = room[:, None] & (found.status != CACHE_BELOW_ONE_REQUEST)
        tight[block.hardware][at] = close & fits[block.hardware][at]
        for name, field in MEMORY_FIELDS.items():
            memory[name][block.hardware, block.deployments] = getattr(found.memory, field)
    table = Table(
        {
            **{
                variable.name: labelled(variable, values[:, i].transpose(1, 0, 2), DIMS)
                for i, variable in enumerate(ROW_VARIABLES)
            },
            **{
                item.name: labelled(item, memory[item.name].T, DIMS[:2])
                for item in MEMORY_VARIABLES
            },
            "fits": labelled(VARIABLES["fits"], fits.transpose(1, 0, 2), DIMS),
            "tight": labelled(VARIABLES["tight"], tight.transpose(1, 0, 2), DIMS),
            "status": _status(status.transpose(1, 0, 2)),
            "method": _found_by(found_by.transpose(1, 0, 2)),
        },
        _coordinates(grid, asked, rows, hardware_values or {}),
        _attributes(grid, rows, method, routing, pool),
        dict(zip(DIMS, (len(grid), len(rows), len(asked)), strict=True)),
    )
    return add_trust(table, rows)


def _deployments(
    model: ModelSpec, given: DeploymentGrid | Mapping[str, Any], rows: Sequence[Hardware]
) -> DeploymentGrid:
    if not isinstance(given, DeploymentGrid):
        return serving_grid(model, rows, **given)
    # Modules that draft may have been left out of one of them.
    if (given.model.name, given.model.layers) != (model.name, model.layers):
        raise StrategyError(f"these are deployments of {given.model.name}, not of {model.name}")
    return given


def _status(codes: NDArray[np.int8]) -> Column:
    found = labelled(VARIABLES["status"], codes, DIMS)
    found.attrs |= {
        "flag_values": np.array(list(STATUS_NAMES), np.int8),
        "flag_meanings": " ".join(STATUS_NAMES.values()),
    }
    return found


def _found_by(codes: NDArray[np.int8]) -> Column:
    found = labelled(VARIABLES["method"], codes, DIMS)
    found.attrs |= flags(FOUND_BY)
    return found


def _coordinates(
    grid: DeploymentGrid,
    loads: LoadGrid,
    rows: Sequence[Hardware],
    swept: Mapping[str, Sequence[float]],
) -> dict[str, Column]:
    engines = [item.name.replace(" ", "_") for item in grid.engines]
    about = {"long_name": "serving software", "units": "1"} | flags(engines)
    devices = {"long_name": "devices of all workers", "units": "1"}
    return {
        "deployment": numbered("deployment", len(grid)),
        **hardware_coordinates(rows, swept),
        "load": numbered("load", len(loads)),
        "engine": Column("deployment", grid["engine"].astype(np.int8), about),
        **{it.name: _field(it, grid[it.name], "deployment") for it in DEPLOYMENT_FIELDS},
        "devices": Column("deployment", narrow(grid.devices), devices),
        **{it.name: _field(it, loads[it.name], "load") for it in LOAD_FIELDS},
    }


def _field(spec: Field, column: NDArray[Any], dim: str) -> Column:
    about: dict[str, Any] = {"units": UNITS.get(spec.name, "1"), "long_name": spec.description}
    if spec.kind == "int":
        column = narrow(column)
    elif spec.kind == "choice":
        column = column.astype(np.int8)
        about |= flags(spec.choices)
    return Column(dim, column, about)


def _attributes(
    grid: DeploymentGrid,
    rows: Sequence[Hardware],
    method: str,
    routing: Routing | None,
    pool: Hardware | None,
) -> dict[str, Any]:
    engines = {item.name: dataclasses.asdict(item) for item in grid.engines}
    provenance = {
        "model": dataclasses.asdict(grid.model),
        "hardware": {name: row.to_dict() for name, row in zip(row_names(rows), rows, strict=True)},
        "engine": engines,
        "routing": dataclasses.asdict(routing) if routing is not None else None,
        "prefill_hardware": None if pool is None else pool.to_dict(),
        "versions": versions("numpy", "numba"),
    }
    title = f"{grid.model.name} served by {', '.join(engines)}"
    return described(
        title, SCHEMA_VERSION, model=grid.model.name, method=method, provenance=provenance
    )
