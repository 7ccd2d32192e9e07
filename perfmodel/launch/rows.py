"""What starts a row of results: of a sweep, or of served models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import DataError
from perfmodel.base.provenance import record_of
from perfmodel.base.table import Table
from perfmodel.base.units import format_gib, format_time
from perfmodel.base.variables import RATE
from perfmodel.launch.describe import Launch
from perfmodel.launch.served import Workers, workers_of
from perfmodel.model.presets import hub_names
from perfmodel.model.record import model_from_record
from perfmodel.serving.fields import is_closed_loop
from perfmodel.software.framework import framework_of_record
from perfmodel.strategy.fields import FIELDS


def chosen_by(pick: int, source: str, by: str, where: str | None) -> str:
    """Return how a row was chosen, for the head of what starts it."""
    return f"number {pick} of {source} by {by}" + (f" where {where}" if where else "")


def launch_of_row(
    table: Table, row: Mapping[str, Any], source: str, chosen: str
) -> tuple[Launch, list[str]]:
    """Return the run of one strategy of a sweep, and lines that say what is projected of it.

    Parameters
    ----------
    table : Table
        The sweep.
    row : mapping
        Of `perfmodel.store.results.rows`.
    source, chosen : str
        What the sweep is called, and how the row was chosen.

    Raises
    ------
    DataError
        The results do not say what was swept.
    """
    try:
        provenance = json.loads(table.attrs["provenance"])
        model = model_from_record(record_of(provenance, "model", row.get("model")))
        facts = record_of(provenance, "framework", row.get("framework"))
        framework = framework_of_record(facts)
        system = provenance["hardware"][row["hardware"]]["system"]
        devices = int(row.get("devices", table.attrs["devices"]))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"'{source}' does not say what was swept ({error}); results written as .nc do"
        ) from None
    strategy = {spec.name: row[spec.name] for spec in FIELDS}
    network = system.get("network") or [{}]
    launch = Launch(
        strategy,
        framework,
        model,
        devices,
        filled_nodes(devices, int(system.get("devices_per_node", 0))),
        filled_nodes(devices, int(network[0].get("size", 0))),
    )
    return launch, [
        f"{model.name} on {devices:,} devices of {row['hardware']}: {chosen}",
        f"projected as {framework.name}: {format_time(row['step_time'])} a step, "
        f"{row[RATE]:,.0f} tokens/s and device, "
        f"{100 * row['model_flops_utilization']:.1f} % model FLOPs utilization, "
        f"{format_gib(row['memory_total'])} a device",
    ]


def filled_nodes(devices: int, each: int) -> int:
    """Return the devices of a node: those of the profile where the run fills nodes."""
    return each if each and devices % each == 0 else devices


def pools_of_row(
    row: Mapping[str, Any], attributes: Mapping[str, Any], source: str
) -> list[Workers]:
    """Return the pools of one row of served results.

    Raises
    ------
    DataError
        The results do not say of which model they are.
    """
    try:
        name = str(json.loads(attributes["provenance"])["model"]["name"])
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"'{source}' does not say what was served ({error})") from None
    hub = next((hub for hub, preset in hub_names().items() if preset == name), name)
    return workers_of(row, hub)


def served_lines(row: Mapping[str, Any], model: str, chosen: str) -> list[str]:
    """Return lines that say which operating point was chosen, and what is projected of it."""
    load = (
        f"{row['concurrency']:g} requests under way"
        if is_closed_loop(row)
        else f"{row['arrival_rate']:g} requests/s"
    )
    return [
        f"{model} on {row['devices']:,} devices of {row['hardware']}: {chosen}",
        f"projected for {row['input_length']:,} + {row['output_length']:,} tokens, {load}: "
        f"{row['tokens_per_second_per_device']:,.0f} tokens/s and device, first token after "
        f"{format_time(row['time_to_first_token_mean'])}, "
        f"{format_time(row['time_per_output_token_mean'])} a token",
    ]
