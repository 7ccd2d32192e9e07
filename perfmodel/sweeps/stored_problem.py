"""What a stored strategy was projected from: its model, hardware, framework and layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.errors import DataError
from perfmodel.base.provenance import record_of
from perfmodel.base.table import Table
from perfmodel.strategy.fields import FIELDS

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.build import ModelSpec
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid


class StoredProblem(NamedTuple):
    """What one strategy was projected from; `grid` holds that strategy alone."""

    model: ModelSpec
    grid: StrategyGrid
    hardware: Hardware
    framework: Framework


def stored_problem(table: Table, row: Mapping[str, Any]) -> StoredProblem:
    """Return what one of the results of a training sweep was projected from.

    Parameters
    ----------
    table : Table
        With its provenance.
    row : mapping
        One of its strategies, as `perfmodel.sweeps.results.rows` gives it.

    Raises
    ------
    DataError
        The table does not say what was swept, or the pipeline's schedule was read from a file.
    PerfModelError
        A record is damaged.
    """
    from perfmodel.hwprofiles import hardware_from_dict
    from perfmodel.model.record import model_from_record
    from perfmodel.software.framework import framework_of_record
    from perfmodel.strategy.enumerate import strategies_from_rows

    try:
        provenance = json.loads(table.attrs["provenance"])
        model = model_from_record(record_of(provenance, "model", row.get("model")))
        framework = framework_of_record(record_of(provenance, "framework", row.get("framework")))
        hardware = hardware_from_dict(provenance["hardware"][row["hardware"]])
        devices = int(row.get("devices", table.attrs["devices"]))
        strategy = {spec.name: row[spec.name] for spec in FIELDS}
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"the results do not say what was swept ({error}); those written as .nc do"
        ) from None
    return StoredProblem(
        model, strategies_from_rows(model, devices, [strategy]), hardware, framework
    )
