"""What a row of stored results was projected of: model, strategy or deployment, hardware, software.

Results keep all of it (``provenance``), so that a strategy of theirs can be taken up again as it
was, whatever profiles and presets say by now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.errors import DataError
from perfmodel.base.pipelines import TABLE
from perfmodel.base.provenance import record_of
from perfmodel.model.presets import model_from_record
from perfmodel.strategy.fields import FIELDS
from perfmodel.strategy.rules import STATUS_REASONS, VALID

if TYPE_CHECKING:
    from perfmodel.compute.routing import Routing
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid


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
    attributes: Mapping[str, Any], row: Mapping[str, Any], file: str
) -> RecalledPoint:
    """Return what an operating point of stored results was projected of; as `recalled_strategy`."""
    from perfmodel.compute.routing import Routing
    from perfmodel.hwprofiles.hardware import hardware_from_dict
    from perfmodel.serving.enumerate import deployments_from_rows, load_grid
    from perfmodel.serving.fields import DEPLOYMENT_FIELD_BY_NAME, LOAD_FIELD_BY_NAME
    from perfmodel.software.engine import Engine

    try:
        found = json.loads(attributes["provenance"])
        model = model_from_record(found["model"])
        engine = Engine(**found["engine"][row["engine"]])
        hardware = hardware_from_dict(found["hardware"][row["hardware"]])
        routing = found.get("routing") and Routing(
            **{**found["routing"], "counts": tuple(map(tuple, found["routing"]["counts"]))}
        )
        deployment = {name: row[name] for name in DEPLOYMENT_FIELD_BY_NAME}
        load = {name: row[name] for name in LOAD_FIELD_BY_NAME if row[name] or name == "prefix"}
    except _UNKNOWN as error:
        raise _not_told(file, "served", error) from None
    grid = deployments_from_rows(model, [deployment], engine=engine)
    return RecalledPoint(
        grid, load_grid(**load), hardware, str(attributes.get("method", "closed")), routing
    )


_UNKNOWN = (KeyError, RecursionError, TypeError, ValueError)


def _named(file: str) -> str:
    return f"'{file}' does" if file else "the results do"


def _not_told(file: str, what: str, error: Exception) -> DataError:
    return DataError(f"{_named(file)} not say what was {what} ({error}); results written as .nc do")
