"""How rows of results and the stages of a pipeline look on a terminal; the head of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from perfmodel.base.strategy_fields import FIELDS, OFFLOAD, OFFLOAD_TO
from perfmodel.cli.shared.printing import heading, percent, say, share, strategy_label, table
from perfmodel.kernels.variables import (
    COSTS,
    MEMORY_COMPONENTS,
    RATE,
    SCHEMA_VERSION,
    TIME_COMPONENTS,
    VARIABLES,
    Variable,
    memory_verdict,
)

MARKS = {"fits": "", "tight": " ~", "does not fit": " (no)"}
"""Verdict on memory -> mark behind it."""

if TYPE_CHECKING:
    from perfmodel.base.table import Table
    from perfmodel.strategy.mapping import GroupPlacement


def print_pipeline(stages: Sequence[Any], makespan: float, row: Mapping[str, Any]) -> None:
    """Print what each stage does in a step; stages that do the same share a line."""
    from perfmodel.base.pipelines import SCHEDULE_FACTS
    from perfmodel.base.units import format_gib, format_time

    name = str(row["pipeline_schedule"])
    click.echo(heading(f"Stages of the pipeline: {name}, {SCHEDULE_FACTS[name].title}"))
    say(f"from the first pass to the last {format_time(makespan)}; times of a whole step")
    headers = ["stage", "layers", "forward", "backward", "works", "sends", "waits", "", "in flight"]
    headers += ["keeps"]
    cells = [
        [
            " + ".join(map(str, it.layers)) if len(it.layers) <= 4 else f"{sum(it.layers)}",
            *map(format_time, (it.forward, it.backward, it.busy, it.sending, it.waiting)),
            share(it.waiting, makespan),
            f"{it.in_flight:.3g}",
            format_gib(it.kept),
        ]
        for it in stages
    ]
    lines, first = [], 0
    for line, alike in groupby(cells):
        last = first + len(list(alike)) - 1
        lines.append([f"{first}" if first == last else f"{first}–{last}", *line])
        first = last + 1
    click.echo(table(headers, lines, left=(0, 1)))
    say("forward and backward of one micro-batch; in flight: micro-batches kept at most")


class Shown(NamedTuple):
    """A column of printed results: its heading, what stands in a row, and its side."""

    heading: str
    cell: Callable[[Mapping[str, Any]], str]
    left: bool = False


def shown_as_is(name: str, title: str = "", left: bool = False) -> Shown:
    """Return the column of a field as it is written."""
    return Shown(title or name, lambda row: as_written(row[name]), left)


def as_written(value: Any, of_float: Callable[[float], str] = str) -> str:
    """Return a value as a cell: yes or no, numbers with commas, words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return of_float(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Shown],
    common: Sequence[str] = (),
    *,
    spare: Sequence[str] = (),
) -> None:
    """Print results, one numbered line each, and what all of them have in common.

    A narrow terminal does without the columns whose headings are `spare`, the first one first.
    """
    headers = ["#", *(column.heading for column in columns)]
    lines = [
        [str(number), *(column.cell(row) for column in columns)]
        for number, row in enumerate(rows, 1)
    ]
    left = [at for at, column in enumerate(columns, 1) if column.left]
    dropped = [headers.index(name) for name in spare if name in headers]
    click.echo(table(headers, lines, left=left, spare=dropped))
    if common:
        say(f"all: {' · '.join(common)}", 5)


def print_parts(
    title: str,
    row: Mapping[str, Any],
    parts: Mapping[str, str],
    form: Callable[[float], str],
    whole: tuple[str, float],
    *,
    empty: bool = False,
) -> None:
    """Print the parts of a whole with their shares, and the whole; `empty` ones only if asked."""
    lines = [
        [text, form(row[name]), share(row[name], whole[1])]
        for name, text in parts.items()
        if row[name] or empty
    ]
    lines.append([whole[0], form(whole[1]), percent(1.0)])
    click.echo(table([title, "", "share"], lines))


# What tells problems apart, in the order of columns.
APART = ("model", "framework", "devices", "hardware")
ALWAYS_SHOWN = (
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "micro_batch_size",
)


def header(
    table: Table, schema: str, names: Sequence[str], variables: Mapping[str, Variable]
) -> dict[str, Any]:
    """Return what a JSON document about results begins with: version, attributes, units."""
    units = {name: variable.units for name, variable in variables.items() if name in table}
    return {
        "schema_version": schema,
        **{name: table.attrs.get(name) for name in names},
        "units": units,
    }


def results_header(table: Table) -> dict[str, Any]:
    """Return what every JSON document about a sweep begins with."""
    names = ("model", "framework", "devices", "mtp_layers")
    return header(table, SCHEMA_VERSION, names, {**VARIABLES, **COSTS})


def variable_title(name: str) -> str:
    """Return what a variable is in words, and its name."""
    found = {**VARIABLES, **COSTS}.get(name)
    return f"{found.long_name} ({name})" if found else name


def print_strategies(rows: Sequence[Mapping[str, Any]], *, shares: bool = True) -> None:
    """Print strategies with their results and, unless told otherwise, shares of their time."""
    fields, apart = _shown_fields(rows), _apart(rows)
    columns = [shown_as_is(name, left=name != "devices") for name in apart]
    columns += [shown_as_is(spec.name, spec.option) for spec in fields]
    common = [named(name, rows[0][name]) for name in APART if name not in apart and name in rows[0]]
    common += _common_fields(rows, {spec.name for spec in fields})
    print_rows(rows, [*columns, *_results(rows)], common)
    if any(memory_verdict(row) == "tight" for row in rows):
        say("~ tight: less room than the measured error of memory (--safe: does not fit)", 5)
    if not shares:
        return
    click.echo()
    parts = [name for name in TIME_COMPONENTS if any(row[name] > 0 for row in rows)]
    click.echo("Share of the step (communication: what compute does not hide)")
    print_rows(rows, [Shown(VARIABLES[name].short, _share_of_step(name)) for name in parts])


def _share_of_step(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: share(row[name], row["step_time"])


def _results(rows: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """Return the columns of what strategies come to."""
    from perfmodel.base.units import GIB, format_time

    banded = any(step_range(row) for row in rows)
    decimals = decimals_for([row[RATE] for row in rows])
    return [
        Shown(
            "step (10–90 %)" if banded else "step",
            lambda row: format_time(row["step_time"]) + step_range(row, " ({})", unit=False),
        ),
        Shown("tok/s/device", lambda row: f"{row[RATE]:,.{decimals}f}"),
        Shown("MFU", lambda row: percent(row["model_flops_utilization"])),
        Shown(
            "memory GiB",
            lambda row: f"{row['memory_total'] / GIB:.1f}{MARKS[memory_verdict(row)]}",
        ),
    ]


def _apart(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what tells problems apart among rows."""
    return [name for name in APART if len({row.get(name) for row in rows}) > 1]


def named(name: str, value: Any) -> str:
    """Return what tells problems apart in words."""
    return f"{value:,} devices" if name == "devices" else str(value)


def print_scaling(rows: Sequence[Mapping[str, Any]], kind: str) -> None:
    """Print the best strategy on every number of devices, and how efficient it is."""
    from perfmodel.base.units import format_time

    apart = [name for name in _apart(rows) if name != "devices"]
    headers = [*apart, "devices", "global-batch", "step", "tok/s", "tok/s/device", "efficiency"]
    lines = [
        [
            *(as_written(row[name]) for name in apart),
            f"{row['devices']:,}",
            f"{row['global_batch_size']:,}",
            format_time(row["step_time"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{row['tokens_per_second_per_device']:,.0f}",
            f"{100 * row['scaling_efficiency']:.1f} %",
            strategy_label(dict(row)),
        ]
        for row in rows
    ]
    grows = "the batch grows with the devices" if kind == "weak" else "the batch stays"
    click.echo(heading(f"{kind.capitalize()} scaling: {grows}, the best strategy of each"))
    left = (*range(len(apart)), len(headers))
    click.echo(table([*headers, "strategy"], lines, left=left))


def print_time(row: Mapping[str, Any]) -> None:
    """Print the components of the step of one strategy."""
    from perfmodel.base.units import format_time

    step = row["step_time"]
    lines = []
    for name in TIME_COMPONENTS:
        total = row.get(name.replace("_exposed", "_total"), 0.0) if "exposed" in name else 0.0
        if not row[name] and not total:
            continue
        note = f"of {format_time(total)}, the rest hidden" if total > 1.0001 * row[name] else ""
        text = VARIABLES[name].long_name
        lines.append([text, format_time(row[name]), share(row[name], step), note])
    band = step_range(row, "10–90 %: {}")
    lines.append([VARIABLES["step_time"].long_name, format_time(step), "100.0 %", band])
    click.echo(table(["time", "", "share", ""], lines, left=(0, 3)))


def step_range(row: Mapping[str, Any], text: str = "{}", *, unit: bool = True) -> str:
    """Return the band of the step time within a text; empty where a result has none."""
    from perfmodel.base.units import format_range

    low, high = (row.get(name, float("nan")) for name in ("step_time_low", "step_time_high"))
    found = format_range(low, high, row["step_time"], unit=unit)
    return text.format(found) if found else ""


def print_memory(row: Mapping[str, Any]) -> None:
    """Print the components of the memory of one strategy, and whether it fits."""
    from perfmodel.base.units import format_gib

    whole = row["memory_total"]
    parts = {name: VARIABLES[name].long_name for name in MEMORY_COMPONENTS}
    total = VARIABLES["memory_total"].long_name, whole
    print_parts("memory per device", row, parts, format_gib, total, empty=True)
    verdict = "fits in" if whole <= row["memory_capacity"] else "does NOT fit in"
    click.echo(f"{verdict} {format_gib(row['memory_capacity'])} of device memory{tightly(row)}")
    for name, where in (("memory_host", "in the host's memory"), ("memory_nvme", "on NVMe")):
        if row.get(name):
            click.echo(f"{format_gib(row[name])} per device wait {where}")


def tightly(row: Mapping[str, Any]) -> str:
    """Return what to say behind memory that is tight; nothing behind any other."""
    from perfmodel.base.units import format_gib

    if memory_verdict(row) != "tight":
        return ""
    return f", but tightly: one run in ten needs more than {format_gib(row['memory_high'])}"


def print_placement(groups: Sequence[GroupPlacement], levels: Sequence[str]) -> None:
    """Print where the groups of every axis lie; nothing for a single device."""
    if not groups:
        return
    lines = [
        [
            group.axis,
            f"{group.members:,}",
            f"{group.stride:,}"
            + (
                f", {group.blocks:,} blocks {group.block_stride:,} apart"
                if group.blocks > 1
                else ""
            ),
            *(f"{count:,}" for count in group.inside),
            group.level_name,
        ]
        for group in groups
    ]
    headers = ["groups", "members", "apart", *(f"inside {name}" for name in levels), "cross"]
    click.echo()
    click.echo(table(headers, lines, left=(0, len(headers) - 1)))


def decimals_for(values: Sequence[float]) -> int:
    """Return with how many decimals, at most 2, values that differ look different."""
    wanted = len(set(values))
    return next((n for n in (0, 1) if len({f"{value:.{n}f}" for value in values}) == wanted), 2)


def _shown_fields(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [
        spec
        for spec in FIELDS
        if spec.name in ALWAYS_SHOWN or len({row[spec.name] for row in rows}) > 1
    ]


def _common_fields(rows: Sequence[Mapping[str, Any]], shown: set[str]) -> list[str]:
    """Return the fields that all rows share, where they say something."""
    silent: dict[str, Any] = {"shard_group": 0, "expert_parallel": 1, "expert_tensor_parallel": 1}
    silent |= {"context_parallel": 1, "virtual_pipeline": 1}
    silent |= {"recompute_method": "single", "recompute_num_layers": 0}
    silent |= dict.fromkeys(("micro_batch_group", "document_length", "padding", *OFFLOAD), 0)
    first = rows[0]
    silent |= {where: first[where] for share, where in OFFLOAD_TO.items() if not first[share]}
    if all(row["context_parallel"] == 1 for row in rows):
        silent["context_parallel_kind"] = first["context_parallel_kind"]
    if all(row["pipeline_parallel"] == 1 for row in rows):
        silent["pipeline_schedule"] = first["pipeline_schedule"]
    return [
        f"{spec.option} {as_written(first[spec.name])}"
        for spec in FIELDS
        if spec.name not in shown and silent.get(spec.name, object()) != first[spec.name]
    ]
