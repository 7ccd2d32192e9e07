"""What a page is made of: files of results, or results that a program holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.files import user_path
from perfmodel.base.table import Table, from_xarray
from perfmodel.report.population import Population
from perfmodel.report.provenance import Facts, file_facts, table_provenance
from perfmodel.report.results import population_of
from perfmodel.report.runs import comparison_of, is_comparison, simulation_of
from perfmodel.store import results

if TYPE_CHECKING:
    import xarray as xr


@dataclass
class Source:
    """One file of results, or a table that a program holds.

    Attributes
    ----------
    name : str
    population : Population
    table : Table or None
        What pictures are made from.
    provenance : dict
    """

    name: str
    population: Population
    table: Table | None
    provenance: dict[str, Any]


def opened(
    source: str | Path | Table | xr.Dataset,
    name: str | None,
    where: str | None,
    costs: Mapping[str, Any],
) -> Source:
    """Return one source, read and filtered; takes what `perfmodel.report.document` takes."""
    facts: Facts = []
    if isinstance(source, str | Path):
        path = user_path(source)
        name = name or path.name
        if is_comparison(path):
            facts = file_facts(path)
            about = {"name": name, "facts": facts, "hardware": [], "more_hardware": 0}
            return Source(name, comparison_of(path, where), None, about)
        table = _read(path)
        facts = file_facts(path)
    else:
        table = source if isinstance(source, Table) else from_xarray(source)
        name = name or str(table.attrs.get("title", "results"))
    if {"rank", "layer", "row"} & set(table.sizes):
        population = simulation_of(table, where)
    else:
        table = _with_costs(table, costs)
        population = population_of(table, where)
    return Source(name, population, table, table_provenance(name, table, facts))


def _read(path: Path) -> Table:
    """Return the table of a file: results, or a simulation."""
    from perfmodel.store.netcdf import read_netcdf

    if path.suffix.lower() == ".csv" and path.is_file():
        raise DataError(
            f"'{path}' is not a table of compared runs; 'perfmodel compare KIND RUNS.csv --output "
            "FILE.csv' writes one, and sweeps are read as .nc or .zarr"
        )
    if path.is_file():
        table = read_netcdf(path)
        if {"rank", "layer", "row"} & set(table.sizes) and "schema_version" in table.attrs:
            return table
    return results.open_table(path)


def _with_costs(table: Table, costs: Mapping[str, Any]) -> Table:
    """Return results with their costs, where they say what hardware they are for."""
    from perfmodel.store.cost import add_cost
    from perfmodel.store.subject import subject_of
    from perfmodel.wafer.result_subject import SUBJECT as WAFER

    if subject_of(table) is WAFER or ("cost" in table.attrs and not costs):
        return table
    try:
        return add_cost(table, **costs)
    except DataError:
        if costs:
            raise
        return table  # nobody asked, and the results do not say


def distinct(names: Sequence[str]) -> list[str]:
    """Return names with a number behind those that stand there twice."""
    found: list[str] = []
    for name in names:
        tries = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
        found.append(next(it for it in tries if it not in found))
    return found
