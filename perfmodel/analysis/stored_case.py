"""Stored results as cases whose numbers and switches can be changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.analysis.case import Case, ServingCase, TrainingCase
from perfmodel.base.errors import DataError
from perfmodel.base.table import Column, Table
from perfmodel.store.cost import assumptions
from perfmodel.store.recalled import recalled_strategy
from perfmodel.store.subject import SERVING, TRAINING, subject_of

if TYPE_CHECKING:
    from perfmodel.software.engine import Engine
    from perfmodel.strategy.grid import StrategyGrid


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
    from perfmodel.strategy.fields import FIELDS
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
    from perfmodel.hwprofiles import hardware_from_dict
    from perfmodel.model.presets import model_from_record
    from perfmodel.serving.enumerate import deployments_from_rows
    from perfmodel.serving.fields import DEPLOYMENT_FIELD_BY_NAME, LOAD_FIELD_BY_NAME
    from perfmodel.serving.grid import LoadGrid
    from perfmodel.serving.project import METHODS
    from perfmodel.store.results import rows
    from perfmodel.strategy.grid import columns_from_rows

    try:
        provenance = json.loads(table.attrs["provenance"])
        model = model_from_record(provenance["model"])
        hardware = hardware_from_dict(provenance["hardware"][row["hardware"]])
        engine = _engine(provenance["engine"], str(row["engine"]))
        special = {key: provenance.get(key) for key in ("routing", "prefill_hardware")}
        method = str(table.attrs["method"])
        load = {name: row[name] for name in LOAD_FIELD_BY_NAME}
        chosen = [row]
        if options["reoptimise"]:
            places = np.flatnonzero(table["engine"].labelled() == row["engine"])
            some = table.isel(deployment=places, hardware=np.array([0]), load=np.array([0]))
            chosen = list(rows(some, np.arange(places.size)))
        deployments = [{name: it[name] for name in DEPLOYMENT_FIELD_BY_NAME} for it in chosen]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"the results do not say what was served ({error}); those written as .nc do"
        ) from None
    if any(special.values()):
        raise DataError(
            "served models with a stated routing, or other hardware for prompts, vary not"
        )
    if method not in METHODS:
        raise DataError(f"a replay of a trace ({method}) has no sensitivities; serve a load")
    grid = deployments_from_rows(model, deployments, engine=engine)
    grid = grid.take(grid.status == 0)
    loads = LoadGrid(columns_from_rows([load], LOAD_FIELD_BY_NAME))
    return ServingCase(grid, loads, hardware, method, **options)


def _engine(records: Mapping[str, Any], label: str) -> Engine:
    """Return a stored engine by the label of its column."""
    from perfmodel.base.fields import facts_of
    from perfmodel.software.engine import Engine

    record = {name.replace(" ", "_"): it for name, it in records.items()}[label]
    facts = {name: fact.convert(record[name]) for name, fact in facts_of(Engine).items()}
    return Engine(name=record["name"], **facts)
