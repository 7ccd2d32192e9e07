"""What a page is made of: files of results, or results that a program holds; what they rest on."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.analysis.model_facts import recorded_facts
from perfmodel.analysis.recalled import recorded_trust
from perfmodel.base.errors import DataError
from perfmodel.base.files import user_path
from perfmodel.base.provenance import LEVELS
from perfmodel.base.table import Table, from_xarray
from perfmodel.base.units import format_gib, format_si
from perfmodel.report.kinds import WAFERS
from perfmodel.report.population import Population
from perfmodel.report.rows import comparison_of, is_comparison, population_of, simulation_of
from perfmodel.store import results
from perfmodel.store.damage import reading
from perfmodel.store.results import TRUST, trust_by_hardware

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
        with table.opened():
            table = _with_costs(table, costs)
            population = population_of(table, where)
    with reading(name):
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

    if subject_of(table).verb == WAFERS or ("cost" in table.attrs and not costs):
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


MOST_HARDWARE = 12
"""Whose constants are listed."""
LONGEST_SOURCE = 160
SHOWN = (
    *("title", "source", "schema_version", "model", "framework", "devices", "method"),
    *("workload", "on", "scaling", "precision", "head"),
)

Facts = list[list[str]]


def file_facts(path: Path) -> Facts:
    """Return size and digest of a file that was read."""
    files = sorted(it for it in path.rglob("*") if it.is_file()) if path.is_dir() else [path]
    digest, size = hashlib.sha256(), 0
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(2**20):
                digest.update(block)
                size += len(block)
    return [["size", f"{size:,} B"], ["SHA-256", digest.hexdigest()]]


def table_provenance(name: str, table: Table, facts: Facts) -> dict[str, Any]:
    """Return what one file of results says of itself.

    Returns
    -------
    dict
        ``name``; ``facts``, pairs of texts; ``hardware``, one mapping per profile with ``name``,
        ``facts``, ``trust`` (kernel class, level, band) and ``constants``.
    """
    attrs = table.attrs
    facts = facts + [
        [key.replace("_", " "), _text(attrs[key])] for key in SHOWN if attrs.get(key) is not None
    ]
    levels = trust_by_hardware(table) if TRUST in table else {}
    stated, hardware, more = _stated(str(attrs.get("provenance", "{}")), json.dumps(levels))
    facts += stated
    if attrs.get("cost"):
        facts.append(["cost assumes", _text(attrs["cost"])])
    return {"name": name, "facts": facts, "hardware": hardware, "more_hardware": more}


@functools.lru_cache(maxsize=16)
def _stated(text: str, trust: str) -> tuple[Facts, list[dict[str, Any]], int]:
    """Return facts of versions and model, profiles, and how many more of these there are.

    Sweeps of one model and machine after another (`perfmodel.cli.report.server`) state the same.
    """
    levels = json.loads(trust)
    try:
        found = json.loads(text)
    except (RecursionError, ValueError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    facts = [[f"{key} (version)", str(it)] for key, it in _mapping(found.get("versions")).items()]
    facts += recorded_facts(_mapping(found.get("model")))
    profiles = _mapping(found.get("hardware"))
    listed = [
        _hardware(str(row), _mapping(profile), levels.get(str(row), {}))
        for row, profile in list(profiles.items())[:MOST_HARDWARE]
    ]
    return facts, listed, len(profiles) - len(listed)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray | list | tuple):
        return ", ".join(map(str, np.asarray(value).tolist()))
    return str(value)


def _hardware(row: str, profile: Mapping[str, Any], levels: Mapping[str, str]) -> dict[str, Any]:
    """Return facts, trust and constants of one profile, as far as it states them."""
    facts: Facts = [["profile", str(profile.get("title", profile.get("name", row)))]]
    device, system = _mapping(profile.get("device")), _mapping(profile.get("system"))
    peaks, memory = _mapping(device.get("peak_flops")), _mapping(device.get("memory"))
    facts += [
        [f"peak {name}", format_si(peaks[name], "FLOP/s", 4)]
        for name in ("bf16", "fp8", "fp4")
        if peaks.get(name)
    ]
    if memory.get("capacity"):
        facts.append(["memory", format_gib(memory["capacity"])])
        facts.append(["memory bandwidth", format_si(memory["bandwidth"], "B/s", 4)])
    for level in system.get("network") or ():
        size = f", groups of {level['size']}" if level.get("size") else ""
        rate = format_si(level["bandwidth"], "B/s", 4)
        delay = f"{1e6 * level['latency']:.3g} µs"
        facts.append([f"network {level['name']}", f"{level['topology']}{size}, {rate}, {delay}"])
    for key, value in _mapping(profile.get("overrides")).items():
        facts.append([f"set {key}", str(value)])
    return {
        "name": row,
        "facts": facts,
        "trust": recorded_trust(profile, levels),
        "levels": list(LEVELS),
        "constants": _constants(_mapping(profile.get("calibration"))),
    }


def _constants(calibration: Mapping[str, Any]) -> list[list[str]]:
    """Return name, value, trust and source of every constant."""
    found = []
    for group, entries in calibration.items():
        for key, entry in _mapping(entries).items():
            said = _mapping(entry)
            if "value" not in said:
                continue
            source = str(said.get("source", ""))
            short = source if len(source) <= LONGEST_SOURCE else f"{source[:LONGEST_SOURCE]}…"
            value = f"{said['value']:.5g} {said.get('unit', '')}".strip()
            found.append([f"{group}.{key}", value, str(said.get("trust", "")), short])
    return found
