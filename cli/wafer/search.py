"""The best mapping of a model on a mesh, found and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared.printing import print_json, remark
from perfmodel.cli.wafer.output import part_rows, print_parts, print_row, table_rows
from perfmodel.wafer.variables import SCHEMA_VERSION, VARIABLES

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.search.mapping import FoundMapping

CHOSEN = ("collective", "product", "cache_layout")
"""Fields whose options narrow a search instead of naming a mapping."""
SAME = ("precision", "cache_precision", "head")


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
        _remark(str(table["phase"].values[0]), str(table["hardware"].values[0]), one)
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

    same = {name: asked[name] for name in SAME}
    narrowed = _narrowed(asked, shape)
    if "context" in asked:
        narrowed["context"] = _single(asked, "context")
    found = search_mapping(model, mesh, phase=phase, **narrowed, **same)
    return found, project_wafer(
        model, mesh, found.as_grid(), phase=phase, parts=asked["parts"], **same
    )


def search_request_and_show(
    model: ModelSpec,
    rows: Sequence[MeshHardware],
    lengths: tuple[int, int],
    asked: Mapping[str, Any],
    shape: str,
    as_json: bool,
) -> None:
    """Search the mappings of a whole request, and print it."""
    from perfmodel.cli.wafer.output import show_request
    from perfmodel.wafer.search.mapping import search_request

    if len(rows) > 1:
        raise click.UsageError("--isl and --osl take one --hardware")
    found = search_request(
        model,
        rows[0],
        input_length=lengths[0],
        output_length=lengths[1],
        **_narrowed(asked, shape),
        **{name: asked[name] for name in SAME},
    )
    show_request(found.request, as_json)
    for phase, one in (("prefill", found.prefill), ("decode", found.decode)):
        _remark(phase, rows[0].name, one)


def _remark(phase: str, mesh: str, one: FoundMapping) -> None:
    """Say what a search took."""
    how = "all timed" if one.exhaustive else f"{one.timed:,} timed, the others ruled out"
    remark(f"{phase} on {mesh}: the best of {one.mappings:,} mappings, {how}")


def _narrowed(asked: Mapping[str, Any], shape: str) -> dict[str, Any]:
    """Return what options leave to choose from, as a search takes it."""
    found: dict[str, Any] = {name: _names(asked, name) for name in CHOSEN}
    if "batch" in asked:
        found["batch"] = _single(asked, "batch")
    if "regions" in asked:
        found["most_regions"] = _single(asked, "regions")
    return {**found, "shape": shape, "grid": _sides(asked.get("grid"))}


def _names(asked: Mapping[str, Any], name: str) -> tuple[str, ...]:
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
