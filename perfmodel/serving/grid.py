"""Sets of deployments and of loads as columns, one entry each, and the rules that they must keep.

Columns hold what really counts: where a user leaves a limit to the engine, the engine's value
stands there. A rule is one small function with its code and its reason: it takes the columns of a
grid and returns a mask of the deployments that break it. The first broken rule becomes the status.
What a device, a load or a closing kernel finds impossible has codes behind those of the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import Fields, decode
from perfmodel.base.columns import Flags, Floats, Integers, distinct_keys
from perfmodel.base.errors import StrategyError
from perfmodel.base.fields import read_rules
from perfmodel.base.served_fields import (
    DEGREES,
    DEPLOYMENT_FIELD_BY_NAME,
    LOAD_FIELD_BY_NAME,
    is_closed_loop,
    is_stated,
)
from perfmodel.base.units import facts_html
from perfmodel.model.spec import head_counts, mlps_of
from perfmodel.serving.layouts import LAYOUT_FIELDS, Layouts

if TYPE_CHECKING:
    from perfmodel.kernels.serving.tables import Loads
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.engine import Engine

Columns = Mapping[str, NDArray[Any]]


def rank_devices(c: Columns) -> Integers:
    """Devices of a stage that share the experts, t·a."""
    return c["tensor_parallel"] * c["attention_data_parallel"]


def worker_devices(c: Columns) -> Integers:
    """Devices of a worker, t·a·p."""
    return rank_devices(c) * c["pipeline_parallel"]


def prefill_columns(c: Columns) -> dict[str, NDArray[Any]]:
    """Return the columns as a prefill worker has them; as a decode worker where there is none."""
    own = {name: f"prefill_{name}" for name in DEGREES}
    return dict(c) | {
        name: np.where(is_stated(c, pool), c[pool], c[name]) for name, pool in own.items()
    }


def deployment_devices(c: Columns) -> NDArray[np.float64]:
    """Devices of all workers of both pools, shape (deployments,)."""
    decode = worker_devices(c).astype(np.float64) * c["workers"]
    return decode + worker_devices(prefill_columns(c)) * c["prefill_workers"].astype(np.float64)


def _heads(c: Columns, model: ModelSpec) -> Flags:
    degree = c["tensor_parallel"]
    broken = np.zeros(degree.shape, bool)
    for heads, groups in head_counts(model):
        broken |= heads % degree != 0
        broken |= (groups % degree != 0) & (degree % groups != 0)
    return broken


def _width(c: Columns, model: ModelSpec) -> Flags:
    degree = c["tensor_parallel"]
    inner = np.maximum(rank_devices(c) // c["expert_parallel"], 1)
    broken = np.zeros(degree.shape, bool)
    for part in mlps_of(model):
        if part.kind == "moe":
            broken |= part.expert_intermediate_size % inner != 0
            broken |= part.shared_intermediate_size % degree != 0
        else:
            broken |= part.intermediate_size % degree != 0
    return broken


def _layers(c: Columns, model: ModelSpec) -> Flags:
    return c["pipeline_parallel"] > model.num_layers


def _experts(c: Columns, model: ModelSpec) -> Flags:
    degree = c["expert_parallel"]
    counts = {part.experts for part in mlps_of(model) if part.kind == "moe"}
    if not counts:
        return degree > 1
    # Where they do not divide, some devices hold one more: vLLM's ``determine_expert_map``,
    # redundant experts of SGLang and TensorRT-LLM.
    return degree > min(counts)


def _expert_groups(c: Columns, model: ModelSpec) -> Flags:
    return rank_devices(c) % c["expert_parallel"] != 0


def _speculation(c: Columns, model: ModelSpec) -> Flags:
    return (c["draft_length"] > 0) & (not model.mtp_layers)


RULES, STATUS_NAMES, STATUS_REASONS = read_rules(
    Path(__file__).with_name("rules.csv"),
    {
        "heads_not_divisible": _heads,
        "width_not_divisible": _width,
        "too_few_layers": _layers,
        "too_few_experts": _experts,
        "expert_group_mismatch": _expert_groups,
        "no_draft_modules": _speculation,
    },
)
"""Of a worker; those of a prefill worker are the same. And all statuses."""

VALID = 0
TOO_MANY_DEVICES = 1
PRECISION_UNSUPPORTED = 20
MEMORY_TOO_SMALL = 21
CONTEXT_ABOVE_CACHE = 22
TOO_FEW_STATE_BLOCKS = 23
CONTEXT_TOO_LONG = 30
RATE_ABOVE_CAPACITY = 41
CACHE_BELOW_ONE_REQUEST = 42
FEWER_REQUESTS_THAN_RANKS = 43
KERNEL_STATES = (VALID, RATE_ABOVE_CAPACITY, CACHE_BELOW_ONE_REQUEST, FEWER_REQUESTS_THAN_RANKS)
"""Codes of `perfmodel.kernels.serving.tables.STATES`, in their order."""


def deployment_status(
    columns: Columns, model: ModelSpec, devices: int | None = None
) -> NDArray[np.uint8]:
    """Return the code of the first rule that each deployment breaks; 0 where it keeps all."""
    status = np.zeros(columns["tensor_parallel"].shape, np.uint8)
    if devices is not None:
        status[deployment_devices(columns) > devices] = TOO_MANY_DEVICES
    pools: list[Columns] = [columns]
    if columns["prefill_workers"].any():
        pools.append(prefill_columns(columns))
    for pool in pools:
        for rule in RULES:
            status[rule.broken(pool, model) & (status == VALID)] = rule.code
    return status


MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class DeploymentGrid:
    """Columns of deployments of one model.

    Attributes
    ----------
    model : ModelSpec
        With the modules that draft, where it has some.
    engines : tuple of Engine
    columns : mapping of str to ndarray, shape (deployments,)
        ``engine`` (position in `engines`) and a column per field of
        `perfmodel.base.served_fields.DEPLOYMENT_FIELDS`.
    status : ndarray of uint8, shape (deployments,)
        0 where a deployment is possible, else the code of the rule that it breaks
        (`perfmodel.serving.grid`).
    """

    model: ModelSpec
    engines: tuple[Engine, ...]
    columns: Mapping[str, NDArray[Any]]
    status: NDArray[np.uint8]

    def __repr__(self) -> str:
        possible = int(np.count_nonzero(self.status == 0))
        return (
            f"<DeploymentGrid of {len(self):,} deployments of {self.model.name}, "
            f"{possible:,} possible>"
        )

    def _repr_html_(self) -> str:
        engines = {"engine": ", ".join(item.name for item in self.engines)}
        return facts_html(
            repr(self)[1:-1], {**engines, **_shown(self.columns, DEPLOYMENT_FIELD_BY_NAME)}.items()
        )

    def __len__(self) -> int:
        return int(self.status.size)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    @property
    def devices(self) -> Floats:
        """Devices of both pools, shape (deployments,)."""
        return deployment_devices(self.columns)

    def row(self, index: int) -> dict[str, Any]:
        """Return one deployment with labels, for printing."""
        return {
            "engine": self.engines[int(self.columns["engine"][index])].name,
            **{
                name: decode(name, self.columns[name][index], DEPLOYMENT_FIELD_BY_NAME)
                for name in DEPLOYMENT_FIELD_BY_NAME
            },
        }

    def take(self, index: NDArray[Any] | slice) -> DeploymentGrid:
        """Return the deployments at `index` (positions, mask or slice)."""
        return DeploymentGrid(
            self.model,
            self.engines,
            {name: column[index] for name, column in self.columns.items()},
            self.status[index],
        )

    def layouts(self) -> tuple[Layouts, Integers, Integers]:
        """Return the distinct layouts of both pools, and which each deployment has.

        Returns
        -------
        layouts : Layouts
        layout : ndarray of int64, shape (deployments,)
            Of the decode workers, or of all.
        prefill_layout : ndarray of int64, shape (deployments,)
            -1 where there is one pool.
        """
        apart = np.flatnonzero(self.columns["prefill_workers"])
        every = {name: self.columns[name] for name in LAYOUT_FIELDS}
        if apart.size:
            prefill = prefill_columns(self.columns)
            every = {
                name: np.concatenate((column, prefill[name][apart]))
                for name, column in every.items()
            }
        columns, index = distinct_keys(every, LAYOUT_FIELDS)
        second = np.full(len(self), -1, np.int64)
        second[apart] = index[len(self) :]
        return Layouts(self.engines, columns), index[: len(self)], second


def joined(grids: Sequence[DeploymentGrid]) -> DeploymentGrid:
    """Return the deployments of several grids of one model and the same engines as one.

    What is no product of axes (formats in pairs, workers by degree) is several of them.
    """
    first = grids[0]
    if any(grid.engines != first.engines or grid.model != first.model for grid in grids):
        raise StrategyError("deployments of one model and the same engines can be joined")
    return DeploymentGrid(
        first.model,
        first.engines,
        {name: np.concatenate([grid[name] for grid in grids]) for name in first.columns},
        np.concatenate([grid.status for grid in grids]),
    )


@dataclass(frozen=True, slots=True)
class LoadGrid:
    """Columns of loads.

    Attributes
    ----------
    columns : mapping of str to ndarray, shape (loads,)
        A column per field of `perfmodel.base.served_fields.LOAD_FIELDS`.
    """

    columns: Mapping[str, NDArray[Any]]

    def __repr__(self) -> str:
        return f"<LoadGrid of {len(self):,} loads>"

    def _repr_html_(self) -> str:
        return facts_html(repr(self)[1:-1], _shown(self.columns, LOAD_FIELD_BY_NAME).items())

    def __len__(self) -> int:
        return int(self.columns["input_length"].size)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    @property
    def is_closed_loop(self) -> NDArray[np.bool_]:
        """Whether clients keep requests under way, not a rate of arrivals; shape (loads,)."""
        closed: NDArray[np.bool_] = is_closed_loop(self.columns)
        return closed

    def row(self, index: int) -> dict[str, Any]:
        """Return one load, for printing."""
        return {
            name: decode(name, self.columns[name][index], LOAD_FIELD_BY_NAME)
            for name in LOAD_FIELD_BY_NAME
        }

    def take(self, index: NDArray[Any] | slice) -> LoadGrid:
        """Return the loads at `index` (positions, mask or slice)."""
        return LoadGrid({name: column[index] for name, column in self.columns.items()})

    def kernel_columns(self) -> Loads:
        """Return the loads as kernels take them."""
        from perfmodel.kernels.serving.tables import Loads

        named = {"request_rate": self.columns["arrival_rate"]}
        rounds = is_stated(self.columns, "rounds")
        named["rounds"] = np.where(rounds, self.columns["rounds"], np.inf)
        columns = (named.get(name, self.columns.get(name)) for name in Loads._fields)
        return Loads(*(np.ascontiguousarray(column, np.float64) for column in columns))


def check_loads(columns: Mapping[str, NDArray[Any]]) -> None:
    """Refuse loads that mean nothing.

    Raises
    ------
    StrategyError
        Neither concurrency nor rate, or both; a prefix that is no part of the prompt.
    """
    closed, opened = is_closed_loop(columns), is_stated(columns, "arrival_rate")
    if (closed & opened).any():
        raise StrategyError(
            "a load has a concurrency (closed loop) or a rate (open loop), not both"
        )
    if not (closed | opened).all():
        raise StrategyError("concurrency: a value is needed, or a rate of arrivals (--rate)")
    if (columns["length_spread"] <= 0).any():
        raise StrategyError("length_spread: 0 is no share of a length; at least a token is asked")
    over = columns["prefix"] >= columns["input_length"]
    if over.any():
        at = int(np.argmax(over))
        prefix, length = columns["prefix"][at], columns["input_length"][at]
        raise StrategyError(
            f"prefix: {prefix:g} tokens of {length:,} in the cache leave no prompt to run"
        )


def _shown(columns: Mapping[str, NDArray[Any]], fields: Fields) -> dict[str, str]:
    axes = {}
    for name in fields:
        values = [str(decode(name, code, fields)) for code in np.unique(columns[name]).tolist()]
        axes[name] = ", ".join(values[:MOST_SHOWN]) + (" …" if len(values) > MOST_SHOWN else "")
    return axes


def engines_of(engine: Any) -> tuple[Engine, ...]:
    """Return engines by name, release, or as they are; one or several.

    Raises
    ------
    StrategyError
        An unknown one, none, or one twice.
    """
    from perfmodel.software.engine import load_engine

    given: Sequence[Any] = engine if isinstance(engine, list | tuple) else (engine,)
    found = tuple(map(load_engine, given))
    if not found:
        raise StrategyError("engine: the list of values is empty")
    names = [item.name for item in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise StrategyError(f"engine '{twice[0]}' is given twice")
    return found
