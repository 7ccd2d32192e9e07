"""One strategy that somebody named, or the numbers and the reason why it cannot be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.model.spec import head_counts
from perfmodel.strategy.defaults import likeliest, likely_rows
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.grid import VALID, batches_of
from perfmodel.strategy.rules import RULES, STATUS_NAMES, STATUS_REASONS

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid
    from perfmodel.strategy.pipelines import Pipeline

DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel")
"""Degrees that multiply, with the data-parallel one, to the number of devices."""
FIELDS_OF = {rule.name: rule.fields for rule in RULES}
"""Which fields a rule is about; none: those of the degrees."""


def one_strategy(
    model: ModelSpec,
    devices: int,
    axes: Mapping[str, Any],
    framework: str | Framework | None = None,
    table: Pipeline | None = None,
    hardware: Hardware | str | None = None,
) -> StrategyGrid:
    """Return a grid of one strategy.

    Parameters
    ----------
    model : ModelSpec
    devices : int
    axes : mapping of str to value
        Fields of the strategy; those that are missing or None are as
        `perfmodel.strategy.defaults` has them.
    framework : str or Framework, optional
        Without it what is open is not what is likely, but what silence means.
    table : Pipeline, optional
        A schedule that was read from a file: says how many stages, chunks and micro-batches.
    hardware : Hardware or str, optional
        Whose memory and time decide among what is likely.

    Raises
    ------
    StrategyError
        The strategy is impossible; the message has the numbers and the reason.
    """
    given = {name: value for name, value in axes.items() if value is not None}
    if table is not None:
        given |= stages_of_table(table, given)
    check_devices(devices, given)
    if framework is not None:
        given = _likely(model, devices, given, framework, table, hardware)
    grid = strategies_from_rows(model, devices, [given], table, framework)
    status = int(grid.status[0])
    if table is not None and (batches := int(batches_of(grid)[0])) != table.order.micro_batches:
        fitting = int(grid["global_batch_size"][0]) // max(batches, 1) * table.order.micro_batches
        raise StrategyError(
            f"the schedule's table has {table.order.micro_batches} micro-batches, and the strategy "
            f"{batches}; --global-batch {fitting} would be right"
        )
    if status != VALID:
        numbers = _numbers(model, grid.row(0), status)
        raise StrategyError(f"impossible strategy: {STATUS_REASONS[status]} ({numbers})")
    return grid


def _likely(
    model: ModelSpec,
    devices: int,
    given: dict[str, Any],
    framework: str | Framework,
    table: Pipeline | None,
    hardware: Hardware | str | None,
) -> dict[str, Any]:
    """Return a strategy with the likely values of its open fields, if any of them is possible."""
    from perfmodel.sweeps.sweep import sweep_table

    rows = likely_rows(given, devices, model, framework)
    grid = strategies_from_rows(model, devices, rows, table, framework)
    possible = np.flatnonzero(grid.status == VALID)
    if not possible.size:
        return given
    if hardware is None or possible.size == 1:
        return rows[int(possible[0])]
    found = sweep_table(model, grid, hardware, framework=framework, threads=1)
    names = ("fits", "memory_total", "step_time")
    columns = (found[name].values[:, 0] for name in names)
    valid = found["status"].values[:, 0] == VALID
    return rows[likeliest(rows, valid, *columns)] if valid.any() else given


def stages_of_table(table: Pipeline, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a table of a schedule decides.

    Raises
    ------
    StrategyError
        Other fields say otherwise, or the table has what no strategy can.
    """
    order = table.order
    if order.copies > 1:
        raise StrategyError(
            "the schedule's table has two copies of the model; --schedule dualpipe has"
        )
    stages, ranks = int(order.rank_of.size), int(order.first.size) - 1
    if not (np.bincount(order.rank_of, minlength=ranks) * ranks == stages).all():
        raise StrategyError("the schedule's table gives some ranks more stages than others")
    found = {
        "pipeline_parallel": ranks,
        "virtual_pipeline": stages // ranks,
        "pipeline_schedule": "table",
    }
    for name, value in found.items():
        if given.get(name, value) != value:
            option = FIELD_BY_NAME[name].option
            raise StrategyError(f"--{option} {given[name]}: the schedule's table has {value}")
    return found


def check_devices(devices: int, given: Mapping[str, Any]) -> None:
    """Check that the degrees multiply to the number of devices.

    Raises
    ------
    StrategyError
        They do not; the message says what would be right.
    """
    degrees = {name: int(given.get(name, 1)) for name in DEGREES}
    product = math.prod(degrees.values())
    written = " × ".join(
        f"{FIELD_BY_NAME[name].option} {degree}" for name, degree in degrees.items()
    )
    data = given.get("data_parallel")
    if data is not None and product * data != devices:
        better = f"--devices {product * data}"
        if devices % product == 0:
            better = f"--dp {devices // product} or {better}"
        raise StrategyError(
            f"{written} × dp {data} = {product * data:,} is not the {devices:,} devices; "
            f"{better} would be right"
        )
    if devices % product:
        below = devices // product * product
        near = f"{below + product:,}" if not below else f"{below:,} or {below + product:,}"
        raise StrategyError(
            f"{devices:,} devices are not a multiple of {written} = {product:,}; {near} would be"
        )


def _numbers(model: ModelSpec, row: Mapping[str, Any], status: int) -> str:
    """Return the numbers that a broken rule is about."""
    name = STATUS_NAMES[status]
    fields = FIELDS_OF.get(name) or (*DEGREES, "data_parallel")
    listed = [f"{field} {row[field]}" for field in fields]
    if name in ("heads_not_divisible", "context_heads_not_divisible"):
        listed += [f"{heads} heads in {groups} groups" for heads, groups in head_counts(model)]
    if name == "rank_not_divisible" and model.adapters is not None:
        listed.append(f"rank {model.adapters.rank}")
    if name == "too_few_layers":
        listed.append(f"{model.num_layers} layers")
    if name == "experts_not_divisible":
        counts = sorted({layer.experts for layer in model.layer_kinds()[0]})
        listed.append(f"{' or '.join(map(str, counts))} experts")
    return ", ".join(listed)
