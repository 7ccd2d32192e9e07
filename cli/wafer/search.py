"""The best mapping of a model on a mesh, found and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.wafer_variables import SCHEMA_VERSION, VARIABLES
from perfmodel.cli.shared.printing import print_json, remark
from perfmodel.cli.wafer.output import part_rows, print_parts, print_row, table_rows

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.search.mapping import FoundMapping

CHOSEN = ("collective", "product", "cache_layout")
"""Fields whose options narrow a search instead of naming a mapping."""


def search_and_show(
    model: ModelSpec,
    rows: Sequence[MeshHardware],
    asked: Mapping[str, Any],
    shape: str,
    as_json: bool,
) -> list[Table]:
    """Search a mapping on every mesh and in every phase, and print each.

    Returns
    -------
    list of Table
        Of one mapping each, as `perfmodel.wafer.project.project_wafer` makes them.
    """
    phases = asked["phase"]
    names = [phases] if isinstance(phases, str) else list(dict.fromkeys(phases))
    found = [_search(model, mesh, phase, asked, shape) for mesh in rows for phase in names]
    if as_json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "model": model.name,
                "units": {
                    name: item.units
                    for name, item in VARIABLES.items()
                    if name in found[0][1].data_vars
                },
                "mappings": [table_rows(table)[0] for _, table in found],
                "searches": [dataclasses.asdict(one) for one, _ in found],
                **({"parts": [part_rows(table) for _, table in found]} if asked["parts"] else {}),
            }
        )
    else:
        for place, (one, table) in enumerate(found):
            if place:
                click.echo()
            _print_found(model, one, table, phase=names[place % len(names)])
    for one, table in found:
        how = "all timed" if one.exhaustive else f"{one.timed:,} timed, the others ruled out"
        mesh, phase = table["hardware"].values[0], table["phase"].values[0]
        remark(f"{phase} on {mesh}: the best of {one.mappings:,} mappings, {how}")
    return [table for _, table in found]


def _print_found(model: ModelSpec, one: FoundMapping, table: Table, phase: str) -> None:
    print_row(model.name, table_rows(table)[0])
    click.echo()
    rows, columns = one.grid
    product = f", products by {one.product}" if phase == "prefill" else ""
    click.echo(
        f"found: {rows} × {columns} cores, {one.regions:,} regions, sums by {one.collective}"
        f"{product}, cache {'on one row' if one.cache_layout == 'row' else 'over all rows'}"
    )
    if "part" in table.coords:
        click.echo()
        print_parts(part_rows(table))


def _search(
    model: ModelSpec, mesh: MeshHardware, phase: str, asked: Mapping[str, Any], shape: str
) -> tuple[FoundMapping, Table]:
    from perfmodel.wafer.project import project_wafer
    from perfmodel.wafer.search.mapping import search_mapping

    same = {name: asked[name] for name in ("precision", "cache_precision", "head")}
    narrowed: dict[str, Any] = {name: _narrowed(asked, name) for name in CHOSEN}
    narrowed |= {name: _single(asked, name) for name in ("context", "batch") if name in asked}
    narrowed["most_regions"] = _single(asked, "regions") if "regions" in asked else None
    found = search_mapping(
        model, mesh, phase=phase, shape=shape, grid=_sides(asked.get("grid")), **narrowed, **same
    )
    return found, project_wafer(
        model, mesh, found.as_grid(), phase=phase, parts=asked["parts"], **same
    )


def _narrowed(asked: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return names to choose from, none for all: a search leaves out what nobody would choose."""
    from perfmodel.wafer.fields import FIELD_BY_NAME

    given = tuple(asked.get(name, ()))
    return () if set(given) == set(FIELD_BY_NAME[name].choices) else given


def _single(asked: Mapping[str, Any], name: str) -> int:
    (value, *more) = asked[name]
    if more:
        raise click.UsageError(f"--{name}: a search takes one value")
    return int(value)


def _sides(grids: Any) -> list[int] | None:
    """Return the sides of the grids that a search may take."""
    from perfmodel.wafer.mappings import parse_grid

    if grids is None:
        return None
    sides = []
    for grid in grids:
        rows, columns = parse_grid(grid)
        if rows != columns:
            raise click.UsageError(
                f"--grid: '{grid}': a search takes sides, such as 360; --shape rectangle tries "
                "all pairs of them"
            )
        sides.append(rows)
    return sides
