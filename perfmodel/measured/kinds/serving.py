"""Measured runs of served models against projections: see `perfmodel.measured.serving_rows`.

Rows of one model on one device are projected together: their distinct deployments under their
distinct loads. Batches that are measured as they are run all prompts together, then token by token.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.axes import columns_from_rows
from perfmodel.base.columns import Floats
from perfmodel.base.errors import PerfModelError
from perfmodel.base.served_fields import LOAD_FIELD_BY_NAME
from perfmodel.measured.kind import Kind, Rows
from perfmodel.measured.rows import MeasuredRow, Outcome, Skip
from perfmodel.measured.serving_results import COLUMNS, read_serving_results
from perfmodel.measured.serving_rows import (
    MEASUREMENTS,
    NUMBERS,
    OFFLINE,
    OPEN,
    STATIC,
    WHOLE_NUMBERS,
    ServedCase,
    case_of,
    derived,
    measured_value,
)
from perfmodel.serving.defaults import with_limits
from perfmodel.serving.enumerate import deployments_from_rows
from perfmodel.serving.grid import RATE_ABOVE_CAPACITY, STATUS_REASONS, DeploymentGrid, LoadGrid
from perfmodel.serving.memory import deployment_memory
from perfmodel.serving.pass_table import pass_tables
from perfmodel.serving.project import Points, deployment_columns, project_points


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
    from perfmodel.kernels.serving.steady import close_phase
    from perfmodel.kernels.serving.tables import ROWS
    from perfmodel.kernels.work import kernel_work

    grid = with_limits(grid, [hardware])
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
    return Points(values, status, np.zeros_like(status), memory, None)


METRICS = {
    "tpot": ("time_per_output_token", "s"),
    "ttft": ("time_to_first_token", "s"),
    "throughput": ("tokens_per_second_per_device", "1/s"),
}
SHOWN = (
    *("time_to_first_token_mean", "time_to_first_token_low", "time_to_first_token_high"),
    *("time_per_output_token_mean", "time_per_output_token_low", "time_per_output_token_high"),
    *("inter_token_latency_mean", "tokens_per_second_per_device", "batch", "queue_time"),
    *("attention_time", "matrices_time", "experts_time", "communication_time", "other_time"),
    "host_time",
)
"""Variables of a projection that a scored row keeps."""

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

Values = Mapping[str, float]


def read(path: str | os.PathLike[str]) -> Rows | None:
    """Read a tool's result file; None where the file is a table.

    Raises
    ------
    FormatError
        It is one, but broken.
    """
    found = read_serving_results(path)
    if found is None:
        return None
    names = [name for name in COLUMNS if any(name in cells for cells in found)]
    return names, [MeasuredRow(cells, os.fspath(path), i + 1) for i, cells in enumerate(found)]


def project_cases(cases: Sequence[ServedCase]) -> list[Values | Skip]:
    """Project cases of one model on one device.

    Returns
    -------
    list of mapping or Skip
        Of each case its variables by the names of `perfmodel.kernels.serving.tables.ROWS`, or
        why there are none.
    """
    still = [i for i, case in enumerate(cases) if case.arrival == STATIC]
    others = [i for i, case in enumerate(cases) if case.arrival != STATIC]
    batches = [{**cases[i].load, "concurrency": float(cases[i].batch)} for i in still]
    found = [
        *_points([cases[i] for i in still], batches, project_batches),
        *_queues([cases[i] for i in others]),
    ]
    return [found[place] for place in np.argsort([*still, *others]).tolist()]


def _queues(cases: Sequence[ServedCase]) -> list[Values | Skip]:
    """Project cases whose requests queue."""
    found = _points(cases, [case.load for case in cases])
    # A run of so many requests ends, and is measured, at a rate that cannot last.
    unstable = STATUS_REASONS[RATE_ABOVE_CAPACITY]
    beyond = [
        i
        for i, values in enumerate(found)
        if isinstance(values, Skip) and values.reason == unstable
        if cases[i].arrival == OPEN and math.isfinite(cases[i].requests)
    ]
    again = _points([cases[i] for i in beyond], [_all_at_once(cases[i]) for i in beyond])
    for i, values in zip(beyond, again, strict=True):
        found[i] = values
    return [
        _once(case, values)
        if not isinstance(values, Skip) and (case.arrival == OFFLINE or i in beyond)
        else values
        for i, (case, values) in enumerate(zip(cases, found, strict=True))
    ]


def _all_at_once(case: ServedCase) -> dict[str, float]:
    load = {name: value for name, value in case.load.items() if name != "arrival_rate"}
    return {**load, "concurrency": case.requests, "rounds": 0.0}


def _once(case: ServedCase, values: Values) -> Values:
    """Return what a run of N requests measures, of what N clients meet who ask on and on.

    Notes
    -----
    Clients of a closed loop spend R on a request, W of it waiting for a place; R/N passes from one
    start to the next, and R - W is what those take that find places at once. So the i-th request
    of the run starts at i·R/N - (R - W), and comes at i/rate (at once where there is no rate):
    with s = R/N - 1/rate the wait is s·i - (R - W) where that is positive, on average
    s·(N - (R - W)/s)²/(2 N).
    """
    count, whole, waited = case.requests, values["request_time_mean"], values["queue_time"]
    rate = case.load.get("arrival_rate", math.inf)
    step = whole / count - 1.0 / rate
    late = max(count - (whole - waited) / step, 0.0) if step > 0.0 else 0.0
    wait = step * late * late / (2.0 * count)
    first = values["time_to_first_token_mean"] - waited + wait
    return {**values, "time_to_first_token_mean": first, "queue_time": wait}


def _points(
    cases: Sequence[ServedCase],
    loads: Sequence[Mapping[str, float]],
    project: Callable[[DeploymentGrid, LoadGrid, Hardware], Points] = project_points,
) -> list[Values | Skip]:
    """Project each case under its load."""
    if not cases:
        return []
    engines = list(dict.fromkeys(case.engine for case in cases))
    deployments, rows = distinct(
        [{**case.deployment, "engine": engines.index(case.engine)} for case in cases]
    )
    asked, columns = distinct(loads)
    try:
        grid = deployments_from_rows(cases[0].model, deployments, engine=engines)
        points = project(
            grid, LoadGrid(columns_from_rows(asked, LOAD_FIELD_BY_NAME)), cases[0].hardware
        )
    except PerfModelError as error:
        return [Skip("the projection refuses the row", str(error))] * len(cases)
    return [_values(points, row, column) for row, column in zip(rows, columns, strict=True)]


def distinct(items: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[int]]:
    """Return the distinct ones of some mappings, and the place of each among them."""
    places: dict[tuple[tuple[str, Any], ...], int] = {}
    index = [places.setdefault(tuple(sorted(item.items())), len(places)) for item in items]
    return [dict(key) for key in places], index


def _values(points: Points, row: int, column: int) -> Values | Skip:
    from perfmodel.kernels.serving.tables import ROWS

    status = int(points.status[row, column])
    values = points.values[:, row, column]
    if not math.isfinite(values[ROWS.time_to_first_token_mean]):
        return Skip(STATUS_REASONS[status])
    return {name: float(values[i]) for i, name in enumerate(ROWS._fields)}


@dataclass(frozen=True, kw_only=True)
class ServingKind(Kind):
    """Runs of served models."""

    def project(
        self, rows: Sequence[MeasuredRow], progress: Callable[[int], None]
    ) -> list[Outcome]:
        """Project every row."""
        outcomes: list[Outcome | None] = [None] * len(rows)
        groups: dict[Any, list[tuple[int, ServedCase, float, str]]] = {}
        for i, row in enumerate(rows):
            try:
                case = case_of(row)
                measured, statistic = measured_value(row, self.metric)
            except Skip as skip:
                outcomes[i] = Outcome.skipped(skip)
                progress(1)
                continue
            key = (case.model, case.hardware)
            groups.setdefault(key, []).append((i, case, measured, statistic))
        for members in groups.values():
            found = project_cases([case for _, case, _, _ in members])
            for (i, case, measured, statistic), values in zip(members, found, strict=True):
                outcomes[i] = _outcome(case, measured, statistic, values)
            progress(len(members))
        return [outcome for outcome in outcomes if outcome is not None]


def _outcome(case: ServedCase, measured: float, statistic: str, values: Values | Skip) -> Outcome:
    if isinstance(values, Skip):
        return Outcome.skipped(values)
    name = statistic if statistic in values else f"{statistic}_mean"
    return Outcome(
        measured=measured,
        projected=values[name],
        assumed=case.assumed,
        notes=case.notes,
        details={
            "profile": case.hardware.name,
            "release": case.engine.name,
            **case.deployment,
            **{name: values[name] for name in SHOWN},
        },
    )


KIND = ServingKind(
    name="serving",
    quantity=METRICS["tpot"][0],
    unit=METRICS["tpot"][1],
    needed=("model",),
    measurements=MEASUREMENTS,
    group_by=("engine", "model", "hardware", "load", "pools", "crowd", "assumed"),
    whole=WHOLE_NUMBERS,
    numbers=NUMBERS,
    derived=derived,
    read=read,
    metrics=METRICS,
    metric="tpot",
    shares=("model", "hardware"),
)
