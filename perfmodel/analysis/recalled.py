"""What a row of stored results was projected of, and such rows as cases that can be varied.

Results keep models, hardware and software (``provenance``), so that a strategy of theirs can be
taken up again as it was, whatever profiles and presets say by now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.analysis.case import Case, ServingCase, TrainingCase
from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.pipelines import TABLE
from perfmodel.base.provenance import record_of
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.table import Column, Table
from perfmodel.model.presets import model_from_record
from perfmodel.store.cost import assumptions
from perfmodel.store.subject import SERVING, TRAINING, subject_of
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.rules import STATUS_REASONS

if TYPE_CHECKING:
    from perfmodel.base.routing import Routing
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.software.engine import Engine
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid


def impossible_reasons() -> dict[str, str]:
    """Return why a strategy or a deployment is impossible, by the name of its status."""
    from perfmodel.serving import grid as serving_rules
    from perfmodel.strategy import rules as training_rules

    return {
        rules.STATUS_NAMES[code]: text
        for rules in (training_rules, serving_rules)
        for code, text in rules.STATUS_REASONS.items()
    }


class RecalledStrategy(NamedTuple):
    """One strategy of a sweep, as it was projected."""

    model: ModelSpec
    grid: StrategyGrid
    hardware: Hardware
    framework: Framework


class RecalledPoint(NamedTuple):
    """One operating point of a served model, as it was projected."""

    grid: DeploymentGrid
    loads: LoadGrid
    hardware: Hardware
    method: str
    routing: Routing | None
    prefill_hardware: Hardware | None


def recalled_strategy(
    attributes: Mapping[str, Any], row: Mapping[str, Any], file: str = ""
) -> RecalledStrategy:
    """Return what a strategy of stored results was projected of.

    Parameters
    ----------
    attributes : mapping
        Of the results.
    row : mapping
        Of `perfmodel.store.results.best` and the like.
    file : str
        What messages call the results, where they come from one.

    Raises
    ------
    DataError
        They do not say what was swept, or the schedule was one of a file.
    """
    from perfmodel.hwprofiles.hardware import hardware_from_dict
    from perfmodel.software.framework import framework_of_record
    from perfmodel.strategy.enumerate import strategies_from_rows

    if row.get("pipeline_schedule") == TABLE:
        raise DataError(
            f"{_named(file)} not hold the table of its pipeline's schedule; name the strategy by "
            "options, with --schedule-file"
        )
    try:
        found = json.loads(attributes["provenance"])
        model = model_from_record(record_of(found, "model", row.get("model")))
        framework = framework_of_record(record_of(found, "framework", row.get("framework")))
        hardware = hardware_from_dict(found["hardware"][row["hardware"]])
        devices = int(row.get("devices", attributes["devices"]))
        strategy = {spec.name: row[spec.name] for spec in FIELDS}
    except _UNKNOWN as error:
        raise _not_told(file, "swept", error) from None
    grid = strategies_from_rows(model, devices, [strategy])
    if grid.status[0] != VALID:
        raise DataError(f"impossible strategy: {STATUS_REASONS[int(grid.status[0])]}")
    return RecalledStrategy(model, grid, hardware, framework)


def recalled_point(
    attributes: Mapping[str, Any], row: Mapping[str, Any], file: str = ""
) -> RecalledPoint:
    """Return what an operating point of stored results was projected of; as `recalled_strategy`."""
    return _recalled_points(attributes, row, [row], file)


def _recalled_points(
    attributes: Mapping[str, Any],
    row: Mapping[str, Any],
    deployments: Sequence[Mapping[str, Any]],
    file: str,
) -> RecalledPoint:
    """Return what a point was projected of, with some deployments by its engine."""
    from perfmodel.base.axes import columns_from_rows
    from perfmodel.base.routing import Routing
    from perfmodel.base.served_fields import DEPLOYMENT_FIELD_BY_NAME, LOAD_FIELD_BY_NAME
    from perfmodel.hwprofiles.hardware import hardware_from_dict
    from perfmodel.serving.enumerate import deployments_from_rows
    from perfmodel.serving.grid import LoadGrid

    try:
        found = json.loads(attributes["provenance"])
        model = model_from_record(found["model"])
        engine = _engine(found["engine"], str(row["engine"]))
        hardware = hardware_from_dict(found["hardware"][row["hardware"]])
        pool = found.get("prefill_hardware")
        routing = found.get("routing") and Routing(
            **{**found["routing"], "counts": tuple(map(tuple, found["routing"]["counts"]))}
        )
        chosen = [{name: it[name] for name in DEPLOYMENT_FIELD_BY_NAME} for it in deployments]
        load = {name: row[name] for name in LOAD_FIELD_BY_NAME}
    except _UNKNOWN as error:
        raise _not_told(file, "served", error) from None
    return RecalledPoint(
        deployments_from_rows(model, chosen, engine=engine),
        LoadGrid(columns_from_rows([load], LOAD_FIELD_BY_NAME)),
        hardware,
        str(row.get("method", attributes.get("method", "closed"))),
        routing,
        pool and hardware_from_dict(pool),
    )


_UNKNOWN = (KeyError, RecursionError, TypeError, ValueError)


def _named(file: str) -> str:
    return f"'{file}' does" if file else "the results do"


def _not_told(file: str, what: str, error: Exception) -> DataError:
    return DataError(f"{_named(file)} not say what was {what} ({error}); results written as .nc do")


def peaks_of(hardware: Hardware) -> tuple[float, Mapping[str, float]]:
    """Return the bandwidth of the memory [B/s] and the matrix rates [FLOP/s] of a device."""
    return hardware.device.memory.bandwidth, hardware.device.peak_flops


def recorded_peaks(profile: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
    """Return `peaks_of` hardware that results state."""
    from perfmodel.hwprofiles import hardware_from_dict

    return peaks_of(hardware_from_dict(profile))


def recorded_trust(profile: Mapping[str, Any], levels: Mapping[str, str]) -> list[list[str]]:
    """Return class of kernels, level of trust and band of the constants that results state.

    Parameters
    ----------
    profile : mapping
        Hardware; whatever it is.
    levels : mapping of str to str
        Levels that the table has, by class: they hold before those of the profile.
    """
    from perfmodel.hwprofiles.hardware import hardware_from_dict
    from perfmodel.hwprofiles.trust import KERNELS

    trust = []
    try:
        hardware = hardware_from_dict(dict(profile))
        for kernel in KERNELS:
            band = hardware.borrowed_band(kernel)
            level = levels.get(kernel) or hardware.trust(kernel)
            trust.append([kernel.replace("_", " "), level, f"±{band:.0%}" if band else ""])
    except (KeyError, RecursionError, TypeError, ValueError, PerfModelError):
        trust = [[kernel.replace("_", " "), level, ""] for kernel, level in levels.items()]
    return trust


def stored_case(
    table: Table,
    row: Mapping[str, Any],
    *,
    costs: Mapping[str, Any] | None = None,
    reoptimise: bool = False,
    **options: Any,
) -> Case:
    """Return one of the results of a sweep, or of served models, as a case.

    Parameters
    ----------
    table : Table
        With its provenance.
    row : mapping
        One of its rows, as `perfmodel.store.results.rows` gives it.
    costs : mapping, optional
        Assumptions in place of those with which the table's costs were made.
    reoptimise : bool
        Choose among all strategies of the table for the row's model, software and devices, on its
        hardware; of served models among all deployments by its engine, under its load.
    **options
        As of `Case`.

    Raises
    ------
    DataError
        The table does not say what was projected, or is about something else.
    """
    stored = {name: it for name, it in assumptions(table).items() if it is not None and it != {}}
    more = {"costs": {**stored, **(costs or {})}, "reoptimise": reoptimise, **options}
    subject = subject_of(table)
    if subject is TRAINING:
        model, grid, hardware, framework = recalled_strategy(table.attrs, row)
        if reoptimise:
            grid = _strategies(table, row, grid)
        return TrainingCase(model, grid, hardware, framework, **more)
    if subject is SERVING:
        return _served(table, row, more)
    raise DataError(
        f"results of 'perfmodel {subject.verb}' have no sensitivities; those of 'perfmodel sweep' "
        "and 'perfmodel serve' do"
    )


def _strategies(table: Table, row: Mapping[str, Any], one: StrategyGrid) -> StrategyGrid:
    """Return all possible strategies of a table for the model, software and devices of a row."""
    from perfmodel.base.strategy_fields import FIELDS
    from perfmodel.strategy.grid import StrategyGrid

    good = np.isfinite(table["step_time"].values).any(axis=1)
    for name in ("model", "framework", "devices"):
        if name in table:
            good &= table[name].labelled() == row[name]
    columns = {
        spec.name: _codes(table[spec.name], spec.choices, one[spec.name].dtype)[good]
        for spec in FIELDS
    }
    return StrategyGrid(one.devices, columns, np.zeros(int(good.sum()), np.uint8))


def _codes(column: Column, choices: tuple[str, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a stored field with the codes of today, whatever the order of its labels was."""
    labels = column.labels
    if labels is None or not choices:
        return np.asarray(column.values, dtype)
    known = np.array([choices.index(it) if it in choices else -1 for it in labels], dtype)
    return np.asarray(known[column.values], dtype)


def _served(table: Table, row: Mapping[str, Any], options: Mapping[str, Any]) -> ServingCase:
    from perfmodel.serving.methods import METHODS
    from perfmodel.store.results import rows

    deployments: Sequence[Mapping[str, Any]] = [row]
    if options["reoptimise"]:
        places = np.flatnonzero(table["engine"].labelled() == row["engine"])
        some = table.isel(deployment=places, hardware=np.array([0]), load=np.array([0]))
        deployments = rows(some, np.arange(places.size))
    point = _recalled_points(table.attrs, row, deployments, "")
    if point.routing or point.prefill_hardware:
        raise DataError(
            "served models with a stated routing, or other hardware for prompts, vary not"
        )
    if point.method not in METHODS:
        raise DataError(f"a replay of a trace ({point.method}) has no sensitivities; serve a load")
    grid = point.grid.take(point.grid.status == 0)
    return ServingCase(grid, point.loads, point.hardware, point.method, **options)


def _engine(records: Mapping[str, Any], label: str) -> Engine:
    """Return a stored engine by the label of its column."""
    from perfmodel.base.fields import facts_of
    from perfmodel.software.engine import Engine

    record = {name.replace(" ", "_"): it for name, it in records.items()}[label]
    facts = {name: fact.convert(record[name]) for name, fact in facts_of(Engine).items()}
    return Engine(name=record["name"], **facts)
