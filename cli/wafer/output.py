"""Models on meshes of cores on a terminal and as JSON: mappings given, or the best one found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from perfmodel.base.units import format_size, format_time
from perfmodel.cli.shared.printing import heading, percent, print_json, remark, share, table
from perfmodel.kernels.wafer.columns import BEYOND_SRAM, CACHE_BEYOND_SRAM
from perfmodel.wafer.result_subject import (
    FIELD_BY_NAME,
    MAPPING_FIELDS,
    PART_VARIABLES,
    SCHEMA_VERSION,
    TIME_COMPONENTS,
    VARIABLES,
)
from perfmodel.wafer.result_subject import SUBJECT as WAFER

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.hwprofiles.mesh import MeshHardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.wafer.project import WaferRequest
    from perfmodel.wafer.search import FoundMapping

WORDS = {
    "compute_time": "multiply-adds",
    "sram_time": "memory of the cores",
    "issue_time": "issue",
    "network_time": "network, exposed",
    "transfer_time": "between regions",
    "chip_time": "between chips",
    "memory_time": "memory beside the cores",
    "host_time": "host",
}
REASONS = {
    "grid_beyond_mesh": "key 'grid': {grid} cores exceed the mesh of {hardware}",
    "regions_beyond_mesh": "key 'regions': {regions} regions of {grid} cores exceed {hardware}, or "
    "the layers of the model",
    "cache_beyond_memory": "key 'context': {context} tokens exceed the {longest} that {hardware} "
    "keeps beside the weights{where}",
    "weights_beyond_memory": "key 'hardware': the model exceeds the memory of {hardware}{where}; "
    "{meshes} hold it",
}
NEAREST = (CACHE_BEYOND_SRAM, BEYOND_SRAM)


Place = tuple[int, ...]
"""Mapping, mesh and phase."""


def ranked_places(found: Table, top: int) -> list[Place]:
    """Return the fastest mappings, those that fit first and impossible ones last."""
    fits, rate = found["fits"].values, found["tokens_per_second"].values
    order = np.lexsort((np.nan_to_num(-rate.ravel(), nan=np.inf), ~fits.ravel()))[:top]
    places = np.stack(np.unravel_index(order, fits.shape), axis=1)
    return [tuple(place) for place in places.tolist()]


def table_rows(found: Table, places: Sequence[Place] | None = None) -> list[dict[str, Any]]:
    """Return mappings as rows of plain values, in SI units; without places all of them."""
    wide = found["fits"].values.shape
    if places is None:
        places = list(np.ndindex(*wide))
    at = np.array(places, np.int64).reshape(-1, len(wide))
    named: dict[str, Any] = {
        "hardware": found["hardware"].values[at[:, 1]],
        "phase": found["phase"].values[at[:, 2]],
    }
    for spec in MAPPING_FIELDS:
        column = found[spec.name]
        named[spec.name] = column.decoded(column.values[at[:, 0]])
    for name, column in found.data_vars.items():
        if "part" not in column.dims:
            named[name] = column.decoded(column.values[tuple(at.T)])
    values = [column.tolist() for column in named.values()]
    return [dict(zip(named, row, strict=True)) for row in zip(*values, strict=True)]


def part_rows(found: Table) -> list[dict[str, Any]]:
    """Return the parts of the first mapping as rows, in SI units."""
    names = [item.name for item in PART_VARIABLES]
    return [
        {
            "layer": str(found["layer"].values[at]),
            "layers": int(found["layers"].values[at]),
            "part": str(name),
            **{item: float(found[item].values[0, 0, at]) for item in names},
        }
        for at, name in enumerate(found["part"].values)
    ]


def show_table(found: Table, top: int | None, as_json: bool) -> None:
    """Print one mapping in full, or the fastest of several; all of them without `top`."""
    count = found["fits"].values.size
    rows = table_rows(found, None if top is None else ranked_places(found, top))
    parts = part_rows(found) if "part" in found.coords else []
    if as_json:
        document = _head(found.attrs["model"], rows[0]) | {"mappings": rows}
        print_json(document | ({"parts": parts} if parts else {}))
        return
    if count == 1:
        print_row(found.attrs["model"], rows[0])
    else:
        print_rows(found.attrs["model"], rows, count)
    if parts:
        click.echo()
        print_parts(parts)


def _grid(row: Mapping[str, Any]) -> str:
    return f"{row['grid_rows']} × {row['grid_columns']}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "any number of"


def print_row(model: str, row: Mapping[str, Any]) -> None:
    """Print one mapping."""
    prefill = row["phase"] == "prefill"
    streamed = row["sram_used"] == 0.0
    where = "all cores" if streamed else f"regions of {_grid(row)} cores"
    click.echo(heading(f"{model} on {row['hardware']}, {where}"))
    what = "prompts" if prefill else "a token"
    many = f", {row['batch']:,} sequences" if row["batch"] > 1 else ""
    click.echo(f"{row['phase']}: {what}, context of {row['context']:,} tokens{many}")
    click.echo()
    if not math.isfinite(row["latency"]):
        click.echo(f"not possible: {row['status']}")
        return
    click.echo(f"time                {format_time(row['latency'])}")
    click.echo(f"tokens/s of a user  {row['tokens_per_second']:,.1f}")
    if row["region_count"] > 1 or row["batch"] > 1:
        click.echo(f"tokens/s of all     {row['mesh_tokens_per_second']:,.1f}, every region busy")
    click.echo(f"time of a layer     {format_time(row['layer_time'])}")
    click.echo(f"utilization         {percent(row['utilization'])} of the region's peak")
    if not streamed:
        click.echo(f"busiest link        busy {percent(row['link_utilization'])} of the time")
    click.echo(f"bottleneck          {row['bottleneck']}")
    click.echo()
    lines = [
        [WORDS[name], format_time(row[name]), share(row[name], row["latency"])]
        for name in TIME_COMPONENTS
        if row[name] > 0.0
    ]
    click.echo(table(["where the time goes", "", ""], lines))
    click.echo()
    if streamed:
        lines = [
            ["weights of a chip", format_size(row["weight_bytes"])],
            ["cache of a chip", format_size(row["cache_bytes"])],
        ]
    else:
        lines = [
            ["weights", format_size(row["weight_bytes"])],
            ["keys and values", format_size(row["cache_bytes"])],
            ["activations", format_size(row["activation_bytes"])],
            ["together", format_size(row["sram_used"])],
        ]
    click.echo(table(["memory of the fullest core" if not streamed else "memory", ""], lines))
    click.echo()
    if not streamed:
        click.echo(
            f"{_count(row['region_count'])} regions, up to {_count(row['layers_per_region'])} "
            "layers in each"
        )
        click.echo(
            f"longest context: {_count(row['cache_tokens_shifted'])} tokens with the cache over "
            f"all rows, {_count(row['cache_tokens_row'])} on one row"
        )
    else:
        click.echo(f"longest context: {_count(row['cache_tokens_shifted'])} tokens")


def print_rows(model: str, rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """Print the fastest of so many mappings."""
    shown = "" if count == len(rows) else f", {len(rows):,} shown"
    click.echo(heading(f"{model}: {count:,} mappings, those that fit and the fastest first{shown}"))
    show_rows(rows)


def variable_title(name: str) -> str:
    """Return what a variable is in words, and its name."""
    name = WAFER.aliases.get(name, name)
    return f"{VARIABLES[name].long_name} ({name})" if name in VARIABLES else name


def mappings_header(found: Table) -> dict[str, Any]:
    """Return what every JSON document about mappings begins with."""
    return _head(found.attrs.get("model"), found)


def _head(model: str | None, names: Container[str]) -> dict[str, Any]:
    units = {name: item.units for name, item in VARIABLES.items() if name in names}
    return {"schema_version": SCHEMA_VERSION, "model": model, "units": units}


def show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print mappings, one line each, with the fields in which they differ."""
    varied = [
        name
        for name in ("hardware", "phase", *(spec.name for spec in MAPPING_FIELDS[2:]))
        if len({row[name] for row in rows}) > 1
    ]
    headers = ["grid", *varied, "time", "tokens/s", "network", "bottleneck", "memory", "status"]
    lines = []
    for row in rows:
        chosen = [row[name] for name in varied]
        found = ["–"] * 5
        if math.isfinite(row["latency"]):
            found = [
                format_time(row["latency"]),
                f"{row['tokens_per_second']:,.1f}",
                percent((row["network_time"] + row["chip_time"]) / row["latency"]),
                row["bottleneck"],
                format_size(row["sram_used"] or row["weight_bytes"] + row["cache_bytes"]),
            ]
        lines.append(
            [
                "–" if row["sram_used"] == 0.0 else _grid(row),
                *(f"{value:,}" if isinstance(value, int) else str(value) for value in chosen),
                *found,
                row["status"].replace("_", " "),
            ]
        )
    click.echo(table(headers, lines, left=(0, len(headers) - 1, len(headers) - 3)))
    common = [str(rows[0][name]) for name in ("hardware", "phase") if name not in varied]
    common += [f"{name} {rows[0][name]:,}" for name in ("context", "batch") if name not in varied]
    if common:
        click.echo(f"all: {', '.join(common)}")


def print_parts(parts: Sequence[Mapping[str, Any]]) -> None:
    """Print where the time of a layer goes."""
    lines = [
        [
            row["layer"],
            row["part"],
            f"{row['layers']:,}",
            format_time(row["part_time"]),
            format_time(row["part_compute_time"] + row["part_sram_time"]),
            format_time(row["part_issue_time"]),
            format_time(row["part_network_time"]),
        ]
        for row in parts
    ]
    headers = ["layer", "part", "layers", "time", "compute", "issue", "network"]
    click.echo(table(headers, lines, left=(0, 1)))


def show_request(found: WaferRequest, as_json: bool) -> None:
    """Print a whole request."""
    prefill, decode = table_rows(found.prefill)[0], table_rows(found.decode)[0]
    times = {
        "time_to_first_token": found.time_to_first_token,
        "time_per_output_token": found.time_per_output_token,
        "request_time": found.request_time,
        "tokens_per_second": found.tokens_per_second,
    }
    model = found.prefill.attrs["model"]
    if as_json:
        head = _head(model, prefill)
        units = dict.fromkeys(times, "s") | {"tokens_per_second": "1/s"} | head["units"]
        rows = {"fits": found.fits, "prefill": prefill, "last_token": decode}
        print_json(head | {"units": units} | times | rows)
        return
    click.echo(heading(f"{model} on {prefill['hardware']}: a request end to end"))
    click.echo(
        f"prompt of {prefill['context']:,} tokens on {_grid(prefill)} cores, answer of "
        f"{decode['context'] - prefill['context']:,} on {_grid(decode)}"
    )
    click.echo()
    click.echo(f"time to first token     {format_time(found.time_to_first_token)}")
    click.echo(f"time per output token   {format_time(found.time_per_output_token)}, mean")
    click.echo(f"whole request           {format_time(found.request_time)}")
    click.echo(f"output tokens/s         {found.tokens_per_second:,.1f}")


def misfit(tables: Sequence[Table]) -> str:
    """Say in one line why nothing fits: of a mapping that comes nearest."""
    nearest: list[dict[str, Any]] = []
    for found in tables:
        codes = found["status"].values
        wrong = [code for code in (*NEAREST, *range(1, codes.max() + 1)) if (codes == code).any()]
        if wrong:
            nearest += table_rows(found, [tuple(np.argwhere(codes == wrong[0])[0].tolist())])
    row = nearest[0]
    needed = row["meshes_needed"]
    kept = row["cache_tokens_row" if row["cache_layout"] == "row" else "cache_tokens_shifted"]
    return REASONS[row["status"]].format(
        grid=_grid(row),
        hardware=row["hardware"],
        regions=row["regions"],
        context=f"{row['context']:,}",
        longest=_count(kept),
        where="" if row["sram_used"] == 0.0 else f" in regions of {_grid(row)} cores",
        meshes=f"{needed:,.0f} of it" if math.isfinite(needed) else "only larger regions",
    )


# The best mapping, found and shown (``--map search``).

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
        Of one mapping each, as `perfmodel.wafer.project.wafer_table` makes them.
    """
    phases = asked["phase"]
    names = [phases] if isinstance(phases, str) else list(dict.fromkeys(phases))
    found = [_search(model, mesh, phase, asked, shape) for mesh in rows for phase in names]
    if as_json:
        document = _head(model.name, found[0][1].data_vars)
        document["mappings"] = [table_rows(table)[0] for _, table in found]
        document["searches"] = [dataclasses.asdict(one) for one, _ in found]
        if asked["parts"]:
            document["parts"] = [part_rows(table) for _, table in found]
        print_json(document)
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
    from perfmodel.wafer.project import wafer_table
    from perfmodel.wafer.search import search_mapping

    same = {name: asked[name] for name in SAME}
    narrowed = _narrowed(asked, shape)
    if "context" in asked:
        narrowed["context"] = _single(asked, "context")
    found = search_mapping(model, mesh, phase=phase, **narrowed, **same)
    return found, wafer_table(
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
    from perfmodel.wafer.search import search_request

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


class Mappings:
    """How mappings of a model on meshes of cores are called and shown."""

    one, rows, pairs = "mapping", "mappings", "mappings"

    def __init__(self) -> None:
        self.title, self.header, self.show = variable_title, mappings_header, show_rows
