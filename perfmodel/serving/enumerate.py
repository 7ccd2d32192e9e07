"""Enumerate deployments and loads: the axes that a user names times those that make sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import axis_product, axis_values, columns_from_rows
from perfmodel.base.errors import StrategyError
from perfmodel.base.served_fields import (
    DEGREES,
    DEPLOYMENT_FIELD_BY_NAME,
    ENGINE_LIMITS,
    LOAD_FIELD_BY_NAME,
    UNSET,
    is_stated,
)
from perfmodel.model.presets import load_model
from perfmodel.model.spec import head_counts
from perfmodel.serving.defaults import BY_DEVICE, with_limits
from perfmodel.serving.grid import (
    STATUS_REASONS,
    VALID,
    DeploymentGrid,
    LoadGrid,
    check_loads,
    deployment_status,
    engines_of,
    worker_devices,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.engine import Engine

NODE_DEVICES = 8  # where no hardware is named: the boards of DGX, HGX and OCP's OAM
COLUMN_BYTES = 8 * (len(DEPLOYMENT_FIELD_BY_NAME) + 1)
POOL_FIELDS = tuple(f"prefill_{name}" for name in DEGREES)


def serving_grid(
    model: ModelSpec | str,
    hardware: Hardware | str | Sequence[Hardware | str] = (),
    *,
    engine: Engine | str | Sequence[Engine | str] = "vllm",
    devices: int | None = None,
    keep_impossible: bool = False,
    **axes: Any,
) -> DeploymentGrid:
    """Enumerate deployments of a model.

    Parameters
    ----------
    model : ModelSpec or str
        As of `load_model`; a preset keeps the modules that draft.
    hardware : Hardware or str, or sequence of them, optional
        Where they are going to run: tensor parallelism is tried up to the devices of a node,
        without it up to eight.
    engine : Engine or str, or sequence of them
        Serving software, with its release if that matters (``vllm-0.12``).
    devices : int, optional
        Devices of a deployment at most. They are filled with workers where `workers` is not
        given.
    keep_impossible : bool
        Keep impossible deployments, with the code of the broken rule in ``status``.
    **axes
        One value or a list for any field of `perfmodel.base.served_fields.DEPLOYMENT_FIELDS`.
        ``tensor_parallel`` takes every power of two up to a node whose devices hold the model where
        it is not given, and 1 with attention data parallelism; other fields have their defaults.
        Degrees of prefill workers are 1 where one of them is given, else as of decode workers.

    Returns
    -------
    DeploymentGrid

    Raises
    ------
    StrategyError
        Unknown axis, bad value, or no deployment is possible (the message counts the reasons).

    Examples
    --------
    >>> grid = serving_grid("llama-3.1-70b", "dgx-h200", devices=8, tensor_parallel=[2, 4, 8])
    >>> grid["workers"]
    array([4, 2, 1])
    """
    spec = load_model(model, mtp="stated")
    engines = engines_of(engine)
    limit = _checked_devices(devices)
    given = {
        name: axis_values(name, values, DEPLOYMENT_FIELD_BY_NAME)
        for name, values in axes.items()
        if values is not None
    }
    every = _axes(spec, given, len(engines), hardware, limit)
    columns = axis_product(every, "combinations", COLUMN_BYTES)
    columns = _sensible_pools(columns)
    if limit is not None and "workers" not in given and not columns["prefill_workers"].any():
        columns["workers"] = np.maximum(limit // worker_devices(columns), 1)
    _resolve(columns, engines, acceptance_given="acceptance" in given)
    status = deployment_status(columns, spec, limit)
    from perfmodel.hwprofiles.rows import profiles_of

    profiles = profiles_of(hardware)
    grid = with_limits(DeploymentGrid(spec, engines, columns, status), profiles)
    if "tensor_parallel" not in given:
        grid = _fitting(grid, profiles)
    if keep_impossible:
        return grid
    if not (grid.status == VALID).any():
        raise StrategyError(describe_rejected(grid.status, limit))
    return grid.take(grid.status == VALID)


def deployments_from_rows(
    model: ModelSpec | str,
    rows: Sequence[Mapping[str, Any]],
    *,
    engine: Engine | str | Sequence[Engine | str] = "vllm",
    devices: int | None = None,
) -> DeploymentGrid:
    """Make a grid of explicitly written deployments; impossible ones keep their status.

    Parameters
    ----------
    model : ModelSpec or str
        As of `serving_grid`.
    rows : sequence of mapping
        Fields of deployments; one that is missing has its default. ``engine`` is a position in
        `engine`.
    engine, devices
        As of `serving_grid`.

    Raises
    ------
    StrategyError
        As of `serving_grid`, but for impossible deployments.
    """
    spec = load_model(model, mtp="stated")
    engines = engines_of(engine)
    places = np.array([int(row.get("engine", 0)) for row in rows], np.int64)
    if not rows or places.min() < 0 or places.max() >= len(engines):
        raise StrategyError(f"engine: a row's position is not below {len(engines)}, or no rows")
    fields = [{key: it for key, it in row.items() if key != "engine"} for row in rows]
    columns = {"engine": places, **columns_from_rows(fields, DEPLOYMENT_FIELD_BY_NAME)}
    _resolve(columns, engines, acceptance_given=any("acceptance" in row for row in rows))
    return DeploymentGrid(
        spec, engines, columns, deployment_status(columns, spec, _checked_devices(devices))
    )


def load_grid(**axes: Any) -> LoadGrid:
    """Enumerate loads.

    Parameters
    ----------
    **axes
        One value or a list for any field of `perfmodel.base.served_fields.LOAD_FIELDS`.
        Values of ``concurrency`` (closed loop) and of ``arrival_rate`` (open loop) stand beside
        each other, everything else is multiplied out.

    Raises
    ------
    StrategyError
        Unknown axis, bad value, or neither concurrency nor rate.

    Examples
    --------
    >>> len(load_grid(input_length=[1024, 8192], output_length=1024, concurrency=[1, 8, 64]))
    6
    """
    given = {
        name: axis_values(name, values, LOAD_FIELD_BY_NAME)
        for name, values in axes.items()
        if values is not None
    }
    every = {
        name: given.get(name, axis_values(name, spec.default, LOAD_FIELD_BY_NAME))
        for name, spec in LOAD_FIELD_BY_NAME.items()
    }
    parts = []
    for own, other in (("concurrency", "arrival_rate"), ("arrival_rate", "concurrency")):
        if own in given or not {own, other} & given.keys():
            only = {**every, other: np.full(1, float(UNSET))}
            parts.append(axis_product(only, "combinations", COLUMN_BYTES))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in LOAD_FIELD_BY_NAME}
    prefix = columns["prefix"]
    columns["prefix"] = np.where(prefix < 1.0, prefix * columns["input_length"], prefix)
    check_loads(columns)
    return LoadGrid(columns)


def _checked_devices(devices: Any) -> int | None:
    if devices is None:
        return None
    if isinstance(devices, bool) or not isinstance(devices, int | np.integer) or devices < 1:
        raise StrategyError(f"devices: {devices!r} is not a positive whole number")
    return int(devices)


def _axes(
    model: ModelSpec,
    given: Mapping[str, NDArray[Any]],
    engines: int,
    hardware: Hardware | str | Sequence[Hardware | str],
    devices: int | None,
) -> dict[str, NDArray[Any]]:
    """Values of every axis: the given ones, else those that make sense."""
    axes = {"engine": np.arange(engines)} | {
        name: given.get(name, axis_values(name, spec.default, DEPLOYMENT_FIELD_BY_NAME))
        for name, spec in DEPLOYMENT_FIELD_BY_NAME.items()
    }
    if any(name in given for name in POOL_FIELDS):
        # Who names a degree of prefill workers means them: the others are 1.
        axes |= {name: np.ones(1, np.int64) for name in POOL_FIELDS if name not in given}
    ranks = given.get("attention_data_parallel", np.ones(1))
    if "tensor_parallel" not in given and (ranks > 1).all():
        axes["tensor_parallel"] = np.ones(1, np.int64)  # every device a rank, as engines have it
    elif "tensor_parallel" not in given:
        from perfmodel.hwprofiles.rows import profiles_of

        nodes = (profile.system.devices_per_node for profile in profiles_of(hardware))
        most = max(nodes, default=NODE_DEVICES)
        most = min(most, devices) if devices else most
        heads = [heads for heads, _ in head_counts(model)]
        powers = (2**i for i in range(most.bit_length()))
        degrees = [t for t in powers if all(count % t == 0 for count in heads)]
        axes["tensor_parallel"] = np.array(degrees, np.int64)
    return axes


def _fitting(grid: DeploymentGrid, profiles: Sequence[Hardware]) -> DeploymentGrid:
    """Leave out deployments that no device holds; where none does, those of lower degrees."""
    from perfmodel.serving.memory import deployment_memory

    if not profiles or not len(grid):
        return grid
    # What has more stages than layers is impossible, and would have memory of each.
    stages = np.maximum(grid["pipeline_parallel"], grid["prefill_pipeline_parallel"])
    staged = stages <= grid.model.num_layers
    some = grid.take(staged)
    if not len(some):
        return grid
    layouts, layout, _ = some.layouts()
    held = [deployment_memory(some, layouts, layout, profile).fits for profile in profiles]
    fits = np.ones(len(grid), bool)
    fits[staged] = np.any(held, axis=0)
    if not fits.any():
        fits = grid["tensor_parallel"] == grid["tensor_parallel"].max()
    return grid.take(fits)


def _sensible_pools(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Keep one of the deployments that differ only in prefill workers that they don't have."""
    alone = columns["prefill_workers"] == 0
    if not alone.any():
        return columns
    first = np.ones(alone.shape, bool)
    for name in POOL_FIELDS:
        first &= columns[name] == columns[name][0]
    kept = {name: column[~alone | first] for name, column in columns.items()}
    for name in POOL_FIELDS:
        kept[name] = np.where(kept["prefill_workers"] == 0, UNSET, kept[name])
    return kept


def _resolve(
    columns: dict[str, NDArray[Any]], engines: Sequence[Engine], *, acceptance_given: bool
) -> None:
    """Put the engines' limits where none is given, but those that depend on a device.

    Raises
    ------
    StrategyError
        Drafts, and nobody says how many are taken.
    """
    for name in set(ENGINE_LIMITS) - set(BY_DEVICE):
        own = np.array([getattr(item, name) for item in engines])[columns["engine"]]
        columns[name] = np.where(is_stated(columns, name), columns[name], own)
    apart = columns["prefill_workers"] > 0
    for name, pool in zip(DEGREES, POOL_FIELDS, strict=True):
        as_decode = apart & ~is_stated(columns, pool)
        columns[pool] = np.where(as_decode, columns[name], columns[pool])
    drafting = columns["draft_length"] > 0
    if drafting.any() and not acceptance_given:
        raise StrategyError("acceptance: a value is needed where tokens are drafted")
    columns["acceptance"] = np.where(drafting, columns["acceptance"], 0.0)


def describe_rejected(status: NDArray[np.uint8], devices: int | None) -> str:
    """Write one line that says why no deployment is possible."""
    codes, counts = np.unique(status[status != VALID], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:3]
    listed = (f"{STATUS_REASONS[int(codes[i])]} ({counts[i]:,})" for i in order)
    where = "" if devices is None else f" on {devices:,} devices"
    return f"no deployment is possible{where}: {'; '.join(listed)}"
