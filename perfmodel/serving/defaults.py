"""Limits that engines take by themselves where nobody states them, by device and release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.served_fields import UNSET, is_stated
from perfmodel.serving.grid import DeploymentGrid, worker_devices

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.software.engine import Engine

BY_DEVICE = ("token_budget", "max_sequences", "memory_share")
"""Limits that may depend on a device."""
LARGE_MEMORY = 60 * 2.0**30


def device_class(engine: Engine, hardware: Hardware) -> tuple[float, ...]:
    """Return the entry of `Engine.device_limits` that holds on a device; empty where none does."""
    limits = engine.device_limits
    if limits and engine.small_devices and engine.small_devices in hardware.device.name.lower():
        return limits[0]
    capacity = hardware.device.memory.capacity
    return next((entry for entry in limits if capacity < entry[0]), ())


def device_fact(engine: Engine, hardware: Hardware, name: str) -> float:
    """Return ``token_budget``, ``max_sequences`` or ``workspace_bytes`` as on a device."""
    place = ("token_budget", "max_sequences", "workspace_bytes").index(name) + 1
    found = device_class(engine, hardware)
    return (found[place] if found else 0) or float(getattr(engine, name))


def _share(engine: Engine, grid: DeploymentGrid, tokens: Floats, hardware: Hardware) -> Floats:
    """Return the share of memory that a reserve leaves, of every deployment."""
    if engine.memory_share or not engine.reserve:
        return np.full(len(grid), float(engine.memory_share))
    always, token, sequence, device, least = engine.reserve
    capacity = hardware.device.memory.capacity
    kept = always + token * np.maximum(tokens, 2048) + sequence * engine.graph_limit
    kept = kept + device * worker_devices(grid.columns)
    if capacity > LARGE_MEMORY:
        kept = np.maximum(kept, least)
    share = np.maximum(1.0 - kept / capacity, 0.05)
    return np.asarray(np.round(share, 3), np.float64)


def with_limits(grid: DeploymentGrid, profiles: Sequence[Hardware]) -> DeploymentGrid:
    """Return deployments with the engines' limits where none is stated.

    Parameters
    ----------
    grid : DeploymentGrid
    profiles : sequence of Hardware
        A limit that these devices do not share stays unset, and is found for each of them.
    """
    columns = dict(grid.columns)
    unset = {name: ~np.asarray(is_stated(columns, name)) for name in BY_DEVICE}
    if not profiles or not any(mask.any() for mask in unset.values()):
        return grid
    found = {name: np.zeros((len(profiles), len(grid))) for name in BY_DEVICE}
    for place, engine in enumerate(grid.engines):
        rows = columns["engine"] == place
        some = grid.take(rows)
        for at, profile in enumerate(profiles):
            tokens = device_fact(engine, profile, "token_budget")
            found["token_budget"][at, rows] = tokens
            found["max_sequences"][at, rows] = device_fact(engine, profile, "max_sequences")
            budget = np.where(unset["token_budget"][rows], tokens, some["token_budget"])
            found["memory_share"][at, rows] = _share(engine, some, budget, profile)
    for name, values in found.items():
        alike = unset[name] & (values == values[0]).all(axis=0)
        own = np.where(alike, values[0], UNSET).astype(columns[name].dtype)
        columns[name] = np.where(unset[name], own, columns[name])
    return replace(grid, columns=columns)
